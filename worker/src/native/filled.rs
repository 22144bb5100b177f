//! A tensor that is filled with bytes as they arrive: no second copy of them is made.

use anyhow::{Result, ensure};
use tch::{Device, Kind, Tensor};

/// In this machine's memory, its first bytes there.
#[derive(Debug)]
pub struct Filled {
    tensor: Tensor,
    bytes: usize,
    filled: usize,
}

impl Filled {
    /// None are there yet, and the memory is touched only when they come.
    ///
    /// # Errors
    /// When there is no such tensor, or no memory for it.
    pub fn new(shape: &[i64], kind: Kind) -> Result<Self> {
        let tensor = Tensor::f_empty(shape, (kind, Device::Cpu))?;
        let bytes = tensor.numel() * kind.elt_size_in_bytes();
        Ok(Self {
            tensor,
            bytes,
            filled: 0,
        })
    }

    /// Bytes that are still to come.
    pub fn left(&self) -> usize {
        self.bytes - self.filled
    }

    /// The next of its bytes.
    ///
    /// # Errors
    /// When they are more than are [`left`](Self::left).
    pub fn extend(&mut self, bytes: &[u8]) -> Result<()> {
        let (count, left) = (bytes.len(), self.left());
        ensure!(count <= left, "{count} bytes more for a tensor that lacks {left}");
        let start = self.tensor.data_ptr().cast::<u8>();
        // SAFETY: a new tensor is contiguous, nobody else has it, and `filled + count` is not past its end.
        unsafe { start.add(self.filled).copy_from_nonoverlapping(bytes.as_ptr(), count) };
        self.filled += count;
        Ok(())
    }

    /// The tensor.
    ///
    /// # Errors
    /// When bytes are lacking.
    pub fn tensor(self) -> Result<Tensor> {
        ensure!(self.left() == 0, "a tensor lacks {} bytes", self.left());
        Ok(self.tensor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_in_pieces_of_any_length_become_the_numbers_that_they_are() {
        let numbers: Vec<f32> = (0..6u8).map(f32::from).collect();
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        for length in 1..=bytes.len() {
            let mut filled = Filled::new(&[2, 3], Kind::Float).unwrap();
            for piece in bytes.chunks(length) {
                filled.extend(piece).unwrap();
            }
            let tensor = filled.tensor().unwrap();
            assert_eq!(tensor.size(), [2, 3]);
            assert_eq!(Vec::<f32>::try_from(&tensor.reshape([-1])).unwrap(), numbers);
        }
    }

    #[test]
    fn too_many_bytes_are_refused_and_too_few_make_no_tensor() {
        let mut filled = Filled::new(&[1], Kind::Float).unwrap();
        filled.extend(&[0; 3]).unwrap();
        let error = filled.extend(&[0; 2]).unwrap_err().to_string();
        assert!(error.contains("2 bytes more") && error.contains("lacks 1"), "{error}");
        assert!(filled.tensor().unwrap_err().to_string().contains("lacks 1 bytes"));
        assert!(Filled::new(&[0], Kind::Float).unwrap().tensor().is_ok());
    }
}
