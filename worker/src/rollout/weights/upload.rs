//! Weights out of a stream, tensor by tensor.

use std::time::Duration;

use anyhow::Context;
use axum::body::Bytes;
use futures::Stream;
use tokio::sync::mpsc::{self, Receiver, Sender};

use super::incoming::{Incoming, Planned};
use crate::engine::staging::{NewWeights, Staging};
use crate::model::digest::Hash;
use crate::native::threads::blocking;
use crate::rollout::model::Model;
use crate::serving::error::ApiError;

/// Bytes that are handed over to be packed at once: sockets give tens of thousands at a time, and to wake a thread costs as much as to pack
/// those.
const BATCH: usize = 1 << 20;
/// Batches that have arrived and wait to be packed.
const BATCHES_AHEAD: usize = 2;

/// Reads and checks them: the header must be exactly the model's tensors before a byte of them is read, so memory is
/// bounded by the model's own size and one tensor. Their digest is of the numbers as they were sent.
///
/// # Errors
/// 400 when they are not the model's tensors, or their bytes changed on the way.
pub async fn receive<S, E>(model: &Model, stream: S, patience: Duration) -> Result<(NewWeights, Hash), ApiError>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
    E: std::fmt::Display,
{
    let mut incoming = Incoming::new(stream, patience);
    let (_, plan) = incoming.header(&model.config).await?;
    let staging = model.engine.stage(model.kind).await?;
    let (batches, arrived) = mpsc::channel(BATCHES_AHEAD);
    // One reads and hashes while the other packs.
    let packing = blocking({
        let plan = plan.clone();
        move || pack(staging, &plan, arrived)
    });
    let (read, packed) = futures::join!(read(incoming, &plan, batches), packing);
    let packed = packed.map_err(ApiError::internal)?;
    // A stream that broke off is the reason why packing had too little, and packing that gave up why not all was read.
    let digest = read?;
    let weights = packed.map_err(|error| ApiError::internal(format!("{error:#}; the old weights stay")))?;
    let digest = digest.ok_or_else(|| ApiError::internal("not all of the weights were packed; the old ones stay"))?;
    Ok((weights, digest))
}

/// Hands on the pieces of all tensors. None: whoever takes them gave up.
async fn read<S, E>(
    mut incoming: Incoming<S>,
    plan: &[Planned],
    batches: Sender<Vec<Bytes>>,
) -> Result<Option<Hash>, ApiError>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
    E: std::fmt::Display,
{
    let (mut batch, mut gathered) = (Vec::new(), 0);
    for tensor in plan {
        let mut left = tensor.bytes;
        while left > 0 {
            let piece = incoming.piece(left).await?;
            left -= piece.len();
            gathered += piece.len();
            batch.push(piece);
            if gathered >= BATCH {
                gathered = 0;
                if batches.send(std::mem::take(&mut batch)).await.is_err() {
                    return Ok(None);
                }
            }
        }
        incoming.end_tensor(tensor);
    }
    if batches.send(batch).await.is_err() {
        return Ok(None);
    }
    drop(batches);
    incoming.check_end().await.map(Some)
}

fn pack(mut staging: Staging, plan: &[Planned], mut batches: Receiver<Vec<Bytes>>) -> anyhow::Result<NewWeights> {
    let mut batch = Vec::new().into_iter();
    let mut next = || loop {
        if let Some(piece) = batch.next() {
            return anyhow::Ok(piece);
        }
        let arrived = batches.blocking_recv().context("the stream ended before it")?;
        batch = arrived.into_iter();
    };
    for tensor in plan {
        let taken = staging.take(&tensor.name, &tensor.shape, tensor.stored, &mut next);
        taken.with_context(|| format!("tensor {}", tensor.name))?;
    }
    Ok(staging.finish())
}
