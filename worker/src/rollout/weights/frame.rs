//! Weights as one stream of bytes: a safetensors file (its length-prefixed header, then the tensors), followed by the 32
//! bytes of the SHA-256 over all before it. The sender hashes while it sends and needs no second pass.

use anyhow::{Result, bail};
use sha2::{Digest, Sha256};
use tch::{Device, Kind, Tensor};

use super::digest::bytes;
use crate::model::MergedWeights;

/// Bytes of the digest at the end.
pub const DIGEST: usize = 32;
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
        let end = at + tensor.numel() * tensor.kind().elt_size_in_bytes();
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
    let mut hash = Sha256::new();
    let header = header(&weights)?;
    let names: Vec<String> = weights.iter().map(|(name, _)| name.clone()).collect();
    let mut names = names.into_iter();
    let mut current: Option<(Tensor, i64)> = None;
    let mut stage = Some(header);
    let mut is_over = false;
    Ok(std::iter::from_fn(move || {
        if is_over {
            return None;
        }
        if let Some(header) = stage.take() {
            hash.update(&header);
            return Some(Ok(header));
        }
        loop {
            if let Some((flat, from)) = current.take() {
                let count = PIECE.min(flat.numel() as i64 - from);
                if count <= 0 {
                    continue;
                }
                let piece = flat
                    .f_narrow(0, from, count)
                    .map_err(Into::into)
                    .and_then(|part| bytes(&part));
                current = Some((flat, from + count));
                if let Ok(piece) = &piece {
                    hash.update(piece);
                }
                return Some(piece);
            }
            match names.next() {
                Some(name) => match weights.tensor(&name).and_then(|tensor| flat(&tensor)) {
                    Ok(flat) => current = Some((flat, 0)),
                    Err(error) => {
                        is_over = true;
                        return Some(Err(error));
                    }
                },
                None => {
                    is_over = true;
                    return Some(Ok(hash.finalize_reset().to_vec()));
                }
            }
        }
    }))
}

/// In this machine's memory, wherever it was.
fn flat(tensor: &Tensor) -> Result<Tensor> {
    Ok(tensor
        .f_detach()?
        .f_to_device(Device::Cpu)?
        .f_contiguous()?
        .f_reshape([-1])?)
}

/// Numbers in one piece.
const PIECE: i64 = 1 << 18;

fn dtype(kind: Kind) -> Result<&'static str> {
    Ok(match kind {
        Kind::Float => "F32",
        Kind::BFloat16 => "BF16",
        Kind::Half => "F16",
        other => bail!("tensors of {other:?} are not sent"),
    })
}
