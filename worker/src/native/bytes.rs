//! The numbers of a tensor as they lie in memory.

use anyhow::{Result, ensure};
use tch::{Device, Tensor};

/// Bytes of `count` numbers from `first` on, of a contiguous tensor in this machine's memory, whatever they are.
///
/// # Errors
/// When the tensor lies elsewhere or apart, or has fewer numbers.
pub fn bytes_of(flat: &Tensor, first: i64, count: i64) -> Result<Vec<u8>> {
    ensure!(
        flat.device() == Device::Cpu && flat.is_contiguous(),
        "bytes are of contiguous tensors in this machine's memory"
    );
    let numbers = flat.numel() as i64;
    ensure!(
        0 <= first && 0 <= count && count <= numbers - first,
        "{count} numbers from {first} on, of {numbers}"
    );
    let size = flat.kind().elt_size_in_bytes();
    let (first, length) = (first as usize * size, count as usize * size);
    let mut bytes = Vec::with_capacity(length);
    // SAFETY: the tensor holds `first + length` bytes in a row, and the new vector has room for `length`. They are written at once: a
    // zeroed vector would be written twice.
    unsafe {
        let from = flat.data_ptr().cast::<u8>().add(first);
        from.copy_to_nonoverlapping(bytes.as_mut_ptr(), length);
        bytes.set_len(length);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_those_of_the_numbers_that_were_asked_for_and_of_no_others() {
        let tensor = Tensor::from_slice(&[1.0f32, 2.0, 3.0]);
        let bytes = |numbers: &[f32]| {
            numbers
                .iter()
                .flat_map(|number| number.to_ne_bytes())
                .collect::<Vec<_>>()
        };
        assert_eq!(bytes_of(&tensor, 0, 3).unwrap(), bytes(&[1.0, 2.0, 3.0]));
        assert_eq!(bytes_of(&tensor, 1, 1).unwrap(), bytes(&[2.0]));
        assert_eq!(bytes_of(&tensor, 3, 0).unwrap(), [0u8; 0]);
        for (first, count) in [(0, 4), (3, 1), (-1, 1), (0, -1), (i64::MAX, 1)] {
            assert!(bytes_of(&tensor, first, count).is_err(), "{first}, {count}");
        }
        assert!(bytes_of(&tensor.view([3, 1]).expand([3, 2], false), 0, 1).is_err());
    }
}
