//! Weights that go from the actor's GPU to vLLM's by NCCL (`vllm/distributed/weight_transfer/nccl_engine.py` of 0.32 and 0.33): no file and no
//! copy in the machine's memory. The actor is rank 0 of a communicator with vLLM's workers; the door tells vLLM when to
//! [join](join) it and when to [receive](receive), while the actor does its part ([`crate::roles::Transfers`]). They come in the actor's
//! number format: vLLM receives each tensor in the one that it is told, and its loader copies that into parameters of its own.

use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::service::Service;
use crate::model::MergedWeights;
use crate::model::config::dtype_name;
use crate::rollout::weights::attempt::PolicyVersion;
use crate::rollout::weights::incoming::most_bytes;
use crate::serving::body;
use crate::serving::error::ApiError;
use crate::serving::query::Query;

/// What a worker needs to join: `NCCLWeightTransferInitInfo`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct InitInfo {
    /// Of the communicator: 128 bytes of `ncclGetUniqueId`.
    pub nccl_unique_id_b64: String,
    /// Rank of vLLM's first worker.
    pub rank_offset: usize,
    /// Ranks: the actor's and those of all workers.
    pub world_size: usize,
    /// Whether tensors come several in one: they come one by one.
    pub packed: bool,
}

/// Body of `POST /init_weight_transfer_engine`, as vLLM has it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Init {
    /// See [`InitInfo`].
    pub init_info: InitInfo,
}

/// Query of `POST /init_weight_transfer_engine`, for the door alone.
#[derive(Debug, Default, Deserialize)]
pub struct InitQuery {
    /// The actor's attempt.
    pub attempt: Option<u32>,
}

/// The tensors in the order in which they are sent: `NCCLWeightTransferUpdateInfo`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct UpdateInfo {
    /// Hugging Face names.
    pub names: Vec<String>,
    /// Names of torch's dtypes.
    pub dtype_names: Vec<String>,
    /// Of the whole tensors.
    pub shapes: Vec<Vec<i64>>,
}

impl UpdateInfo {
    /// Of these tensors, in order of names. None where one is of a kind that vLLM is not given.
    pub fn of(weights: &MergedWeights) -> Option<Self> {
        let mut info = Self::default();
        for (name, tensor) in weights.iter() {
            info.names.push(name.clone());
            info.dtype_names.push(dtype_name(tensor.weight.kind())?.to_owned());
            info.shapes.push(tensor.weight.size());
        }
        Some(info)
    }
}

/// Body of `POST /update_weights` where it is JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Transfer {
    /// The communicator that they come by.
    pub nccl_unique_id_b64: String,
    /// See [`UpdateInfo`].
    pub update_info: UpdateInfo,
}

/// Answer of `GET /get_world_size`.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct WorldSize {
    /// vLLM's workers, one for each GPU.
    pub world_size: usize,
}

/// How the door says that it is another engine than the one that joined, under the same name.
pub const NOT_JOINED: &str = "vLLM has not joined this communicator";

/// For vLLM to join: the actor comes at the same time.
pub const JOIN: Duration = Duration::from_secs(60);

/// `POST /init_weight_transfer_engine`: vLLM joins the actor's communicator, and leaves the one before. Returns when all ranks have come.
///
/// # Errors
/// 409 while weights are received, and for an older attempt of the actor; what vLLM says; 504 when it does not come back, and then the door
/// ends.
pub async fn join(
    State(service): State<Service>,
    Query(query): Query<InitQuery>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    service.model()?;
    let init: Init = body::json(&service.bodies, request).await?;
    let it = service.clone();
    let joining = async move {
        it.newest_attempt.admit(query.attempt)?;
        it.set_joined(None);
        it.vllm.leave().await?;
        match tokio::time::timeout(JOIN, it.vllm.join(&init, 2 * JOIN)).await {
            Ok(joined) => joined?,
            Err(_) => {
                it.end("vLLM does not come back from joining the actor's communicator".into());
                return Err(ApiError::late(JOIN));
            }
        }
        tracing::info!("vLLM gets its weights by NCCL");
        it.set_joined(Some(init.init_info.nccl_unique_id_b64));
        Ok(Json(json!({})))
    };
    service.alone(joining).await
}

/// Receives the weights `policy` by the communicator that vLLM has joined.
///
/// # Errors
/// 409 when it has joined another one or none, while weights are received, and for weights of an older attempt of the actor: nothing has
/// changed then. What vLLM says: the door ends then, because vLLM may wait for the rest of the weights for ever.
pub async fn receive(service: &Service, policy: PolicyVersion, transfer: Transfer) -> Result<(), ApiError> {
    let it = service.clone();
    let receiving = async move {
        it.newest_attempt.admit(policy.attempt)?;
        if !it.has_joined(&transfer.nccl_unique_id_b64) {
            return Err(ApiError::new(StatusCode::CONFLICT, NOT_JOINED));
        }
        let version = policy.version;
        let began = Instant::now();
        let limit = it.limits.update_deadline(most_bytes(it.model()?));
        let taking = async {
            let taken = it.vllm.receive(&transfer.update_info, version, limit).await;
            taken.inspect_err(|error| it.end(format!("vLLM's weights are in doubt: {error}")))
        };
        it.change(policy, taking).await?;
        let seconds = began.elapsed().as_secs_f64();
        tracing::info!("vLLM has the weights of version {version} by NCCL; it took {seconds:.3} s");
        Ok(())
    };
    service.alone(receiving).await
}

#[cfg(test)]
mod tests;
