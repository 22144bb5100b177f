//! `spec.roles`: pods and GPUs of the four roles.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::RewardSpec;

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RolesSpec {
    #[serde(default)]
    pub actor: PodPlacement,
    #[serde(default)]
    pub reference: PodPlacement,
    #[serde(default)]
    pub rollout: RolloutSpec,
    pub reward: RewardSpec,
}

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PodPlacement {
    #[serde(default = "one")]
    pub nodes: u32,
    /// 0 runs the role on the CPU. Default 1.
    #[serde(default = "one")]
    pub gpus_per_node: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<PodTemplateSpec>,
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

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RolloutSpec {
    #[serde(default)]
    pub engine: Engine,
    #[serde(default = "one")]
    pub replicas: u32,
    #[serde(default = "one")]
    pub gpus_per_replica: u32,
    #[serde(default = "one")]
    pub min_replicas: u32,
    /// Tokens per block of the paged KV cache.
    #[serde(default = "default_block")]
    pub block_size: u32,
    /// Tokens the engine computes at once: prefill is admitted under this budget.
    #[serde(default = "default_tokens")]
    pub max_batch_tokens: u32,
    /// Sequences that run at once.
    #[serde(default = "default_sequences")]
    pub max_sequences: u32,
    /// Memory of the KV cache. Default: what `maxSequences` of full length need, at most half of the free memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_cache_mebibytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<PodTemplateSpec>,
}

impl Default for RolloutSpec {
    fn default() -> Self {
        Self {
            engine: Engine::Builtin,
            replicas: 1,
            gpus_per_replica: 1,
            min_replicas: 1,
            block_size: default_block(),
            max_batch_tokens: default_tokens(),
            max_sequences: default_sequences(),
            kv_cache_mebibytes: None,
            template: None,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    #[default]
    Builtin,
    Vllm,
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
