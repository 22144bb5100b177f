//! Weights out of the body of a request, tensor by tensor.

use axum::body::BodyDataStream;
use axum::extract::Request;
use futures::StreamExt;
use safetensors::Dtype;
use safetensors::tensor::Metadata;
use sha2::{Digest, Sha256};
use tch::{Kind, Tensor};

use super::digest::digest;
use super::frame::{DIGEST, LONGEST_HEADER};
use crate::model::{Weights, names};
use crate::rollout::error::ApiError;
use crate::rollout::model::Model;
use crate::rollout::service::Service;

/// Reads and checks the body: its header must be exactly the model's tensors before a byte of them is read, so memory is
/// bounded by the model's own size and one tensor.
///
/// # Errors
/// 400 when they are not the model's tensors, or their bytes changed on the way.
pub async fn receive(service: &Service, request: Request) -> Result<(Weights, String), ApiError> {
    let model = service.model()?;
    let mut stream = ByteStream {
        service,
        body: request.into_body().into_data_stream(),
        buffer: Vec::new(),
        at: 0,
        hash: Sha256::new(),
    };
    let length = stream.take(8).await?;
    let length = u64::from_le_bytes(length.as_slice().try_into().map_err(|_| broken("its length"))?);
    let length = usize::try_from(length)
        .ok()
        .filter(|length| *length <= LONGEST_HEADER)
        .ok_or_else(|| ApiError::bad(format!("a header of {length} bytes is no safetensors header")))?;
    let header = stream.take(length).await?;
    let metadata: Metadata = serde_json::from_slice(&header)
        .map_err(|error| ApiError::bad(format!("the header is no safetensors header: {error}")))?;
    let plan = plan(model, &metadata)?;
    let mut weights = Weights::default();
    for planned in plan {
        let bytes = stream.take(planned.bytes).await?;
        let kind = model.kind;
        let place = format!("tensor {}", planned.name);
        let convert = move || Tensor::f_from_data_size(&bytes, &planned.shape, planned.stored)?.f_to_kind(kind);
        let tensor = tokio::task::spawn_blocking(convert)
            .await
            .map_err(ApiError::internal)?
            .map_err(|error| ApiError::internal(format!("{place}: {error}")))?;
        weights.0.insert(planned.name, tensor);
    }
    stream.check_end().await?;
    let hashed = tokio::task::spawn_blocking(move || digest(&weights).map(|digest| (weights, digest)));
    hashed
        .await
        .map_err(ApiError::internal)?
        .map_err(|error| ApiError::internal(format!("{error:#}")))
}

/// A tensor to come.
struct Planned {
    name: String,
    shape: Vec<i64>,
    stored: Kind,
    bytes: usize,
}

/// The tensors in the order in which they come; exactly the model's.
fn plan(model: &Model, metadata: &Metadata) -> Result<Vec<Planned>, ApiError> {
    let mut missing = names::expected(&model.config);
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
        "these are not the weights of {}: {}; the old weights stay",
        model.name,
        wrong.join(", ")
    )))
}

/// The body as bytes to take.
struct ByteStream<'a> {
    service: &'a Service,
    body: BodyDataStream,
    buffer: Vec<u8>,
    /// Bytes of `buffer` that are taken.
    at: usize,
    hash: Sha256,
}

impl ByteStream<'_> {
    /// The next `count` bytes, hashed.
    async fn take(&mut self, count: usize) -> Result<Vec<u8>, ApiError> {
        let taken = self.take_unhashed(count).await?;
        self.hash.update(&taken);
        Ok(taken)
    }

    async fn take_unhashed(&mut self, count: usize) -> Result<Vec<u8>, ApiError> {
        // Grows with what arrives: a header's promise reserves nothing.
        let mut taken = Vec::new();
        while taken.len() < count {
            if self.at == self.buffer.len() {
                self.buffer = self
                    .next()
                    .await?
                    .ok_or_else(|| broken("the bytes that its header promises"))?;
                self.at = 0;
            }
            let end = self.buffer.len().min(self.at + count - taken.len());
            taken.extend_from_slice(self.buffer.get(self.at..end).unwrap_or_default());
            self.at = end;
        }
        Ok(taken)
    }

    /// What arrived next; None at the end of the body. A client that sends nothing for long is cut.
    async fn next(&mut self) -> Result<Option<Vec<u8>>, ApiError> {
        let limit = self.service.limits.body_timeout;
        match tokio::time::timeout(limit, self.body.next()).await {
            Ok(None) => Ok(None),
            Ok(Some(Ok(bytes))) => Ok(Some(bytes.into())),
            Ok(Some(Err(error))) => Err(ApiError::bad(format!(
                "the stream broke off: {error}; the old weights stay"
            ))),
            Err(_) => Err(ApiError::new(
                axum::http::StatusCode::REQUEST_TIMEOUT,
                format!("nothing arrived for {} s; the old weights stay", limit.as_secs_f64()),
            )),
        }
    }

    /// After the tensors comes their digest, and then nothing.
    async fn check_end(mut self) -> Result<(), ApiError> {
        let sent = self.take_unhashed(DIGEST).await?;
        let found = std::mem::take(&mut self.hash).finalize();
        if sent != found[..] {
            return Err(ApiError::bad(
                "the SHA-256 at the end of the stream is not that of what arrived: send it again; the old weights stay",
            ));
        }
        if self.at < self.buffer.len() || self.next().await?.is_some_and(|more| !more.is_empty()) {
            return Err(ApiError::bad(
                "there are bytes behind the stream's digest; the old weights stay",
            ));
        }
        Ok(())
    }
}

fn broken(what: &str) -> ApiError {
    ApiError::bad(format!("the stream ended before {what}; the old weights stay"))
}
