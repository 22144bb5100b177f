//! A version of the weights as what differs from the one before, for engines that have that one. In bfloat16 a step of PPO changes a few
//! numbers in a hundred ([`marks`](crate::model::marks)), so this is a small part of all of them.
//!
//! The stream is a safetensors file of two tensors for each that changed, `NAME:values` (BF16) and `NAME:gaps` (U8: [`Gaps`](crate::native::change::Gaps)), followed
//! by the 16 bytes of the hash of all before. What an engine has then goes by the hash over the digest that it had and this one.

pub mod arrival;
mod found;

use anyhow::Result;
use axum::body::Bytes;
use serde_json::{Map, json};
use tch::{Kind, Tensor};

use self::found::{Found, find};
use super::frame::prefixed;
use crate::model::MergedWeights;
use crate::model::digest::{Hash, Hasher};
use crate::model::marks::Changed;

/// A delta is made where it is at most this part of all weights: it is held until the next version, and to find and write more takes as
/// long as to send all of them over a fast network.
const PART: u64 = 8;
/// Bytes that are given to the network at once.
const PIECE: usize = 1 << 18;

const VALUES: &str = ":values";
const GAPS: &str = ":gaps";

/// What a version changed, as it is sent.
#[derive(Clone, Debug)]
pub struct Delta {
    /// The stream's bytes, in pieces of any length.
    pieces: Vec<Bytes>,
    /// Numbers that changed.
    pub count: u64,
}

impl Delta {
    /// The numbers of `weights` that are marked; None where they are too many, or some are not bfloat16. As many threads look for them as
    /// libtorch has.
    ///
    /// # Errors
    /// When libtorch fails.
    pub fn of(weights: &MergedWeights, changed: &Changed) -> Result<Option<Self>> {
        let most = usize::try_from(weights.bytes() / PART)?;
        // Three bytes each, and seldom more: what is too much is not looked for.
        if 3 * changed.marks.read()?.count() > most as u64 {
            return Ok(None);
        }
        let tensors = changed.places.iter().map(|(name, _)| {
            // In a row, on whatever device.
            Ok(weights.tensor(name)?.f_detach()?.f_contiguous()?.f_reshape([-1])?)
        });
        let tensors: Vec<Tensor> = tensors.collect::<Result<_>>()?;
        if tensors.iter().any(|tensor| tensor.kind() != Kind::BFloat16) {
            return Ok(None);
        }
        let mut found = find(changed, &tensors)?;
        let length = |found: &Found| found.gaps.len() + 2 * found.count;
        if found.iter().map(length).sum::<usize>() > most {
            return Ok(None);
        }
        for (found, tensor) in found.iter_mut().zip(&tensors) {
            found.fetch(tensor)?;
        }
        let named = changed.places.iter().map(|(name, _)| name).zip(found);
        let framed = Self::framed(named.filter(|(_, found)| found.count > 0).collect());
        framed.map(Some)
    }

    fn framed(tensors: Vec<(&String, Found)>) -> Result<Self> {
        let mut fields = Map::new();
        let mut end = 0;
        let mut place = |name: &str, ending: &str, dtype: &str, numbers: usize, bytes: usize| {
            let start = end;
            end += bytes;
            let place = json!({"dtype": dtype, "shape": [numbers], "data_offsets": [start, end]});
            fields.insert(format!("{name}{ending}"), place);
        };
        for (name, found) in &tensors {
            place(name, VALUES, "BF16", found.count, 2 * found.count);
        }
        for (name, found) in &tensors {
            place(name, GAPS, "U8", found.gaps.len(), found.gaps.len());
        }
        let count = tensors.iter().map(|(_, found)| found.count as u64).sum();
        let (values, gaps): (Vec<_>, Vec<_>) = tensors
            .into_iter()
            .map(|(_, found)| (found.values.into_flattened(), found.gaps))
            .unzip();
        let mut pieces = vec![Bytes::from(prefixed(&fields)?)];
        pieces.extend(values.into_iter().chain(gaps).map(Bytes::from));
        let mut hash = Hasher::default();
        pieces.iter().for_each(|piece| hash.update(piece));
        pieces.push(Bytes::copy_from_slice(&hash.finish().bytes()));
        Ok(Self { pieces, count })
    }

    /// As they are sent.
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len() as u64).sum()
    }

    /// Piece by piece.
    pub fn pieces(&self) -> impl Iterator<Item = Bytes> + Send + use<> {
        self.pieces.clone().into_iter().flat_map(|whole| {
            (0..whole.len().div_ceil(PIECE)).map(move |number| {
                let start = number * PIECE;
                whole.slice(start..whole.len().min(start + PIECE))
            })
        })
    }
}

/// What an engine with the weights of digest `base` has after a delta of this hash.
pub fn digest_after(base: &str, delta: Hash) -> Hash {
    let mut hash = Hasher::default();
    hash.update(base.as_bytes());
    hash.update(&delta.bytes());
    hash.finish()
}

#[cfg(test)]
mod tests;
