//! What a rollout server runs with, from flags or from a pod's environment.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ppo_crds::RunConfig;
use ppo_crds::run_config::{Location, Rollout};
use ppo_crds::spec::{DType, Engine, Role};

use super::actor::Actor;
use crate::pace;
use crate::serving::limits::Limits;

/// The name under which a job's policy is served, as the operator starts vLLM with.
pub const POLICY: &str = "policy";

/// Tokens computed at once, and sequences that run at once, where nothing else is said: vLLM's defaults.
pub const MAX_BATCH_TOKENS: usize = 2048;
/// See [`MAX_BATCH_TOKENS`].
pub const MAX_SEQUENCES: usize = 256;
/// Memory of a cache on a CPU where nothing else is said, as vLLM's, unless one sequence of the longest takes more.
pub const KV_CACHE_MEBIBYTES: u64 = 4096;

/// Everything of one server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the API is served.
    pub address: SocketAddr,
    /// Where `/metrics`, `/healthz` and `/readyz` are served without a token. None: on `address` alone.
    pub metrics_address: Option<SocketAddr>,
    /// Bearer token of callers.
    pub token: Option<String>,
    /// `/metrics` on `address` needs no token.
    pub open_metrics: bool,
    /// What is served.
    pub model: ModelSettings,
    /// Bounds.
    pub limits: Limits,
    /// The job's actor, whose weights are followed; None where there is no job.
    pub actor: Option<Actor>,
    /// The vLLM that this server is the door of; None: it generates itself.
    pub vllm: Option<VllmSettings>,
}

/// A vLLM on this machine.
#[derive(Clone, Debug)]
pub struct VllmSettings {
    /// Its `host:port`, which nobody else reaches.
    pub address: String,
    /// Where new weights are written for it.
    pub folder: PathBuf,
    /// For it to load the model and to answer.
    pub start_deadline: Duration,
}

/// The model and how its engine is built.
#[derive(Clone, Debug)]
pub struct ModelSettings {
    /// Its folder or its name on the hub.
    pub location: Location,
    /// The name that clients use.
    pub served_name: String,
    /// Precision; None: as the model was saved.
    pub dtype: Option<DType>,
    /// Longest sequence; None: the model's own.
    pub max_length: Option<usize>,
    /// Sequences that the cache has room for where its size is not given, at most those that run at once; None: those.
    pub sequences: Option<usize>,
    /// Limits of the engine.
    pub rollout: Rollout,
    /// Of no job: where `rollout` names no size, a cache on a CPU is at most [as large as is usual](KV_CACHE_MEBIBYTES), and sequences are
    /// as long as the cache holds. A job's are as its manifest says, or refused.
    pub alone: bool,
    /// See [`PolicyEngine::start_deadline`](crate::engine::PolicyEngine::start_deadline).
    pub start_deadline: Duration,
}

impl ModelSettings {
    /// The policy of a job, as its pods serve it.
    pub fn of_job(config: &RunConfig) -> Self {
        let length = config.prompts.max_length + config.generation.max_new_tokens as usize;
        Self {
            location: config.model.policy.clone(),
            served_name: POLICY.to_owned(),
            dtype: Some(config.dtype(Role::Rollout)),
            max_length: Some(length),
            sequences: Some(config.batch.samples_per_step()),
            rollout: config.rollout.clone(),
            alone: false,
            start_deadline: pace::LEAST,
        }
    }

    /// A model of one's own with default limits.
    pub fn alone(location: Location, served_name: String) -> Self {
        Self {
            location,
            served_name,
            dtype: None,
            max_length: None,
            sequences: None,
            rollout: Rollout {
                engine: Engine::Builtin,
                replicas: 1,
                min_replicas: 1,
                block_size: crate::engine::native_runner::BLOCK_SIZE,
                max_batch_tokens: MAX_BATCH_TOKENS,
                max_sequences: MAX_SEQUENCES,
                kv_cache_mebibytes: None,
                dtype: None,
            },
            alone: true,
            start_deadline: pace::LEAST,
        }
    }
}
