//! What is trained; the same on all ranks.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use ppo_crds::RunConfig;

use super::data::Data;
use super::inputs::{Held, refuse_other_base};
use super::learners::learners;
use super::start::{Around, Start};
use crate::actor::{Actor, Critic};
use crate::native::allocator;
use crate::ranks::order::Order;
use crate::run_state::Inputs;

/// For the other ranks to load what this one has loaded, where the job has no longer to be ready.
const LOAD_DEADLINE: Duration = Duration::from_secs(1800);

/// What is trained.
pub struct Trained {
    /// The policy.
    pub actor: Actor,
    /// The critic, where there is one.
    pub critic: Option<Critic>,
    /// What a checkpoint says of everything that was read for it.
    pub inputs: Inputs,
}

impl Trained {
    /// Loads it here and lets the other ranks load it, for a run of `total_steps` steps.
    ///
    /// # Errors
    /// When a model cannot be had, naming what and where; [`Invalid`](crate::manifest::Invalid) where another rank has other weights than this
    /// one, or the checkpoint is of an adapter above other weights.
    pub fn open(
        config: &RunConfig,
        policy_folder: &Path,
        data: &Data,
        total_steps: u64,
        start: Start,
        around: &Around,
    ) -> Result<Self> {
        let ranks = around.ranks;
        ranks.enter("loading models".into());
        ranks.order(&Order::Open {
            checkpoint: start.checkpoint.cloned().map(Box::new),
            total_steps,
        })?;
        let (mut actor, critic) = learners(config, policy_folder, start.checkpoint, total_steps, ranks)?;
        if around.peers.is_some() {
            actor.mark_changes(config)?;
        }
        let held = Held::of(config, &actor, critic.as_ref(), ranks)?;
        let peers = around.peers;
        let deadline = peers.map_or(LOAD_DEADLINE, |peers| peers.ready_deadline.max(LOAD_DEADLINE));
        let others = ranks.replies(deadline).context("the models of the other ranks")?;
        held.refuse_others(&others, ranks)?;
        let inputs = held.inputs(&data.inputs);
        refuse_other_base(start.inputs(), &inputs, config, start.afresh)?;
        allocator::return_memory();
        Ok(Self { actor, critic, inputs })
    }
}
