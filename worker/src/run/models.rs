//! The models of a run on disk: in checkpoints, and the trained one at the end.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use ppo_crds::run_config::Location;

use super::build::Roles;
use crate::actor::checkpoint::{Files, files_below};
use crate::actor::{Actor, Critic, optimizer_state};
use crate::model::adapter::peft;
use crate::model::{self, ModelConfig};
use crate::ranks::order::Order;
use crate::telemetry::Stage;

/// The policy in a checkpoint, in Hugging Face layout, or its adapter in PEFT's.
pub const POLICY: &str = "policy";
/// The critic in a checkpoint, in Hugging Face layout, or its adapter and head in PEFT's.
pub const CRITIC: &str = "critic";
/// What the optimizer's state of the actor is called in a checkpoint.
pub const ACTOR_OPTIMIZER: &str = "actor";
/// What the optimizer's state of the critic is called in a checkpoint.
pub const CRITIC_OPTIMIZER: &str = "critic";

/// For the other ranks' parts of a checkpoint.
const SAVE_DEADLINE: Duration = Duration::from_secs(1800);

/// For a shared file system to list what they wrote; NFS looks again after a minute at most.
const LISTED_DEADLINE: Duration = Duration::from_secs(120);

/// Writes everything that learns into a checkpoint's folder, the other ranks' parts of it too, and nothing that an adapter leaves as it
/// was. Every rank hashes what it has written, and shows after each file that it goes on.
///
/// # Errors
/// When a file cannot be written, here or there, or is not seen here.
pub fn write_models(roles: &Roles, folder: &Path) -> Result<Files> {
    let trainer = &roles.trainer;
    trainer.ranks.enter(Stage::Checkpoint.of_step(trainer.steps_done));
    trainer.ranks.order(&Order::Save { folder: folder.into() })?;
    let live = &trainer.live;
    let goes_on = || live.goes_on();
    trainer.ahead.save(trainer.steps_done, folder)?;
    match trainer.actor.frozen {
        Some(_) => write_adapter(roles, &folder.join(POLICY))?,
        None => write_policy(roles, &folder.join(POLICY))?,
    }
    goes_on();
    if let Some(critic) = &trainer.critic {
        write_critic(critic, &folder.join(CRITIC))?;
        goes_on();
    }
    let mut written = write_optimizers(&trainer.actor, trainer.critic.as_ref(), folder)?;
    goes_on();
    written.extend(files_below(&folder.join(POLICY))?);
    if trainer.critic.is_some() {
        written.extend(files_below(&folder.join(CRITIC))?);
    }
    let mut files = Files::of(folder, &written, goes_on)?;
    for others in trainer.ranks.replies(SAVE_DEADLINE)? {
        files.extend(others);
    }
    let critic = trainer.critic.as_ref().map(|_| CRITIC_OPTIMIZER);
    let models: Vec<&str> = [ACTOR_OPTIMIZER].into_iter().chain(critic).collect();
    optimizer_state::listed(folder, &models, trainer.ranks.count(), LISTED_DEADLINE)?;
    Ok(files)
}

fn write_critic(critic: &Critic, target: &Path) -> Result<()> {
    let (source, config) = (&critic.folder, critic.model.decoder.config());
    let weights = critic.learner.parameters.weights();
    match &critic.adapter {
        Some(adapter) => peft::save(target, &base(&critic.location, source), config.head, adapter, &weights),
        None => model::save(target, source, config, &weights, model::save::SHARD_BYTES),
    }
}

/// Writes this rank's part of the optimizers' state into a checkpoint's folder: the files.
///
/// # Errors
/// When a file cannot be written.
pub fn write_optimizers(actor: &Actor, critic: Option<&Critic>, folder: &Path) -> Result<Vec<PathBuf>> {
    let actor = actor.learner.save(folder, ACTOR_OPTIMIZER)?;
    let critic = critic.map(|critic| critic.learner.save(folder, CRITIC_OPTIMIZER));
    Ok([actor].into_iter().chain(critic.transpose()?).collect())
}

/// Writes the policy in Hugging Face layout, whole: an adapter is merged in.
///
/// # Errors
/// When a file cannot be written.
pub fn write_policy(roles: &Roles, target: &Path) -> Result<()> {
    let actor = &roles.trainer.actor;
    let config: &ModelConfig = actor.decoder.config();
    let weights = actor.weights();
    model::save::save_with(target, &roles.companions, config, weights, model::save::SHARD_BYTES)
}

/// Writes the policy's adapter, where one is trained, in PEFT's layout.
///
/// # Errors
/// When a file cannot be written.
pub fn write_adapter(roles: &Roles, target: &Path) -> Result<()> {
    let trainer = &roles.trainer;
    let Some(frozen) = &trainer.actor.frozen else {
        return Ok(());
    };
    let base = base(&trainer.config.model.policy, &roles.policy_folder);
    let head = trainer.actor.decoder.config().head;
    let weights = trainer.actor.learner.parameters.weights();
    peft::save(target, &base, head, &frozen.adapter, &weights)
}

/// How others find the model that an adapter belongs to.
fn base(location: &Location, folder: &Path) -> peft::Base {
    match location {
        Location::Hub { id, revision } => peft::Base {
            name: id.clone(),
            revision: Some(revision.clone()),
        },
        Location::Path(_) => {
            // A folder that went away in the meantime keeps the name that it had.
            let whole = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
            peft::Base {
                name: whole.display().to_string(),
                revision: None,
            }
        }
    }
}
