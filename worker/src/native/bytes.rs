//! The numbers of a tensor as they lie in memory.

use anyhow::{Result, ensure};
use tch::{Device, Tensor};

/// How many they are.
pub fn byte_length(tensor: &Tensor) -> usize {
    tensor.numel() * tensor.kind().elt_size_in_bytes()
}

/// The bytes of a contiguous tensor in this machine's memory. Nothing may change its numbers while they are borrowed: other handles of the
/// same tensor could.
///
/// # Errors
/// When the tensor lies elsewhere, or apart.
pub fn bytes_of(tensor: &Tensor) -> Result<&[u8]> {
    ensure!(
        tensor.device() == Device::Cpu && tensor.is_contiguous(),
        "bytes are of contiguous tensors in this machine's memory"
    );
    let length = byte_length(tensor);
    if length == 0 {
        // Its address may be none.
        return Ok(&[]);
    }
    // SAFETY: the tensor holds `length` bytes in a row for as long as it lives.
    Ok(unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast::<u8>(), length) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_those_of_the_numbers_in_a_row_and_of_nothing_that_lies_apart() {
        let tensor = Tensor::from_slice(&[1.0f32, 2.0, 3.0]);
        let bytes = |numbers: &[f32]| {
            numbers
                .iter()
                .flat_map(|number| number.to_ne_bytes())
                .collect::<Vec<_>>()
        };
        assert_eq!(bytes_of(&tensor).unwrap(), bytes(&[1.0, 2.0, 3.0]));
        assert_eq!(bytes_of(&tensor.narrow(0, 1, 1)).unwrap(), bytes(&[2.0]));
        assert_eq!(bytes_of(&tensor.narrow(0, 3, 0)).unwrap(), [0u8; 0]);
        assert!(bytes_of(&tensor.view([3, 1]).expand([3, 2], false)).is_err());
    }
}
