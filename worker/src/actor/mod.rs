//! The learning role: parameters, optimizer, update, checkpoints.

pub mod adamw;
pub mod checkpoint;
pub mod fence;
pub mod learner;
pub mod parameters;
pub mod pod;
pub mod rows;
pub mod schedule;
pub mod update;

use ppo_crds::RunConfig;

use self::learner::Learner;
use crate::model::{Decoder, ValueModel};

/// The policy that learns.
#[derive(Debug)]
pub struct Actor {
    /// Computes with views of the learner's parameters.
    pub decoder: Decoder,
    /// Its parameters and optimizer.
    pub learner: Learner,
}

/// The critic: a trunk and a value head of its own.
#[derive(Debug)]
pub struct Critic {
    /// Computes with views of the learner's parameters.
    pub model: ValueModel,
    /// Parameters and optimizer of trunk and head.
    pub learner: Learner,
}

/// Optimizer updates of the actor and of the critic in a run of `steps` steps.
pub fn planned_updates(config: &RunConfig, steps: u64) -> (u64, u64) {
    let per_step = (config.batch.updates_per_epoch() * config.batch.ppo_epochs) as u64;
    (
        steps.saturating_sub(config.optimizer.critic_warmup_steps) * per_step,
        steps * per_step,
    )
}
