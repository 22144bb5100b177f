//! A tensor as NCCL takes it.

use std::ffi::{c_int, c_void};

use anyhow::{Result, bail, ensure};
use tch::{Device, Kind, Tensor};

/// A tensor as NCCL takes it.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) data: *mut c_void,
    pub(super) count: usize,
    pub(super) kind: c_int,
}

impl Given {
    pub(super) fn of(tensor: &Tensor, number: usize) -> Result<Self> {
        ensure!(
            tensor.device() == Device::Cuda(number),
            "a tensor on {:?} for ranks on cuda:{number}",
            tensor.device()
        );
        ensure!(tensor.is_contiguous(), "a tensor with gaps cannot be exchanged");
        Ok(Self {
            data: tensor.data_ptr(),
            count: tensor.numel(),
            kind: data_type(tensor.kind())?,
        })
    }
}

/// `ncclDataType_t`.
fn data_type(kind: Kind) -> Result<c_int> {
    Ok(match kind {
        Kind::Int8 => 0,
        Kind::Uint8 => 1,
        Kind::Int => 2,
        Kind::Int64 => 4,
        Kind::Half => 6,
        Kind::Float => 7,
        Kind::Double => 8,
        Kind::BFloat16 => 9,
        other => bail!("tensors of {other:?} are not exchanged between ranks"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_contiguous_tensors_of_known_kinds_on_the_ranks_gpu_are_exchanged() {
        let error = Given::of(&Tensor::zeros([2], (Kind::Float, Device::Cpu)), 1).unwrap_err();
        assert_eq!(error.to_string(), "a tensor on Cpu for ranks on cuda:1");
        assert!(data_type(Kind::Bool).unwrap_err().to_string().contains("Bool"));
        assert_eq!(data_type(Kind::BFloat16).unwrap(), 9);
    }
}
