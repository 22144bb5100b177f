//! One hash for all tensors of a model, whatever files or frames they travelled in.

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use tch::{Kind, Tensor};

use crate::model::Weights;

/// SHA-256 over the tensors in order of their names: each one's name, dtype and shape as a line of text, then its bytes.
///
/// # Errors
/// When a tensor's bytes cannot be read.
pub fn digest(weights: &Weights) -> Result<String> {
    let mut hash = Sha256::new();
    for (name, tensor) in &weights.0 {
        add(&mut hash, name, tensor).with_context(|| format!("tensor {name}"))?;
    }
    Ok(hex(&hash.finalize()))
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes copied out of a tensor at once.
const PIECE: i64 = 1 << 20;

fn add(hash: &mut Sha256, name: &str, tensor: &Tensor) -> Result<()> {
    hash.update(format!("{name} {:?} {:?}\n", tensor.kind(), tensor.size()));
    let flat = tensor.f_detach()?.f_contiguous()?.f_reshape([-1])?;
    let length = flat.size1()?;
    let mut from = 0;
    while from < length {
        let count = PIECE.min(length - from);
        hash.update(bytes(&flat.f_narrow(0, from, count)?)?);
        from += count;
    }
    Ok(())
}

/// The numbers of a flat tensor as they lie in memory.
///
/// # Errors
/// When libtorch fails.
pub fn bytes(flat: &Tensor) -> Result<Vec<u8>> {
    // Whatever they are, as bytes: libtorch copies 8-bit numbers out without looking at them.
    let raw = flat.f_contiguous()?.f_view_dtype(Kind::Uint8)?;
    Ok(Vec::<u8>::try_from(&raw)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_changes_with_names_shapes_kinds_and_numbers_and_with_nothing_else() {
        let of = |name: &str, tensor: Tensor| {
            let mut weights = Weights::default();
            weights.0.insert(name.to_owned(), tensor);
            digest(&weights).unwrap()
        };
        let plain = || Tensor::from_slice(&[1f32, 2.0, 3.0, 4.0]);
        let base = of("a", plain());
        assert_eq!(
            base,
            of("a", plain().view([2, 2]).transpose(0, 1).transpose(0, 1).view([4]))
        );
        assert_ne!(base, of("b", plain()));
        assert_ne!(base, of("a", plain().view([2, 2])));
        assert_ne!(base, of("a", plain().to_kind(Kind::BFloat16)));
        assert_ne!(base, of("a", Tensor::from_slice(&[1f32, 2.0, 3.0, 5.0])));
        assert_eq!(base.len(), 64);
    }
}
