//! The `PpoJob` manifest as a user writes it: one file per block.

mod algorithm;
mod batch;
mod checkpoint;
mod data;
mod model;
mod optimizer;
mod policy;
mod reward;
mod roles;

pub use algorithm::*;
pub use batch::*;
pub use checkpoint::*;
pub use data::*;
pub use model::*;
pub use optimizer::*;
pub use policy::*;
pub use reward::*;
pub use roles::*;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A PPO post-training run of a language model.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[kube(
    group = "ppojob.dev",
    version = "v1alpha1",
    kind = "PpoJob",
    plural = "ppojobs",
    shortname = "ppo",
    category = "all",
    category = "ml",
    namespaced
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PpoJobSpec {
    pub model: ModelSpec,
    pub prompts: PromptsSpec,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<EvaluationSpec>,
    #[serde(default)]
    pub generation: GenerationSpec,
    #[serde(default)]
    pub algorithm: AlgorithmSpec,
    #[serde(default)]
    pub batch: BatchSpec,
    #[serde(default)]
    pub optimizer: OptimizerSpec,
    /// Passes over the prompts. Excludes `steps`. Default: 1 when `steps` is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub episodes: Option<u32>,
    /// Steps to run, however many episodes that takes. Excludes `episodes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// Seed of everything random: sampling, shuffles, initial value head. Default 42.
    #[serde(default = "default_seed")]
    pub seed: u64,
    pub roles: RolesSpec,
    #[serde(default)]
    pub checkpoint: CheckpointSpec,
    #[serde(default)]
    pub telemetry: TelemetrySpec,
    #[serde(default)]
    pub run_policy: RunPolicySpec,
    #[serde(default)]
    pub scheduling: SchedulingSpec,
    #[serde(default)]
    pub failure_policy: FailurePolicySpec,
}

fn default_seed() -> u64 {
    42
}
