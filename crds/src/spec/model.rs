//! `spec.model`: which weights, in which precision.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::AdapterSpec;

/// The weights: the policy that is trained, and what the critic and the reference start from.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelSpec {
    /// The policy to train: a folder in Hugging Face layout (config.json, tokenizer.json, safetensors) of the Llama, Mistral (without
    /// a sliding window), Qwen2 or Qwen3 family. Exactly one of `path`, `pvc`, `hub`. OpenRLHF `actor.model_name_or_path`, verl
    /// `actor_rollout_ref.model.path`, TRL `sft_model_path`.
    pub policy: ModelSource,
    /// Trunk of the critic; its value head starts at zero. From a saved critic (`...ForTokenClassification` with one label) the head comes
    /// too, and under the profiles openrlhf, verl and trl that of a reward model (`...ForSequenceClassification`, or OpenRLHF's RewardModel),
    /// as there. It gets the policy's token ids, so it must be of the policy's family. Only with `algorithm.advantage.estimator: gae`, the
    /// one estimator that has a critic. Default: the policy's trunk. OpenRLHF `critic.model_name_or_path`, verl `critic.model.path`; TRL
    /// starts it from `reward_model_path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub critic: Option<ModelSource>,
    /// Frozen weights that the KL is measured against, of a model with the policy's tokens. Not allowed with `algorithm.kl.coef: 0`,
    /// where there is no reference, nor with `model.adapter`, where it is the policy without the adapter. Default: the policy as it was at step
    /// 0, as in OpenRLHF, verl and TRL; verl's `actor_rollout_ref.ref.model.path` names another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<ModelSource>,
    /// Train a low-rank adapter (LoRA) and keep the weights as they are. Default: none, all weights are trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<AdapterSpec>,
    /// Number format of weights and activations: `bfloat16` or `float32`. It is that of policy and critic, and of every role that names none
    /// of its own (`roles.rollout.dtype`, `roles.reference.dtype`, `roles.reward.model.dtype`). Master weights, optimizer state, softmax,
    /// log-probs and losses are float32 either way. Default bfloat16. OpenRLHF `ds.param_dtype`, verl
    /// `actor_rollout_ref.actor.fsdp_config.dtype`, TRL `bf16`.
    #[serde(default)]
    pub dtype: DType,
    /// Keep only each layer's input in the forward pass and compute the rest again in the backward pass: about a third more
    /// compute for a fraction of the activation memory. Default false. OpenRLHF
    /// `actor.gradient_checkpointing_enable`, verl `actor_rollout_ref.model.enable_gradient_checkpointing`, TRL
    /// `gradient_checkpointing`.
    #[serde(default)]
    pub activation_checkpointing: bool,
}

/// Where a model lies. Exactly one of `path`, `pvc`, `hub`.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelSource {
    /// Folder on a disk. On one machine a relative path starts at the manifest's folder; on a cluster the path must be
    /// absolute and lie in the image or in a volume that the role's `template` mounts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub path: Option<String>,
    /// Folder in a PersistentVolumeClaim of the job's namespace. Clusters only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pvc: Option<PvcPath>,
    /// Model of the Hugging Face hub, fetched when the run starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hub: Option<HubModel>,
}

/// A file or folder in a PersistentVolumeClaim.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PvcPath {
    /// Name of the PersistentVolumeClaim, in the job's namespace. The pods mount it.
    #[schemars(length(min = 1, max = 253), regex(pattern = super::OBJECT_NAME))]
    pub claim_name: String,
    /// Path inside the volume, without `..`. Default: the volume's root.
    #[serde(default)]
    #[schemars(length(max = 4096))]
    pub path: String,
}

/// A model of the Hugging Face hub.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HubModel {
    /// Owner and name, such as `Qwen/Qwen3-0.6B`.
    #[schemars(
        length(min = 1, max = 256),
        regex(pattern = r"^[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)?$")
    )]
    pub id: String,
    /// Branch, tag or commit. A commit makes the run repeatable. Default `main`.
    #[serde(default = "default_revision")]
    #[schemars(
        length(min = 1, max = 256),
        regex(pattern = r"^[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$")
    )]
    pub revision: String,
}

fn default_revision() -> String {
    "main".into()
}

/// Number format of weights and activations.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// 4 bytes a number.
    Float32,
    /// 2 bytes a number.
    #[default]
    Bfloat16,
}

impl DType {
    /// Its name in a manifest, which is PyTorch's too.
    pub fn name(self) -> &'static str {
        match self {
            Self::Float32 => "float32",
            Self::Bfloat16 => "bfloat16",
        }
    }
}
