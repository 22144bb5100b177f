//! What runs: a [`PpoJob`](crate::PpoJob) with every default filled in and every rule checked. The pods receive it as JSON,
//! `ppo-worker run -f job.yaml` builds it in place; nothing downstream reads the raw spec.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::spec::{
    Aggregation, DType, Engine, Estimator, GenerationSpec, KlEstimator, KlPlacement, OptimizerSpec, Profile,
    RemoteRewardSpec, RewardRule, TelemetrySpec,
};

/// A validated run. Paths are those of the machine or pod that runs it.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunConfig {
    pub name: String,
    pub seed: u64,
    pub length: RunLength,
    pub model: Model,
    pub prompts: Prompts,
    pub evaluation: Option<Evaluation>,
    pub generation: GenerationSpec,
    pub algorithm: Algorithm,
    pub batch: Batch,
    pub optimizer: OptimizerSpec,
    pub rollout: Rollout,
    pub reward: Reward,
    pub checkpoint: Checkpoint,
    pub telemetry: TelemetrySpec,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum RunLength {
    Episodes(u32),
    Steps(u64),
}

/// Where a model or data file lies: on a disk the process sees, or on the hub.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Location {
    Path(PathBuf),
    Hub { id: String, revision: String },
}

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Model {
    pub policy: Location,
    /// None: no critic (every estimator but gae).
    pub critic: Option<Location>,
    /// None: no reference (the KL coefficient is 0).
    pub reference: Option<Location>,
    pub dtype: DType,
    pub activation_checkpointing: bool,
}

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Prompts {
    pub path: PathBuf,
    pub prompt_field: String,
    pub label_field: Option<String>,
    pub chat_template: bool,
    pub max_length: usize,
    pub shuffle: bool,
}

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Evaluation {
    pub path: PathBuf,
    pub every_steps: u64,
    pub max_prompts: Option<usize>,
    pub temperature: f64,
    pub pass_score: f64,
}

/// The PPO maths with the profile's conventions applied.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Algorithm {
    /// Selects the conventions that have no field of their own (`reference/ppo-math.md` section 2).
    pub profile: Profile,
    pub estimator: Estimator,
    pub gamma: f64,
    pub lambda: f64,
    pub whiten: bool,
    pub kl: Kl,
    pub clip: Clip,
    pub score: Score,
    pub value_coef: f64,
    pub entropy_coef: f64,
    pub aggregation: Aggregation,
    pub truncated_importance_sampling: Option<f64>,
}

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Kl {
    /// 0: no reference, no KL.
    pub coef: f64,
    pub estimator: KlEstimator,
    pub placement: KlPlacement,
    pub controller: KlController,
    pub clamp: Option<f64>,
    pub stop_above: Option<f64>,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub enum KlController {
    Fixed,
    Adaptive { target: f64, horizon: f64 },
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Clip {
    pub policy_low: f64,
    pub policy_high: f64,
    pub dual: Option<f64>,
    pub value: Option<f64>,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Score {
    /// (least, greatest)
    pub clip: Option<(f64, f64)>,
    pub scale: f64,
    pub missing_eos_penalty: Option<f64>,
    pub whiten_rewards: bool,
}

/// Batch arithmetic with every quotient exact.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Batch {
    /// Prompts per step.
    pub rollout_batch_size: usize,
    pub n_samples_per_prompt: usize,
    pub micro_rollout_batch_size: usize,
    /// Samples per update, over all ranks.
    pub train_batch_size: usize,
    pub micro_train_batch_size: usize,
    pub ppo_epochs: usize,
}

impl Batch {
    /// Samples of one step.
    pub fn samples_per_step(&self) -> usize {
        self.rollout_batch_size * self.n_samples_per_prompt
    }

    /// Optimizer updates in one pass over a step's samples.
    pub fn updates_per_epoch(&self) -> usize {
        self.samples_per_step() / self.train_batch_size
    }
}

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rollout {
    pub engine: Engine,
    pub replicas: usize,
    pub min_replicas: usize,
    pub block_size: usize,
    pub max_batch_tokens: usize,
    pub max_sequences: usize,
    pub kv_cache_mebibytes: Option<u64>,
}

/// Sources of the score; their weighted sum is the score.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Reward {
    pub model: Option<RewardModel>,
    pub rules: Vec<RewardRule>,
    pub remote: Option<RemoteRewardSpec>,
}

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RewardModel {
    pub source: Location,
    pub weight: f64,
}

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Checkpoint {
    /// None: `checkpoints` below the run's folder.
    pub path: Option<PathBuf>,
    pub every_steps: u64,
    pub keep: usize,
    pub keep_best: bool,
}
