//! Weights out of a stream, tensor by tensor.

use std::time::Duration;

use axum::body::Bytes;
use futures::Stream;
use tch::Tensor;

use super::digest::digest;
use super::incoming::Incoming;
use crate::model::Weights;
use crate::rollout::error::ApiError;
use crate::rollout::model::Model;

/// Reads and checks them: the header must be exactly the model's tensors before a byte of them is read, so memory is
/// bounded by the model's own size and one tensor.
///
/// # Errors
/// 400 when they are not the model's tensors, or their bytes changed on the way.
pub async fn receive<S, E>(model: &Model, stream: S, patience: Duration) -> Result<(Weights, String), ApiError>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
    E: std::fmt::Display,
{
    let mut incoming = Incoming::new(stream, patience);
    let (_, plan) = incoming.header(&model.config).await?;
    let mut weights = Weights::default();
    for planned in plan {
        let bytes = incoming.take(planned.bytes).await?;
        let kind = model.kind;
        let place = format!("tensor {}", planned.name);
        let convert = move || Tensor::f_from_data_size(&bytes, &planned.shape, planned.stored)?.f_to_kind(kind);
        let tensor = tokio::task::spawn_blocking(convert)
            .await
            .map_err(ApiError::internal)?
            .map_err(|error| ApiError::internal(format!("{place}: {error}")))?;
        weights.0.insert(planned.name, tensor);
    }
    incoming.check_end().await?;
    let hashed = tokio::task::spawn_blocking(move || digest(&weights).map(|digest| (weights, digest)));
    hashed
        .await
        .map_err(ApiError::internal)?
        .map_err(|error| ApiError::internal(format!("{error:#}")))
}
