//! The device and number format that tensors are read into.

use anyhow::Result;
use ppo_crds::spec::DType;
use tch::{Device, Kind};

use crate::device;

/// Precision and device of tensors that are read. A precision alone means this machine's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Precision.
    pub kind: Kind,
    /// Device.
    pub device: Device,
}

impl From<Kind> for Target {
    fn from(kind: Kind) -> Self {
        let device = Device::Cpu;
        Self { kind, device }
    }
}

impl From<(Kind, Device)> for Target {
    fn from((kind, device): (Kind, Device)) -> Self {
        Self { kind, device }
    }
}

/// The tensors' precision.
pub fn kind(dtype: DType) -> Kind {
    match dtype {
        DType::Float32 => Kind::Float,
        DType::Bfloat16 => Kind::BFloat16,
    }
}

/// Where a model of a precision of the manifest goes: the device of this process.
///
/// # Errors
/// As [`device::here`].
pub fn target(dtype: DType) -> Result<Target> {
    Ok((kind(dtype), device::here()?).into())
}
