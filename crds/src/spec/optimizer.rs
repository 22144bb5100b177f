//! `spec.optimizer`: AdamW and its schedule.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct OptimizerSpec {
    pub actor_learning_rate: f64,
    pub critic_learning_rate: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub epsilon: f64,
    pub weight_decay: f64,
    /// Global gradient norm above which gradients are scaled down. 0 switches clipping off.
    pub max_grad_norm: f64,
    pub schedule: Schedule,
    /// Updates over which the learning rate rises linearly from 0.
    pub warmup_updates: u64,
    /// The schedule's last learning rate, as a fraction of the first.
    pub min_learning_rate_ratio: f64,
    /// Steps at the start in which only the critic learns.
    pub critic_warmup_steps: u64,
}

impl Default for OptimizerSpec {
    fn default() -> Self {
        Self {
            actor_learning_rate: 1e-6,
            critic_learning_rate: 9e-6,
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            weight_decay: 0.0,
            max_grad_norm: 1.0,
            schedule: Schedule::Constant,
            warmup_updates: 0,
            min_learning_rate_ratio: 0.1,
            critic_warmup_steps: 0,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Schedule {
    #[default]
    Constant,
    Linear,
    Cosine,
}
