//! One digest for all tensors of a model, whatever files or frames they travelled in.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use blake3::{Hash, Hasher};
use tch::{Kind, Tensor};

use crate::model::Weights;

/// Grows tensor by tensor, in any order: BLAKE3 over a line of text for each in order of their names, with its name, dtype, shape and
/// the BLAKE3 of its bytes.
#[derive(Debug, Default)]
pub struct Digest(BTreeMap<String, String>);

impl Digest {
    /// A tensor, and the hash of its bytes.
    pub fn insert(&mut self, name: &str, kind: Kind, shape: &[i64], bytes: Hash) {
        let line = format!("{name} {kind:?} {shape:?} {bytes}\n");
        self.0.insert(name.to_owned(), line);
    }

    /// Of all that were inserted.
    pub fn finish(&self) -> Hash {
        let mut hash = Hasher::new();
        for line in self.0.values() {
            hash.update(line.as_bytes());
        }
        hash.finalize()
    }
}

/// The [`Digest`] of a model's tensors.
///
/// # Errors
/// When a tensor's bytes cannot be read.
pub fn digest(weights: &Weights) -> Result<Hash> {
    let mut digest = Digest::default();
    for (name, tensor) in &weights.0 {
        let hash = hash(tensor).with_context(|| format!("tensor {name}"))?;
        digest.insert(name, tensor.kind(), &tensor.size(), hash);
    }
    Ok(digest.finish())
}

/// Bytes copied out of a tensor at once.
const PIECE: i64 = 1 << 20;

fn hash(tensor: &Tensor) -> Result<Hash> {
    let mut hash = Hasher::new();
    let flat = tensor.f_detach()?.f_contiguous()?.f_reshape([-1])?;
    let length = flat.size1()?;
    let mut from = 0;
    while from < length {
        let count = PIECE.min(length - from);
        hash.update(&bytes(&flat.f_narrow(0, from, count)?)?);
        from += count;
    }
    Ok(hash.finalize())
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
    fn the_digest_changes_with_names_shapes_kinds_and_numbers_and_with_nothing_else() {
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
    }

    #[test]
    fn the_digest_does_not_know_in_which_order_tensors_came() {
        let of = |names: [&str; 2]| {
            let mut digest = Digest::default();
            for name in names {
                digest.insert(name, Kind::Float, &[1], blake3::hash(name.as_bytes()));
            }
            digest.finish()
        };
        assert_eq!(of(["a", "b"]), of(["b", "a"]));
    }
}
