//! Weights out of a stream, tensor by tensor.

use std::time::Duration;

use axum::body::Bytes;
use futures::Stream;
use tch::{Kind, Tensor};

use super::digest::Hash;
use super::incoming::{Incoming, Planned};
use crate::model::Weights;
use crate::native::filled::Filled;
use crate::native::threads::blocking;
use crate::rollout::error::ApiError;
use crate::rollout::model::Model;

/// Reads and checks them: the header must be exactly the model's tensors before a byte of them is read, so memory is
/// bounded by the model's own size and one tensor. Their digest is of the numbers as they were sent.
///
/// # Errors
/// 400 when they are not the model's tensors, or their bytes changed on the way.
pub async fn receive<S, E>(model: &Model, stream: S, patience: Duration) -> Result<(Weights, Hash), ApiError>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
    E: std::fmt::Display,
{
    let mut incoming = Incoming::new(stream, patience);
    let (_, plan) = incoming.header(&model.config).await?;
    let mut weights = Weights::default();
    for planned in plan {
        let place = |error: anyhow::Error| ApiError::internal(format!("tensor {}: {error:#}", planned.name));
        let mut filled = Filled::new(&planned.shape, planned.stored).map_err(place)?;
        while filled.left() > 0 {
            let piece = incoming.piece(filled.left()).await?;
            filled.extend(&piece).map_err(place)?;
        }
        incoming.end_tensor(&planned);
        let tensor = filled.tensor().map_err(place)?;
        weights
            .0
            .insert(planned.name.clone(), converted(tensor, model.kind, &planned).await?);
    }
    Ok((weights, incoming.check_end().await?))
}

/// In the engine's kind, computed where blocking is allowed when it is another than was sent.
async fn converted(tensor: Tensor, kind: Kind, planned: &Planned) -> Result<Tensor, ApiError> {
    if tensor.kind() == kind {
        return Ok(tensor);
    }
    let converted = blocking(move || tensor.f_to_kind(kind)).await;
    converted
        .map_err(ApiError::internal)?
        .map_err(|error| ApiError::internal(format!("tensor {}: {error}", planned.name)))
}
