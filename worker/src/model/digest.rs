//! One digest for all tensors of a model, whatever files or frames they travelled in.

use std::collections::BTreeMap;
use std::fmt::{Display, Formatter};

use anyhow::{Context, Result};
use tch::{Device, Kind, Tensor};
use twox_hash::XxHash3_128;

use super::{ModelConfig, Weights};
use crate::native::bytes::bytes_of;

/// What many bytes come down to: XXH3, 128 bits. It finds what broke on the way, at the speed of memory; who may send weights at all is
/// the door's affair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hash(u128);

impl Hash {
    /// Bytes of one.
    pub const BYTES: usize = 16;

    /// Of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(XxHash3_128::oneshot(bytes))
    }

    /// As they are sent, the highest first.
    pub fn bytes(self) -> [u8; Self::BYTES] {
        self.0.to_be_bytes()
    }
}

impl Display for Hash {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A [`Hash`] in the making.
pub struct Hasher(XxHash3_128);

impl std::fmt::Debug for Hasher {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Hasher").field(&self.finish()).finish()
    }
}

impl Default for Hasher {
    fn default() -> Self {
        Self(XxHash3_128::new())
    }
}

impl Hasher {
    /// More bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// Of all bytes so far.
    pub fn finish(&self) -> Hash {
        Hash(self.0.finish_128())
    }
}

/// Grows tensor by tensor, in any order: the hash over a line of text for each in order of their names, with its name, dtype, shape and
/// the hash of its bytes.
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
        let mut hash = Hasher::default();
        for line in self.0.values() {
            hash.update(line.as_bytes());
        }
        hash.finish()
    }
}

/// The [`Digest`] of a model's tensors.
///
/// # Errors
/// When a tensor's bytes cannot be read.
pub fn digest(weights: &Weights) -> Result<Hash> {
    let mut digest = Digest::default();
    for (name, tensor) in &weights.0 {
        let hash = hash_of(tensor).with_context(|| format!("tensor {name}"))?;
        digest.insert(name, tensor.kind(), &tensor.size(), hash);
    }
    Ok(digest.finish())
}

/// Of a tensor's numbers in a row, wherever they lie.
///
/// # Errors
/// When libtorch fails.
pub fn hash_of(tensor: &Tensor) -> Result<Hash> {
    Ok(Hash::of(bytes_of(&flat(tensor)?)?))
}

/// A tensor's numbers in a row in this machine's memory: the tensor itself where they lie there so already.
///
/// # Errors
/// When libtorch fails.
pub fn flat(tensor: &Tensor) -> Result<Tensor> {
    let here = tensor.f_detach()?.f_to_device(Device::Cpu)?.f_contiguous()?;
    Ok(here.f_reshape([-1])?)
}

/// Of what a loaded model computes: its tensors by name, in the precision that they have here, and the conventions of `config`. The same
/// files have the same one wherever they are loaded.
///
/// # Errors
/// When a tensor's bytes cannot be read.
pub fn digest_of_model(config: &ModelConfig, parameters: Vec<(String, Tensor)>) -> Result<String> {
    let mut hash = Hasher::default();
    hash.update(&digest(&Weights(parameters.into_iter().collect()))?.bytes());
    hash.update(config.conventions().as_bytes());
    Ok(hash.finish().to_string())
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
                digest.insert(name, Kind::Float, &[1], Hash::of(name.as_bytes()));
            }
            digest.finish()
        };
        assert_eq!(of(["a", "b"]), of(["b", "a"]));
    }

    #[test]
    fn the_digest_of_a_model_changes_with_a_number_or_a_convention_and_with_nothing_else() {
        let llama = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/llama");
        let config = ModelConfig::read(&llama).unwrap();
        let of = |config: &ModelConfig, tensors: [(&str, f32); 2]| {
            let named = tensors.map(|(name, number)| (name.to_owned(), Tensor::from_slice(&[number])));
            digest_of_model(config, named.into()).unwrap()
        };
        let digest = of(&config, [("a", 1.0), ("b", 2.0)]);
        assert_eq!(of(&config, [("b", 2.0), ("a", 1.0)]), digest);
        assert_ne!(of(&config, [("a", 1.0), ("b", 3.0)]), digest);
        let mut other = config.clone();
        other.max_positions *= 2;
        assert_eq!(of(&other, [("a", 1.0), ("b", 2.0)]), digest);
        other.rope_theta *= 2.0;
        assert_ne!(of(&other, [("a", 1.0), ("b", 2.0)]), digest);
    }
}
