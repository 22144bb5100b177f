//! `spec.optimizer`: AdamW and its schedule.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// AdamW with float32 master weights, and its learning-rate schedule, for actor and critic.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct OptimizerSpec {
    /// The policy's greatest learning rate. 0 to 1. Default 1e-6. OpenRLHF `actor.adam.lr`, verl
    /// `actor_rollout_ref.actor.optim.lr`, TRL `learning_rate` (shared with the value model).
    #[schemars(range(min = 0.0, max = 1.0))]
    pub actor_learning_rate: f64,
    /// The critic's greatest learning rate; unused without a critic. 0 to 1. Default 9e-6. OpenRLHF `critic.adam.lr`, verl
    /// `critic.optim.lr`, TRL `learning_rate`.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub critic_learning_rate: f64,
    /// Decay of the gradient's running mean. 0 to below 1. Default 0.9. OpenRLHF `actor.adam.betas`, verl `optim.betas`,
    /// TRL `adam_beta1`.
    #[schemars(range(min = 0.0, max = 0.999999))]
    pub beta1: f64,
    /// Decay of the squared gradient's running mean. 0 to below 1. Default 0.95, as in OpenRLHF; 0.999 in verl and TRL
    /// (`adam_beta2`).
    #[schemars(range(min = 0.0, max = 0.999999))]
    pub beta2: f64,
    /// Added to the denominator. Above 0, at most 1. Default 1e-8. OpenRLHF `actor.adam.eps`, verl `optim.eps`, TRL `adam_epsilon`.
    #[schemars(range(min = 0.0, max = 1.0), extend("exclusiveMinimum" = true))]
    pub epsilon: f64,
    /// Decoupled weight decay, on matrices only. 0 to 10. Default 0. OpenRLHF `actor.adam.weight_decay`, verl
    /// `optim.weight_decay` (0.01 there), TRL `weight_decay`.
    #[schemars(range(min = 0.0, max = 10.0))]
    pub weight_decay: f64,
    /// Global gradient norm above which gradients are scaled down, for actor and critic each. 0 switches clipping off. 0 to
    /// 1000000. Default 1. OpenRLHF `actor.max_norm`, verl `actor_rollout_ref.actor.grad_clip`, TRL `max_grad_norm` (its
    /// PPOTrainer clips only through DeepSpeed).
    #[schemars(range(min = 0.0, max = 1e6))]
    pub max_grad_norm: f64,
    /// Course of the learning rate after the warm-up: `constant`, `linear` or `cosine` down to `minLearningRateRatio`. Default
    /// constant. OpenRLHF `actor.lr_scheduler` (cosine_with_min_lr there), verl `optim.lr_scheduler_type`, TRL
    /// `lr_scheduler_type` (linear there).
    pub schedule: Schedule,
    /// Optimizer updates N over which the learning rate rises linearly: update k of them has k / N of the greatest rate. 0 to
    /// 1000000000. Default 0. verl `optim.lr_warmup_steps` and TRL PPO's `warmup_steps` count steps, each of all its updates; TRL
    /// RLOO and GRPO count updates.
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub warmup_updates: u64,
    /// In place of `warmupUpdates`: N as a share of all updates of the model, rounded up. 0 to below 1. Default: none. OpenRLHF
    /// `actor.lr_warmup_ratio` (0.03 there), verl `optim.lr_warmup_steps_ratio`, TRL `warmup_ratio`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 0.999999))]
    pub warmup_ratio: Option<f64>,
    /// Last learning rate of a linear or cosine schedule, as a fraction of the greatest. 0 to 1. Default 0.1. OpenRLHF
    /// `actor.min_lr_ratio`, verl `optim.min_lr_ratio`.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub min_learning_rate_ratio: f64,
    /// Steps at the start in which only the critic learns. 0 to 1000000000. Default 0. OpenRLHF `critic.freezing_steps`
    /// (whose N is N + 1 here), verl `trainer.critic_warmup` (N - 1).
    #[schemars(range(min = 0, max = 1_000_000_000))]
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
            warmup_ratio: None,
            min_learning_rate_ratio: 0.1,
            critic_warmup_steps: 0,
        }
    }
}

impl OptimizerSpec {
    /// Updates of the warm-up, of `total`. A share is rounded up, as in OpenRLHF (`train_ppo_ray.py`) and transformers
    /// (`TrainingArguments.get_warmup_steps`); verl rounds down.
    pub fn warmup_of(&self, total: u64) -> u64 {
        match self.warmup_ratio {
            // Of 30 updates a tenth is 3, and 3.0000000000000004 as a product.
            Some(ratio) => (ratio * total as f64 - 1e-9).ceil().max(0.0) as u64,
            None => self.warmup_updates,
        }
    }
}

/// Course of the learning rate after the warm-up.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Schedule {
    /// The greatest learning rate to the end.
    #[default]
    Constant,
    /// A straight line down to the last learning rate.
    Linear,
    /// Half a cosine down to the last learning rate.
    Cosine,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warm_up_is_a_number_of_updates_or_a_share_of_them_rounded_up() {
        let of = |warmup_updates: u64, warmup_ratio: Option<f64>, total: u64| {
            let optimizer = OptimizerSpec {
                warmup_updates,
                warmup_ratio,
                ..OptimizerSpec::default()
            };
            optimizer.warmup_of(total)
        };
        assert_eq!([of(7, None, 100), of(7, None, 5)], [7, 7]);
        let shares = [(0.1, 30), (0.03, 100), (0.03, 10), (0.0, 10), (0.5, 0)];
        assert_eq!(shares.map(|(share, total)| of(0, Some(share), total)), [3, 3, 1, 0, 0]);
    }
}
