//! The models of a run on disk: in checkpoints, and the trained one at the end.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::build::Roles;
use crate::actor::{Actor, Critic};
use crate::model::{self, ModelConfig};
use crate::ranks::order::Order;
use crate::telemetry::Stage;

/// The policy in a checkpoint, in Hugging Face layout.
pub const POLICY: &str = "policy";
/// The critic in a checkpoint, in Hugging Face layout.
pub const CRITIC: &str = "critic";
/// What the optimizer's state of the actor is called in a checkpoint.
pub const ACTOR_OPTIMIZER: &str = "actor";
/// What the optimizer's state of the critic is called in a checkpoint.
pub const CRITIC_OPTIMIZER: &str = "critic";

/// For the other ranks' parts of a checkpoint.
const SAVE_DEADLINE: Duration = Duration::from_secs(1800);

/// Writes everything that learns into a checkpoint's folder, the other ranks' parts of it too.
///
/// # Errors
/// When a file cannot be written, here or there.
pub fn write_models(roles: &Roles, folder: &Path) -> Result<()> {
    let trainer = &roles.trainer;
    trainer.ranks.enter(Stage::Checkpoint.of_step(trainer.steps_done));
    trainer.ranks.order(&Order::Save { folder: folder.into() })?;
    write_policy(roles, &folder.join(POLICY))?;
    if let (Some(critic), Some(source), Some(config)) = (&trainer.critic, &roles.critic_folder, &roles.critic_config) {
        let weights = critic.learner.parameters.weights();
        model::save(&folder.join(CRITIC), source, config, &weights, model::save::SHARD_BYTES)?;
    }
    write_optimizers(&trainer.actor, trainer.critic.as_ref(), folder)?;
    trainer.ranks.replies(SAVE_DEADLINE)
}

/// Writes this rank's part of the optimizers' state into a checkpoint's folder.
///
/// # Errors
/// When a file cannot be written.
pub fn write_optimizers(actor: &Actor, critic: Option<&Critic>, folder: &Path) -> Result<()> {
    actor.learner.save(folder, ACTOR_OPTIMIZER)?;
    critic.map_or(Ok(()), |critic| critic.learner.save(folder, CRITIC_OPTIMIZER))
}

/// Writes the policy in Hugging Face layout.
///
/// # Errors
/// When a file cannot be written.
pub fn write_policy(roles: &Roles, target: &Path) -> Result<()> {
    let actor = &roles.trainer.actor;
    let config: &ModelConfig = actor.decoder.config();
    model::save(
        target,
        &roles.policy_folder,
        config,
        &actor.learner.parameters.weights(),
        model::save::SHARD_BYTES,
    )
}
