//! Weights as one stream of bytes: a safetensors file (its length-prefixed header, then the tensors), followed by the 16
//! bytes of their [`Digest`]. The sender hashes while it sends and needs no second pass.

use anyhow::{Result, bail};
use tch::Kind;

use super::digest::{Digest, Hash, Pieces};
use crate::model::MergedWeights;
use crate::native::bytes::byte_length;

/// Bytes of the digest at the end.
pub const DIGEST: usize = Hash::BYTES;
/// Longest header that is read, as in the safetensors crate.
pub const LONGEST_HEADER: usize = 100_000_000;

/// The header's bytes: 8 of its length, then JSON with each tensor's dtype, shape and place, in order of names.
///
/// # Errors
/// When a tensor is of a kind that is not sent.
pub fn header(weights: &MergedWeights) -> Result<Vec<u8>> {
    let mut fields = serde_json::Map::new();
    let mut at = 0;
    for (name, tensor) in weights.iter().map(|(name, tensor)| (name, tensor.weight)) {
        let end = at + byte_length(tensor);
        let place = serde_json::json!({
            "dtype": dtype(tensor.kind())?, "shape": tensor.size(), "data_offsets": [at, end],
        });
        fields.insert(name.clone(), place);
        at = end;
    }
    let mut json = serde_json::to_vec(&fields)?;
    // The tensors behind it are aligned, as safetensors wants.
    json.resize(json.len().next_multiple_of(8), b' ');
    Ok([&(json.len() as u64).to_le_bytes()[..], &json].concat())
}

/// The whole stream in pieces, of which one lives at a time, and one merged tensor. A tensor is merged with the adapter when its
/// first piece is asked for.
///
/// # Errors
/// When a tensor cannot be sent.
pub fn pieces(weights: impl Into<MergedWeights>) -> Result<impl Iterator<Item = Result<Vec<u8>>> + Send> {
    let weights = weights.into();
    let mut header = Some(header(&weights)?);
    let mut tensors = Tensors::of(weights);
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
        Some(next.map(|piece| piece.unwrap_or_else(|| tensors.digest.finish().bytes().to_vec())))
    }))
}

/// What is left to send.
struct Tensors {
    weights: MergedWeights,
    /// Of those that are not begun.
    names: std::vec::IntoIter<String>,
    /// The one that is begun, by name.
    current: Option<(String, Pieces)>,
    digest: Digest,
}

impl Tensors {
    fn of(weights: MergedWeights) -> Self {
        let names: Vec<String> = weights.iter().map(|(name, _)| name.clone()).collect();
        Self {
            weights,
            names: names.into_iter(),
            current: None,
            digest: Digest::default(),
        }
    }

    /// The next piece; None behind the last.
    fn next(&mut self) -> Result<Option<Vec<u8>>> {
        loop {
            if let Some((name, pieces)) = &mut self.current {
                if let Some(piece) = pieces.take()? {
                    return Ok(Some(piece));
                }
                pieces.enter(name, &mut self.digest);
            }
            let Some(name) = self.names.next() else { return Ok(None) };
            let pieces = Pieces::of(&self.weights.tensor(&name)?)?;
            self.current = Some((name, pieces));
        }
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
