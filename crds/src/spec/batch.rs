//! `spec.batch`: how many samples, in which pieces.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BatchSpec {
    /// Prompts per step.
    #[serde(default = "default_rollout")]
    pub rollout_batch_size: u32,
    #[serde(default = "default_n")]
    pub n_samples_per_prompt: u32,
    /// Samples per forward pass of reference, reward and old log-probs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_rollout_batch_size: Option<u32>,
    /// Samples per update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train_batch_size: Option<u32>,
    /// Samples per forward and backward pass of one rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_train_batch_size: Option<u32>,
    #[serde(default = "default_epochs")]
    pub ppo_epochs: u32,
}

impl Default for BatchSpec {
    fn default() -> Self {
        Self {
            rollout_batch_size: default_rollout(),
            n_samples_per_prompt: default_n(),
            micro_rollout_batch_size: None,
            train_batch_size: None,
            micro_train_batch_size: None,
            ppo_epochs: default_epochs(),
        }
    }
}

fn default_rollout() -> u32 {
    128
}
fn default_n() -> u32 {
    1
}
fn default_epochs() -> u32 {
    1
}
