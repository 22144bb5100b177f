//! A stream of weights as it arrives: its header checked before a byte of the tensors is read, its digest at the end.

use std::time::Duration;

use axum::body::Bytes;
use axum::http::StatusCode;
use futures::{Stream, StreamExt};
use safetensors::Dtype;
use safetensors::tensor::Metadata;
use tch::Kind;

use super::frame::{DIGEST, LONGEST_HEADER};
use crate::model::digest::{Digest, Hash, Hasher};
use crate::model::{ModelConfig, names};
use crate::serving::error::ApiError;

/// A tensor to come.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Its name in Hugging Face layout.
    pub name: String,
    /// Its shape, which is the model's.
    pub shape: Vec<i64>,
    /// The numbers' kind in the stream.
    pub stored: Kind,
    /// How long it is.
    pub bytes: usize,
}

/// The stream as bytes to take.
pub struct Incoming<S> {
    /// For the next bytes; a sender that is silent for longer is cut.
    patience: Duration,
    stream: S,
    buffer: Bytes,
    /// Of the tensor that comes now.
    hash: Hasher,
    digest: Digest,
}

impl<S, E> Incoming<S>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
    E: std::fmt::Display,
{
    /// Nothing is read yet.
    pub fn new(stream: S, patience: Duration) -> Self {
        Self {
            patience,
            stream,
            buffer: Bytes::new(),
            hash: Hasher::default(),
            digest: Digest::default(),
        }
    }

    /// The header: as it stands in the stream, with its length before it, and the tensors that follow it in their order.
    ///
    /// # Errors
    /// 400 when it is no safetensors header, or its tensors are not exactly those of `model`.
    pub async fn header(&mut self, model: &ModelConfig) -> Result<(Vec<u8>, Vec<Planned>), ApiError> {
        let mut header = self.take(8).await?;
        let length: [u8; 8] = header.as_slice().try_into().map_err(|_| broken("its length"))?;
        let length = u64::from_le_bytes(length);
        let bytes = usize::try_from(length).ok().filter(|length| *length <= LONGEST_HEADER);
        let bytes =
            bytes.ok_or_else(|| ApiError::bad(format!("a header of {length} bytes is no safetensors header")))?;
        let json = self.take(bytes).await?;
        let metadata: Metadata = serde_json::from_slice(&json)
            .map_err(|error| ApiError::bad(format!("the header is no safetensors header: {error}")))?;
        header.extend_from_slice(&json);
        Ok((header, plan(model, &metadata)?))
    }

    async fn take(&mut self, count: usize) -> Result<Vec<u8>, ApiError> {
        // Grows with what arrives: a header's promise reserves nothing.
        let mut taken = Vec::new();
        while taken.len() < count {
            taken.extend_from_slice(&self.some(count - taken.len()).await?);
        }
        Ok(taken)
    }

    /// The next bytes of a tensor, at least one and at most `most`.
    ///
    /// # Errors
    /// 400 when the stream breaks off, 408 when it stalls.
    pub async fn piece(&mut self, most: usize) -> Result<Bytes, ApiError> {
        let piece = self.some(most).await?;
        self.hash.update(&piece);
        Ok(piece)
    }

    /// All pieces of `tensor` have been taken.
    pub fn end_tensor(&mut self, tensor: &Planned) {
        let hash = std::mem::take(&mut self.hash).finish();
        self.digest.insert(&tensor.name, tensor.stored, &tensor.shape, hash);
    }

    async fn some(&mut self, most: usize) -> Result<Bytes, ApiError> {
        while self.buffer.is_empty() {
            let next = next(&mut self.stream, self.patience).await?;
            self.buffer = next.ok_or_else(|| broken("the bytes that its header promises"))?;
        }
        Ok(self.buffer.split_to(most.min(self.buffer.len())))
    }

    /// After the tensors comes their digest, and then nothing.
    ///
    /// # Errors
    /// 400 when it is another one.
    pub async fn check_end(mut self) -> Result<Hash, ApiError> {
        let sent = self.take(DIGEST).await?;
        let found = self.digest.finish();
        if sent != found.bytes() {
            return Err(ApiError::bad(
                "the digest at the end of the stream is not that of what arrived: send it again; the old weights stay",
            ));
        }
        if !self.buffer.is_empty()
            || next(&mut self.stream, self.patience)
                .await?
                .is_some_and(|more| !more.is_empty())
        {
            return Err(ApiError::bad(
                "there are bytes behind the stream's digest; the old weights stay",
            ));
        }
        Ok(found)
    }
}

