//! The `PpoJob` manifest as a user writes it: one file per block. The field docs are the manual: they become the
//! descriptions in the CRD, so `kubectl explain ppojob.spec.batch` prints them.

#![allow(
    clippy::duplicated_attributes,
    reason = "each printcolumn of kube's derive has a type_ of its own"
)]

mod adapter;
mod algorithm;
mod batch;
mod checkpoint;
mod correction;
mod data;
mod model;
mod optimizer;
mod overlap;
mod pod_template;
mod policy;
mod reward;
mod roles;

pub use adapter::*;
pub use algorithm::*;
pub use batch::*;
pub use checkpoint::*;
pub use correction::*;
pub use data::*;
pub use model::*;
pub use optimizer::*;
pub use overlap::*;
pub use pod_template::PodTemplate;
pub use policy::*;
pub use reward::*;
pub use roles::*;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::status::PpoJobStatus;

/// Names of most objects of Kubernetes: a DNS subdomain (RFC 1123).
pub(crate) const OBJECT_NAME: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";

/// What to train, how, and on which pods. Only `model.policy`, `prompts.source` and one reward source have no default.
/// Everything that shapes the run is fixed at creation. While it runs these may change: `runPolicy` but for `managedBy`, the engines'
/// `replicas` and `minReplicas`, `failurePolicy`, `scheduling.priorityClassName` and the pod templates, for pods that are made afterwards;
/// the rest of `scheduling` while it is suspended.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[kube(
    group = "ppojob.dev",
    version = "v1alpha1",
    kind = "PpoJob",
    plural = "ppojobs",
    shortname = "ppo",
    category = "all",
    category = "ml",
    namespaced,
    status = "PpoJobStatus",
    derive = "PartialEq",
    doc = "A PPO (or RLOO, GRPO, REINFORCE++) post-training run of a language model: rollout engines generate, the actor learns, \
           the reference and the reward judge.",
    scale(
        spec_replicas_path = ".spec.roles.rollout.replicas",
        status_replicas_path = ".status.rolloutReplicas",
        label_selector_path = ".status.rolloutSelector"
    ),
    printcolumn(
        name = "State",
        type_ = "string",
        json_path = ".status.phase",
        description = "Where the job is in its life"
    ),
    printcolumn(
        name = "Step",
        type_ = "string",
        json_path = ".status.progress.summary",
        description = "Completed steps of all steps"
    ),
    printcolumn(
        name = "Reward",
        type_ = "number",
        format = "double",
        json_path = ".status.progress.reward",
        description = "Mean score of the last step's samples"
    ),
    printcolumn(
        name = "KL",
        type_ = "number",
        format = "double",
        json_path = ".status.progress.kl",
        description = "Mean sequence KL to the reference in the last step"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.ready",
        description = "Ready pods of wanted pods, over all roles"
    ),
    printcolumn(
        name = "Restarts",
        type_ = "integer",
        json_path = ".status.restarts",
        description = "Restarts of pods, roles and job so far"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Queue",
        type_ = "string",
        json_path = ".spec.scheduling.queue",
        description = "Queue of Kueue or Volcano",
        priority = 1
    ),
    printcolumn(
        name = "Gang",
        type_ = "string",
        json_path = ".status.gang",
        description = "Who places its pods",
        priority = 1
    ),
    printcolumn(
        name = "ETA",
        type_ = "integer",
        json_path = ".status.progress.etaSeconds",
        description = "Seconds to the end at the present speed",
        priority = 1
    ),
    printcolumn(
        name = "Failure",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Failed\")].reason",
        description = "Why it failed, in a word",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PpoJobSpec {
    /// The weights: the policy that is trained, and what the critic and the reference start from.
    pub model: ModelSpec,
    /// The training prompts: a JSON Lines, JSON or Parquet file.
    pub prompts: PromptsSpec,
    /// Held-out prompts on which the policy is measured every few steps. Default: no evaluation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<EvaluationSpec>,
    /// How responses are sampled: length, temperature, truncation, stop conditions.
    #[serde(default)]
    pub generation: GenerationSpec,
    /// The PPO maths: advantage estimator, KL penalty, clipping, and whose conventions (`profile`) apply.
    #[serde(default)]
    pub algorithm: AlgorithmSpec,
    /// How many prompts and samples make a step, and the pieces they are computed in. Every division must be exact.
    #[serde(default)]
    pub batch: BatchSpec,
    /// AdamW and its learning-rate schedule, for actor and critic.
    #[serde(default)]
    pub optimizer: OptimizerSpec,
    /// Passes over the prompts; with `batch.dynamicSampling` as many steps as they make of one draw each. Excludes `steps`. 1 to 1000000.
    /// Default: 1 when `steps` is absent.
    /// OpenRLHF `train.num_episodes`, verl `trainer.total_epochs`, TRL `num_train_epochs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub episodes: Option<u32>,
    /// Steps to run (one step: a rollout batch and its updates), however many passes over the prompts that takes.
    /// Excludes `episodes`. 1 to 1000000000. Default: as many as `episodes` take. verl `trainer.total_training_steps`; TRL `total_episodes` counts samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub steps: Option<u64>,
    /// Seed of everything random: sampling, shuffles, a new adapter. 0 to 9007199254740991 (2^53 - 1, the greatest
    /// integer that every JSON reader keeps). Default 42. OpenRLHF `train.seed`, verl `data.seed`, TRL `seed`.
    #[serde(default = "default_seed")]
    #[schemars(range(min = 0, max = 9_007_199_254_740_991i64))]
    pub seed: u64,
    /// Whether the engines draw the next step's samples while the actor learns from this one's: `none` (generation and training
    /// take turns) or `oneStep`. With `oneStep` a step takes as long as the longer of the two instead of their sum, and its
    /// samples, but those of the first step, are of the policy one version before, never of an older one: `ppo_staleness` shows
    /// it, and `algorithm.truncatedImportanceSampling`, on then, corrects for it. It pays where the engines have GPUs or machines
    /// of their own; in one process both share its cores. Default none. OpenRLHF `train.async_enable` (before 0.10
    /// `async_train`) with an `async_queue_size` of 1, verl's recipe `one_step_off_policy`; TRL has none.
    #[serde(default)]
    pub overlap: Overlap,
    /// The four roles: pods and GPUs of actor, reference and rollout engines, and where scores come from.
    pub roles: RolesSpec,
    /// When and where the run's whole state is saved, and how much of it is kept.
    #[serde(default)]
    pub checkpoint: CheckpointSpec,
    /// What the run writes for people to look at, besides its metrics.
    #[serde(default)]
    pub telemetry: TelemetrySpec,
    /// Suspension, deadlines and clean-up. Used on a cluster only.
    #[serde(default)]
    pub run_policy: RunPolicySpec,
    /// Gang scheduling, queue and priority. Used on a cluster only.
    #[serde(default)]
    pub scheduling: SchedulingSpec,
    /// What happens when a pod fails. Used on a cluster only.
    #[serde(default)]
    pub failure_policy: FailurePolicySpec,
}

fn default_seed() -> u64 {
    42
}
