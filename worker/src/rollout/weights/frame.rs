//! Weights as one stream of bytes: a safetensors file (its length-prefixed header, then the tensors), followed by the 16
//! bytes of their [`Digest`](crate::model::digest::Digest). The sender hashes while it sends and needs no second pass.

use std::sync::Arc;

use anyhow::{Result, bail};
use tch::{Kind, Tensor};

use super::source::{Described, Source};
use crate::model::MergedWeights;
use crate::model::digest::{Hash, Hasher};
use crate::native::bytes::bytes_of;

/// Bytes of the digest at the end.
pub const DIGEST: usize = Hash::BYTES;
/// Longest header that is read, as in the safetensors crate.
pub const LONGEST_HEADER: usize = 100_000_000;
/// Numbers in one piece.
const PIECE: usize = 1 << 18;
/// Bytes that are hashed and then copied: the second look finds them in the processor's cache.
const PART: usize = 64 << 10;

/// The header's bytes: 8 of its length, then JSON with each tensor's dtype, shape and place, in order of names.
fn header(tensors: &[Described]) -> Result<Vec<u8>> {
    let mut fields = serde_json::Map::new();
    let mut at = 0;
    for Described { name, kind, shape, .. } in tensors {
        let numbers: i64 = shape.iter().product();
        let end = at + usize::try_from(numbers)? * kind.elt_size_in_bytes();
        let place = serde_json::json!({"dtype": dtype(*kind)?, "shape": shape, "data_offsets": [at, end]});
        fields.insert(name.clone(), place);
        at = end;
    }
    prefixed(&fields)
}

/// The header of a safetensors file, with its length before it.
pub(super) fn prefixed(fields: &serde_json::Map<String, serde_json::Value>) -> Result<Vec<u8>> {
    let mut json = serde_json::to_vec(fields)?;
    // The tensors behind it are aligned, as safetensors wants.
    json.resize(json.len().next_multiple_of(8), b' ');
    Ok([&(json.len() as u64).to_le_bytes()[..], &json].concat())
}

/// The whole stream in pieces, of which one lives at a time, and one merged tensor: it is merged with the adapter when its first piece is
/// asked for.
///
/// # Errors
/// When a tensor cannot be sent.
pub fn pieces(weights: impl Into<MergedWeights>) -> Result<impl Iterator<Item = Result<Vec<u8>>> + Send> {
    pieces_of(Arc::new(Source::new(weights.into())))
}

/// As [`pieces`], of what other streams read too: a few merged tensors live for all of them together.
///
/// # Errors
/// When a tensor cannot be sent.
pub fn pieces_of(source: Arc<Source>) -> Result<impl Iterator<Item = Result<Vec<u8>>> + Send> {
    let mut header = Some(header(source.tensors())?);
    let mut tensors = Tensors::of(source);
    let mut is_over = false;
    Ok(std::iter::from_fn(move || {
        if is_over {
            return None;
        }
        if let Some(header) = header.take() {
            return Some(Ok(header));
        }
        let next = tensors.next();
        is_over = !matches!(next, Ok(Some(_)));
        Some(next.and_then(|piece| match piece {
            Some(piece) => Ok(piece),
            None => Ok(tensors.source.digest()?.bytes().to_vec()),
        }))
    }))
}

/// What is left to send.
struct Tensors {
    source: Arc<Source>,
    /// Number of the tensor that is begun, or comes next.
    number: usize,
    current: Option<Current>,
}

/// A tensor that is begun.
struct Current {
    flat: Tensor,
    /// Pieces so far.
    taken: usize,
    /// None: another stream hashes it.
    hasher: Option<Hasher>,
}

impl Tensors {
    fn of(source: Arc<Source>) -> Self {
        source.enter();
        Self {
            source,
            number: 0,
            current: None,
        }
    }

    /// The next piece; None behind the last.
    fn next(&mut self) -> Result<Option<Vec<u8>>> {
        loop {
            if let Some(current) = &mut self.current {
                if let Some(piece) = current.take()? {
                    return Ok(Some(piece));
                }
                if let Some(hasher) = &current.hasher {
                    self.source.set_hash(self.number, hasher.finish());
                }
                self.number += 1;
            }
            self.current = None;
            if self.number == self.source.tensors().len() {
                return Ok(None);
            }
            self.current = Some(Current {
                flat: self.source.tensor(self.number)?,
                taken: 0,
                hasher: self.source.hasher(self.number),
            });
        }
    }
}

impl Drop for Tensors {
    fn drop(&mut self) {
        self.current = None;
        self.source.leave();
    }
}

impl Current {
    /// The next piece; None behind the last.
    fn take(&mut self) -> Result<Option<Vec<u8>>> {
        let length = PIECE * self.flat.kind().elt_size_in_bytes();
        let Some(piece) = bytes_of(&self.flat)?.chunks(length).nth(self.taken) else {
            return Ok(None);
        };
        let mut taken = Vec::with_capacity(piece.len());
        for part in piece.chunks(PART) {
            if let Some(hasher) = &mut self.hasher {
                hasher.update(part);
            }
            taken.extend_from_slice(part);
        }
        self.taken += 1;
        Ok(Some(taken))
    }
}

fn dtype(kind: Kind) -> Result<&'static str> {
    Ok(match kind {
        Kind::Float => "F32",
        Kind::BFloat16 => "BF16",
        Kind::Half => "F16",
        other => bail!("tensors of {other:?} are not sent"),
    })
}
