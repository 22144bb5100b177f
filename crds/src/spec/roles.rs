//! `spec.roles`: pods and GPUs of the four roles.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DType, PodTemplate, RewardSpec, Role, pod_template};

/// The four roles. On one machine (`ppo-worker run`) all of them share the process, and pods and GPUs only size the batches.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RolesSpec {
    /// The pods that learn: policy and critic, data-parallel over all their GPUs. OpenRLHF `actor.*`, verl `trainer.*`.
    #[serde(default)]
    pub actor: PodPlacement,
    /// The pods of the frozen reference; none exist when `algorithm.kl.coef` is 0. OpenRLHF `ref.*`.
    #[serde(default)]
    pub reference: ReferenceSpec,
    /// The engines that generate. OpenRLHF `vllm.num_engines`, verl `actor_rollout_ref.rollout`.
    #[serde(default)]
    pub rollout: RolloutSpec,
    /// Where scores come from.
    pub reward: RewardSpec,
}

impl RolesSpec {
    /// Where each role's template is.
    pub const TEMPLATES: [(Role, &str); 4] = [
        (Role::Actor, "spec.roles.actor.template"),
        (Role::Reference, "spec.roles.reference.template"),
        (Role::Rollout, "spec.roles.rollout.template"),
        (Role::Reward, "spec.roles.reward.placement.template"),
    ];

    /// The template that a role's pods start from; None: the operator's.
    pub fn template(&self, role: Role) -> Option<&PodTemplate> {
        let template = match role {
            Role::Actor => &self.actor.template,
            Role::Reference => &self.reference.template,
            Role::Rollout => &self.rollout.template,
            Role::Reward => &self.reward.placement.template,
        };
        template.as_ref()
    }
}

/// Pods and GPUs of a role.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PodPlacement {
    /// Pods. One that asks for all GPUs of a node has it for itself; smaller ones may share a node, unless the template keeps them apart, by
    /// `topologySpreadConstraints` or `podAntiAffinity` over the labels `ppojob.dev/job` and `ppojob.dev/role`. 1 to 1024. Default 1.
    /// OpenRLHF `actor.num_nodes` and `reward.num_nodes`, verl `trainer.nnodes` (the actor's).
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1024))]
    pub nodes: u32,
    /// GPUs of each pod, one rank each: a share of the actor's samples, or a copy of the reward's model. 0 runs the role on the CPU with one
    /// rank per pod. 0 to 64. Default 1. OpenRLHF `actor.num_gpus_per_node` and `reward.num_gpus_per_node`, verl
    /// `trainer.n_gpus_per_node` (the actor's).
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 64))]
    pub gpus_per_node: u32,
    /// Pod template that the role's pods start from: image, resources, volumes, node selection, as in a Deployment. The
    /// operator adds the container `worker`, its command, environment and probes; of a probe that gives times
    /// alone the operator's question is kept, and `args` without a `command` are further flags of the role's own command, such as
    /// `[--threads, "8"]`. Default: the operator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "pod_template::schema")]
    pub template: Option<PodTemplate>,
}

impl PodPlacement {
    /// Processes of the role: one per GPU, or one per pod on the CPU.
    pub fn ranks(&self) -> u64 {
        u64::from(self.nodes) * u64::from(self.gpus_per_node.max(1))
    }
}

impl Default for PodPlacement {
    fn default() -> Self {
        Self {
            nodes: 1,
            gpus_per_node: 1,
            template: None,
        }
    }
}

/// The frozen reference.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReferenceSpec {
    /// Pods. One that asks for all GPUs of a node has it for itself; smaller ones may share a node, unless the template keeps them apart, by
    /// `topologySpreadConstraints` or `podAntiAffinity` over the labels `ppojob.dev/job` and `ppojob.dev/role`. 1 to 1024. Default 1.
    /// OpenRLHF `ref.num_nodes`.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1024))]
    pub nodes: u32,
    /// GPUs of each pod, with a copy of the reference on each. 0 runs it on the CPU. 0 to 64. Default 1. OpenRLHF `ref.num_gpus_per_node`.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 64))]
    pub gpus_per_node: u32,
    /// Number format of the reference's weights and activations: `bfloat16` or `float32`. Its log-probs are float32 either way, and
    /// bfloat16 takes half the memory. Where it is another one than `model.dtype`, reference and policy differ by rounding before anything
    /// is learnt, and the KL does not start at 0. A run goes on only with the one that it began with. With `model.adapter` the reference is the
    /// actor's own weights, so another one than `model.dtype` is refused. Default: `model.dtype`. verl
    /// `actor_rollout_ref.ref.fsdp_config.dtype`; OpenRLHF has one for all models, `ds.param_dtype`, and TRL no setting of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "DType")]
    pub dtype: Option<DType>,
    /// Pod template that the role's pods start from: image, resources, volumes, node selection, as in a Deployment. The
    /// operator adds the container `worker`, its command, environment and probes; of a probe that gives times
    /// alone the operator's question is kept, and `args` without a `command` are further flags of the role's own command, such as
    /// `[--threads, "8"]`. Default: the operator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "pod_template::schema")]
    pub template: Option<PodTemplate>,
}

impl Default for ReferenceSpec {
    fn default() -> Self {
        Self {
            nodes: 1,
            gpus_per_node: 1,
            dtype: None,
            template: None,
        }
    }
}

