//! The models of a run on disk: in checkpoints, and the trained one at the end.

use std::path::Path;

use anyhow::Result;

use super::build::Roles;
use crate::model::{self, ModelConfig};

/// The policy in a checkpoint, in Hugging Face layout.
pub const POLICY: &str = "policy";
/// The critic in a checkpoint, in Hugging Face layout.
pub const CRITIC: &str = "critic";
/// Optimizer state of the actor in a checkpoint.
pub const ACTOR_OPTIMIZER: &str = "actor-optimizer.safetensors";
/// Optimizer state of the critic in a checkpoint.
pub const CRITIC_OPTIMIZER: &str = "critic-optimizer.safetensors";
/// Writes everything that learns into a checkpoint's folder.
///
/// # Errors
/// When a file cannot be written.
pub fn write_models(roles: &Roles, folder: &Path) -> Result<()> {
    let trainer = &roles.trainer;
    write_policy(roles, &folder.join(POLICY))?;
    trainer.actor.learner.save(&folder.join(ACTOR_OPTIMIZER))?;
    trainer.ahead.save(trainer.steps_done, folder)?;
    let Some(critic) = &trainer.critic else { return Ok(()) };
    let (Some(source), Some(config)) = (&roles.critic_folder, &roles.critic_config) else {
        return Ok(());
    };
    let weights = critic.learner.parameters.weights();
    model::save(&folder.join(CRITIC), source, config, &weights, model::save::SHARD_BYTES)?;
    critic.learner.save(&folder.join(CRITIC_OPTIMIZER))
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
