//! A version of the weights as what differs from the one before, for engines that have that one. In bfloat16 a step of PPO changes a few
//! numbers in a hundred ([`marks`](crate::model::marks)), so this is a small part of all of them.
//!
//! The stream is a safetensors file of two tensors for each that changed, `NAME:values` (BF16) and `NAME:gaps` (U8: [`Gaps`]), followed
//! by the 16 bytes of the hash of all before. What an engine has then goes by the hash over the digest that it had and this one.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use axum::body::Bytes;
use axum::http::StatusCode;
use futures::Stream;
use safetensors::Dtype;
use safetensors::tensor::Metadata;
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use super::digest::{Hash, Hasher};
use super::frame::prefixed;
use super::incoming::{broken, most_bytes, next};
use crate::engine::changes::{Changes, Gaps};
use crate::model::marks::Changed;
use crate::model::{MergedWeights, ModelConfig, names};
use crate::native::bytes::bytes_of;
use crate::serving::error::ApiError;

/// A delta is made where it is at most this part of all weights: it is held until the next version.
const PART: u64 = 4;
/// Bytes that a tensor takes in the header, at the most.
const HEADER_OF_ONE: usize = 512;
/// Bytes that are given to the network at once.
const PIECE: usize = 1 << 18;

const VALUES: &str = ":values";
const GAPS: &str = ":gaps";

/// What a version changed, as it is sent.
#[derive(Clone, Debug)]
pub struct Delta {
    bytes: Bytes,
    /// Numbers that changed.
    pub count: u64,
}

impl Delta {
    /// The numbers of `weights` that are marked; None where they are too many, or some are not bfloat16.
    ///
    /// # Errors
    /// When libtorch fails.
    pub fn of(weights: &MergedWeights, changed: &Changed) -> Result<Option<Self>> {
        let most = usize::try_from(weights.bytes() / PART)?;
        let (mut values, mut gaps) = (Body::new(VALUES, "BF16"), Body::new(GAPS, "U8"));
        let mut count = 0;
        for (name, range) in &changed.places {
            let (mut positions, mut written) = (Vec::new(), Gaps::default());
            changed.marks.each(range.clone(), |position| {
                positions.push(position);
                written.push(position);
            })?;
            if positions.is_empty() {
                continue;
            }
            let tensor = weights.tensor(name)?;
            if tensor.kind() != Kind::BFloat16 || values.bytes.len() + gaps.bytes.len() + 3 * positions.len() > most {
                return Ok(None);
            }
            count += positions.len() as u64;
            let positions = Tensor::from_slice(&positions).f_to_device(tensor.device())?;
            let chosen = tensor
                .f_reshape([-1])?
                .f_index_select(0, &positions)?
                .f_to_device(Device::Cpu)?;
            values.add(name, 2, bytes_of(&chosen)?);
            gaps.add(name, 1, &written.bytes);
        }
        let header = values.fields(0).chain(gaps.fields(values.bytes.len())).collect();
        let mut bytes = prefixed(&header)?;
        bytes.append(&mut values.bytes);
        bytes.append(&mut gaps.bytes);
        bytes.extend(Hash::of(&bytes).bytes());
        let bytes = Bytes::from(bytes);
        Ok(Some(Self { bytes, count }))
    }

    /// As they are sent.
    pub fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Piece by piece.
    pub fn pieces(&self) -> impl Iterator<Item = Bytes> + Send + use<> {
        let bytes = self.bytes.clone();
        (0..bytes.len().div_ceil(PIECE)).map(move |number| {
            let start = number * PIECE;
            bytes.slice(start..bytes.len().min(start + PIECE))
        })
    }
}

/// One of the two tensors of each name, one behind the other.
struct Body {
    ending: &'static str,
    dtype: &'static str,
    bytes: Vec<u8>,
    /// Name, numbers, and where the bytes end.
    tensors: Vec<(String, usize, usize)>,
}

impl Body {
    fn new(ending: &'static str, dtype: &'static str) -> Self {
        Self {
            ending,
            dtype,
            bytes: Vec::new(),
            tensors: Vec::new(),
        }
    }

    fn add(&mut self, name: &str, size: usize, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        let name = format!("{name}{}", self.ending);
        self.tensors.push((name, bytes.len() / size, self.bytes.len()));
    }

    /// Of a header, of bytes that begin at `base`.
    fn fields(&self, base: usize) -> impl Iterator<Item = (String, Value)> {
        let mut start = base;
        self.tensors.iter().map(move |(name, numbers, end)| {
            let place = json!({"dtype": self.dtype, "shape": [numbers], "data_offsets": [start, base + end]});
            start = base + end;
            (name.clone(), place)
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
    read(model, bytes)
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
    let (length, metadata) = safetensors::SafeTensors::read_metadata(&bytes).map_err(|error| {
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
        let (count, last) = change.positions().fold((0, 0), |(count, _), place| (count + 1, place));
        if change.values.len() != 2 * count {
            return Err(format!(
                "has {} bytes of {name} for {count} numbers",
                change.values.len()
            ));
        }
        if last >= shape.iter().product() {
            return Err(format!("has number {last} of {name}, which is {shape:?}"));
        }
    }
    Ok(changes)
}

#[cfg(test)]
mod tests;
