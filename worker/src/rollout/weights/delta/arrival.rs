//! A delta at the engine: read whole, and checked before any of it is written.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::StatusCode;
use futures::Stream;
use safetensors::tensor::Metadata;
use safetensors::{Dtype, SafeTensors};

use super::{GAPS, PART, VALUES};
use crate::engine::changes::Changes;
use crate::model::digest::Hash;
use crate::model::{ModelConfig, names};
use crate::native::threads::blocking;
use crate::rollout::weights::incoming::{broken, most_bytes, next};
use crate::serving::error::ApiError;

/// Bytes that a tensor takes in the header, at the most.
const HEADER_OF_ONE: usize = 512;

/// Reads a delta of `model`'s weights whole and checks all of it.
///
/// # Errors
/// 400 when the stream breaks off, its hash is another one, or what it has are no numbers of the model; 408 when it stalls; 413 when it is
/// longer than a delta is.
pub async fn receive<S, E>(model: &ModelConfig, mut stream: S, patience: Duration) -> Result<(Changes, Hash), ApiError>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
    E: std::fmt::Display,
{
    let header = names::expected(model).len() * HEADER_OF_ONE;
    let most = usize::try_from(most_bytes(model) / PART)
        .unwrap_or(usize::MAX)
        .saturating_add(header);
    let mut bytes = Vec::new();
    while let Some(piece) = next(&mut stream, patience).await? {
        if bytes.len() + piece.len() > most {
            return Err(ApiError::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("what changed is more than {most} bytes: send all weights; the old ones stay"),
            ));
        }
        bytes.extend_from_slice(&piece);
    }
    let model = model.clone();
    // Of a large model it takes a moment, in which others are served.
    let read = blocking(move || read(&model, bytes)).await;
    read.map_err(ApiError::internal)?
}

/// As [`receive`], of what arrived.
///
/// # Errors
/// As that.
pub fn read(model: &ModelConfig, mut bytes: Vec<u8>) -> Result<(Changes, Hash), ApiError> {
    let end = bytes.len().checked_sub(Hash::BYTES).ok_or_else(|| broken("its hash"))?;
    let sent = bytes.split_off(end);
    let hash = Hash::of(&bytes);
    if sent != hash.bytes() {
        return Err(ApiError::bad(
            "the hash at the end of the changes is not that of what arrived: send them again; the old weights stay",
        ));
    }
    let (length, metadata) = SafeTensors::read_metadata(&bytes).map_err(|error| {
        ApiError::bad(format!(
            "what changed is no safetensors file: {error}; the old weights stay"
        ))
    })?;
    let changes = changes(model, bytes, length + 8, &metadata);
    let changes = changes.map_err(|error| ApiError::bad(format!("what changed {error}; the old weights stay")))?;
    Ok((changes, hash))
}

/// The changes in `body`, whose tensors begin at byte `start`.
fn changes(model: &ModelConfig, body: Vec<u8>, start: usize, metadata: &Metadata) -> Result<Changes, String> {
    let mut shapes = names::expected(model);
    let tensors: BTreeMap<String, _> = metadata.tensors().into_iter().collect();
    let mut changes = Changes::of(body);
    for (name, values) in &tensors {
        let Some(name) = name.strip_suffix(VALUES) else {
            // Each is read with the values that it is of.
            let of = name.strip_suffix(GAPS).map(|name| format!("{name}{VALUES}"));
            if of.is_none_or(|of| !tensors.contains_key(&of)) {
                return Err(format!("has {name:?}, which is no half of a pair"));
            }
            continue;
        };
        let gaps = tensors.get(&format!("{name}{GAPS}"));
        let gaps = gaps.ok_or_else(|| format!("has no gaps of {name}"))?;
        if (values.dtype, gaps.dtype) != (Dtype::BF16, Dtype::U8) {
            return Err(format!(
                "of {name} is {:?} and {:?}, not BF16 and U8",
                values.dtype, gaps.dtype
            ));
        }
        let shape = shapes
            .remove(name)
            .ok_or_else(|| format!("has {name}, which is no tensor of this model"))?;
        let range = |(from, to): (usize, usize)| start + from..start + to;
        let change = changes.add(name, range(gaps.data_offsets), range(values.data_offsets));
        let change = change.ok_or_else(|| format!("ends before {name}"))?;
        change.check(shape.iter().product())?;
    }
    Ok(changes)
}