/// What arrives next, within `patience`; None at the end.
///
/// # Errors
/// 400 when the stream breaks off, 408 when it stalls.
pub(super) async fn next<S, E>(stream: &mut S, patience: Duration) -> Result<Option<Bytes>, ApiError>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
    E: std::fmt::Display,
{
    match tokio::time::timeout(patience, stream.next()).await {
        Ok(None) => Ok(None),
        Ok(Some(Ok(bytes))) => Ok(Some(bytes)),
        Ok(Some(Err(error))) => Err(ApiError::bad(format!(
            "the stream broke off: {error}; the old weights stay"
        ))),
        Err(_) => Err(ApiError::new(
            StatusCode::REQUEST_TIMEOUT,
            format!("nothing arrived for {} s; the old weights stay", patience.as_secs_f64()),
        )),
    }
}

/// Bytes of the model's weights in a stream, at the most: no number has more than four.
pub fn most_bytes(model: &ModelConfig) -> u64 {
    let shapes = names::expected(model);
    let numbers: i64 = shapes.values().map(|shape| shape.iter().product::<i64>()).sum();
    u64::try_from(numbers).unwrap_or(0).saturating_mul(4)
}

/// The tensors in the order in which they come; exactly the model's.
fn plan(model: &ModelConfig, metadata: &Metadata) -> Result<Vec<Planned>, ApiError> {
    let mut missing = names::expected(model);
    let mut wrong = Vec::new();
    let mut plan = Vec::new();
    for name in metadata.offset_keys() {
        let Some(info) = metadata.info(&name) else { continue };
        let shape: Vec<i64> = info.shape.iter().map(|size| *size as i64).collect();
        let stored = match info.dtype {
            Dtype::F32 => Kind::Float,
            Dtype::BF16 => Kind::BFloat16,
            Dtype::F16 => Kind::Half,
            other => {
                wrong.push(format!("{name} is {other:?}"));
                continue;
            }
        };
        match missing.remove(&name) {
            None => wrong.push(format!("{name} is no tensor of this model")),
            Some(expected) if expected != shape => wrong.push(format!("{name} is {shape:?}, not {expected:?}")),
            Some(_) => plan.push(Planned {
                bytes: info.data_offsets.1 - info.data_offsets.0,
                name,
                shape,
                stored,
            }),
        }
    }
    wrong.extend(missing.keys().map(|name| format!("{name} is missing")));
    if wrong.is_empty() {
        return Ok(plan);
    }
    Err(ApiError::bad(format!(
        "these are not the weights of this model: {}; the old weights stay",
        wrong.join(", ")
    )))
}

pub(super) fn broken(what: &str) -> ApiError {
    ApiError::bad(format!("the stream ended before {what}; the old weights stay"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Weights;
    use crate::roles::Publication;
    use crate::serving::Limits;

    #[test]
    fn an_engine_waits_for_new_weights_no_shorter_than_the_actor_that_sends_them() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/llama");
        let model = ModelConfig::read(folder.as_ref()).unwrap();
        let limit = Limits::default().update_deadline(most_bytes(&model));
        for kind in [Kind::Float, Kind::BFloat16] {
            let publication = Publication::default();
            publication.publish(Weights::random(&model, kind, 1).unwrap(), 1);
            assert!(limit >= publication.deadline(), "{kind:?}");
        }
        let weights = crate::model::MergedWeights::from(Weights::random(&model, Kind::Float, 1).unwrap());
        assert_eq!(most_bytes(&model), weights.bytes());
        // A large model has more time: where it is held is of no matter.
        assert_eq!(Limits::default().update_deadline(20_000_000_000).as_secs(), 600 + 1000);
    }
}