/// The engines that generate.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RolloutSpec {
    /// What generates: `builtin` (this project's engine) or `vllm` (real vLLM pods behind our door). Default builtin.
    /// verl `actor_rollout_ref.rollout.name`, TRL `use_vllm`.
    #[serde(default)]
    pub engine: Engine,
    /// Engines, one pod each; must divide `batch.rolloutBatchSize` when the job is made. `kubectl scale ppojob` changes it to any number
    /// afterwards: prompts are dealt to however many engines there are. 1 to 1024. Default 1. OpenRLHF `vllm.num_engines`.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1024))]
    pub replicas: u32,
    /// GPUs of each engine, over which vLLM splits the model; the builtin engine computes on one. 0 runs it on the CPU. 0 to 64. Default 1. OpenRLHF
    /// `vllm.tensor_parallel_size`, verl `actor_rollout_ref.rollout.tensor_model_parallel_size`,
    /// TRL `vllm_tensor_parallel_size`.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 64))]
    pub gpus_per_replica: u32,
    /// Number format of an engine's weights, activations and cache: `bfloat16` or `float32`. The actor publishes its weights in
    /// `model.dtype`, and an engine of another format converts them as they arrive, so it draws from a policy that is rounded otherwise than
    /// the actor's. The actor learns by log-probs of its own; how far those of the engine are from them are the metrics `ppo_logprob_difference`
    /// and `ppo_logprob_difference_max`, and `algorithm.truncatedImportanceSampling` weighs samples for it. A run on one machine may go on from a
    /// checkpoint with another one, as with another `engine`, and says so; in a cluster it is fixed with the job. Default: `model.dtype`.
    /// verl `actor_rollout_ref.rollout.dtype`, vLLM `dtype`; OpenRLHF has one for all models, `ds.param_dtype`, and TRL no setting of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "DType")]
    pub dtype: Option<DType>,
    /// Engines that must be ready for the run to go on when others fail. 1 to `replicas`. A raised one counts for the actor from its next
    /// start (`kubectl ppo restart-role`); for a lowered one an actor that waits is made anew, without counting as a restart, where its checkpoints
    /// outlive its pod. Default 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1024))]
    pub min_replicas: u32,
    /// Tokens per block of the paged key/value cache. The builtin engine's is 16; `vllm` takes 1 to 1024. Default 16. vLLM
    /// `block_size`.
    #[serde(default = "default_block")]
    #[schemars(range(min = 1, max = 1024))]
    pub block_size: u32,
    /// Tokens the engine computes at once: prefill is admitted under this budget. 1 to 16777216. Default 8192. vLLM
    /// `max_num_batched_tokens`.
    #[serde(default = "default_tokens")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub max_batch_tokens: u32,
    /// Sequences that run at once in an engine. 1 to 65536. Default 256. vLLM `max_num_seqs`.
    #[serde(default = "default_sequences")]
    #[schemars(range(min = 1, max = 65_536))]
    pub max_sequences: u32,
    /// Memory of an engine's key/value cache over all its GPUs, in MiB. 1 to 16777216. Default: what the samples of a step (at most
    /// `maxSequences`) need at full length; with `engine: vllm` on GPUs vLLM's own, what is left of nine tenths of each GPU
    /// (`gpu_memory_utilization`), and on a CPU 4096. vLLM `kv_cache_memory_bytes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub kv_cache_mebibytes: Option<u64>,
    /// Pod template that the engines' pods start from: image, resources, volumes, node selection, as in a Deployment. The
    /// operator adds the container `worker`, its command, environment and probes; of a probe that gives times
    /// alone the operator's question is kept, and `args` without a `command` are further flags of the role's own command, such as
    /// `[--threads, "8"]`. With `engine: vllm` the container `vllm`, which loads the model, also has what `worker` mounts, where nothing of
    /// its own is, and its variables `HF_*`, `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY`. Default: the operator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "pod_template::schema")]
    pub template: Option<PodTemplate>,
}

impl Default for RolloutSpec {
    fn default() -> Self {
        Self {
            engine: Engine::Builtin,
            replicas: 1,
            gpus_per_replica: 1,
            dtype: None,
            min_replicas: 1,
            block_size: default_block(),
            max_batch_tokens: default_tokens(),
            max_sequences: default_sequences(),
            kv_cache_mebibytes: None,
            template: None,
        }
    }
}

/// What generates.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// This project's engine.
    #[default]
    Builtin,
    /// Real vLLM.
    Vllm,
}

impl Engine {
    /// Size of the key/value cache in MiB that an engine is told, over all its GPUs, where the manifest says `given`. None: the engine finds
    /// it. A vLLM without GPUs is never left to find it: it would take nine tenths of its node's memory, whatever its container may have, and
    /// not start where that is not free (`vllm/v1/worker/cpu_worker.py`).
    pub fn cache_mebibytes(self, gpus: u64, given: Option<u64>) -> Option<u64> {
        match self {
            Engine::Vllm if gpus == 0 => given.or(Some(4096)),
            Engine::Vllm | Engine::Builtin => given,
        }
    }
}

fn one() -> u32 {
    1
}
fn default_block() -> u32 {
    16
}
fn default_tokens() -> u32 {
    8192
}
fn default_sequences() -> u32 {
    256
}
