//! The learning role: parameters, optimizer, update, checkpoints.

pub mod adamw;
pub mod checkpoint;
pub mod fence;
pub mod follower;
pub mod learner;
pub mod lesson;
pub mod optimizer_state;
pub mod parameters;
pub mod pieces;
pub mod pod;
pub mod reducer;
pub mod rows;
pub mod schedule;
pub mod siblings;
pub mod update;

use anyhow::Result;
use ppo_crds::RunConfig;
use tch::Tensor;

use self::learner::Learner;
use self::pieces::Pieces;
use crate::model::{Decoder, ValueModel};
use crate::ranks::Ranks;

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

impl Actor {
    /// Log-probabilities of the response tokens under the tempered distribution, [samples, columns].
    ///
    /// # Errors
    /// When libtorch fails, or a rank is lost.
    pub fn logprobs(&self, pieces: &Pieces, ranks: &Ranks, temperature: f64) -> Result<Tensor> {
        pieces.compute(ranks, |rows| Ok(rows.logprobs(&self.decoder, temperature, false)?.0))
    }
}

impl Critic {
    /// Values of the states before each response token, [samples, columns].
    ///
    /// # Errors
    /// When libtorch fails, or a rank is lost.
    pub fn values(&self, pieces: &Pieces, ranks: &Ranks) -> Result<Tensor> {
        pieces.compute(ranks, |rows| rows.values(&self.model))
    }
}

/// Optimizer updates of the actor and of the critic in a run of `steps` steps.
pub fn planned_updates(config: &RunConfig, steps: u64) -> (u64, u64) {
    let per_step = (config.batch.updates_per_epoch() * config.batch.ppo_epochs) as u64;
    (
        steps.saturating_sub(config.optimizer.critic_warmup_steps) * per_step,
        steps * per_step,
    )
}
