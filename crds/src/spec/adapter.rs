//! `spec.model.adapter`: train a low-rank adapter instead of all weights.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A low-rank adapter (LoRA, arXiv 2106.09685) is trained, and the policy's own weights stay as they are: gradients, optimizer
/// state and master weights exist for the adapter alone, so a GPU holds a larger model. Each target computes
/// `x W^T + (alpha / rank) (x A^T) B^T`; A and B are float32 (as PEFT keeps them), B starts at zero, so training starts at the
/// policy. The reference is the policy without the adapter: it needs no copy and no pods. A critic gets an adapter of the same
/// sizes beside its value head, and shares the frozen weights where it starts from the policy. There is no dropout: the ratio of
/// PPO compares two passes over the same tokens, which must agree. Engines get weights with the adapter merged in, rounded to
/// `model.dtype`: with bfloat16 their log-probs differ from the actor's by that rounding, which the metric
/// `ppo_logprob_difference` shows and `algorithm.truncatedImportanceSampling` can correct. Checkpoints and the folder `adapter` of a
/// run are in PEFT's layout; the folder `model` holds the merged model. Usual learning rates are 10 times those of training all
/// weights. Absent: all weights are trained. OpenRLHF `ds.lora.rank` above 0, verl `actor_rollout_ref.model.lora_rank` above 0,
/// TRL `use_peft`.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AdapterSpec {
    /// Rank of the adapter's matrices: rows of A, columns of B. 1 to 1024. Default 16. OpenRLHF `ds.lora.rank`, verl
    /// `actor_rollout_ref.model.lora_rank`, TRL `lora_r` (PEFT `r`).
    #[schemars(range(min = 1, max = 1024))]
    pub rank: u32,
    /// What the adapter adds is scaled by alpha / rank. Above 0, at most 1000000. Default 32. OpenRLHF `ds.lora.alpha` (16
    /// there), verl `actor_rollout_ref.model.lora_alpha` (16 there), TRL `lora_alpha`.
    #[schemars(range(min = 0.0, max = 1e6), extend("exclusiveMinimum" = true))]
    pub alpha: f64,
    /// Projections that are adapted, in every layer, each once. Default all seven: `q_proj`, `k_proj`, `v_proj`, `o_proj`,
    /// `gate_proj`, `up_proj`, `down_proj`, which PEFT calls `all-linear`. OpenRLHF `ds.lora.target_modules`, verl
    /// `actor_rollout_ref.model.target_modules`, TRL `lora_target_modules`.
    #[schemars(length(min = 1, max = 7))]
    pub targets: Vec<Projection>,
}

impl Default for AdapterSpec {
    fn default() -> Self {
        Self {
            rank: 16,
            alpha: 32.0,
            targets: Projection::ALL.to_vec(),
        }
    }
}

impl AdapterSpec {
    /// The factor on what the adapter adds: alpha / rank.
    pub fn scale(&self) -> f64 {
        self.alpha / f64::from(self.rank.max(1))
    }
}

/// A projection of a decoder's layer, by its Hugging Face name.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
pub enum Projection {
    /// Queries of attention.
    #[serde(rename = "q_proj")]
    Query,
    /// Keys of attention.
    #[serde(rename = "k_proj")]
    Key,
    /// Values of attention.
    #[serde(rename = "v_proj")]
    Value,
    /// Output of attention.
    #[serde(rename = "o_proj")]
    Output,
    /// Gate of the feed-forward layer.
    #[serde(rename = "gate_proj")]
    Gate,
    /// Up projection of the feed-forward layer.
    #[serde(rename = "up_proj")]
    Up,
    /// Down projection of the feed-forward layer.
    #[serde(rename = "down_proj")]
    Down,
}

impl Projection {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Query,
        Self::Key,
        Self::Value,
        Self::Output,
        Self::Gate,
        Self::Up,
        Self::Down,
    ];

    /// Its Hugging Face name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Query => "q_proj",
            Self::Key => "k_proj",
            Self::Value => "v_proj",
            Self::Output => "o_proj",
            Self::Gate => "gate_proj",
            Self::Up => "up_proj",
            Self::Down => "down_proj",
        }
    }
}
