//! The PPO update: `ppoEpochs` passes over the step's samples in shuffled mini-batches, each gathered over micro-batches.
//!
//! The loss of a micro-batch is divided by the counts of its whole mini-batch, so the split into micro-batches changes
//! memory and rounding, nothing else.

use std::time::{Duration, Instant};

use anyhow::Context;
use ppo_crds::RunConfig;
use tch::{Kind, Tensor};

use super::learner::Updated;
use super::rows::{self, Rows};
use super::{Actor, Critic};
use crate::data::PromptOrder;
use crate::ppo::loss::{self, Denominator};
use crate::stages::{Batch, Sample};
use crate::trainer::Diverged;

/// What the updates of one step did: means over its updates.
#[derive(Debug, Default)]
pub struct Learnt {
    updates: u64,
    /// Sums over updates, by name.
    sums: Sums,
    /// Greatest probability ratio.
    pub ratio_max: f64,
    /// Last learning rate of the actor.
    pub actor_learning_rate: f64,
    /// Last learning rate of the critic.
    pub critic_learning_rate: f64,
    /// Time spent on the actor.
    pub actor_time: Duration,
    /// Time spent on the critic.
    pub critic_time: Duration,
}
