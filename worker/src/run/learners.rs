//! What learns on a rank: the actor, and the critic where there is one, from the manifest or from a checkpoint.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ppo_crds::RunConfig;
use ppo_crds::memory::keeps_critic_pass;
use ppo_crds::run_config::Location;

use super::adapted::Adapted;
use super::models::{ACTOR_OPTIMIZER, CRITIC, CRITIC_OPTIMIZER, POLICY};
use crate::actor::checkpoint::Verified;
use crate::actor::learner::Learner;
use crate::actor::{Actor, Critic, planned_updates};
use crate::hub::resolve_location;
use crate::model::{Decoder, ModelConfig, Target, ValueModel, Weights, target};
use crate::ranks::Ranks;

/// What learns on this rank, with the folder that the critic came from; the policy came from `policy`. `checkpoint` replaces the
/// manifest's weights.
///
/// # Errors
/// When a model cannot be had, naming what and where.
pub fn learners(
    config: &RunConfig,
    policy: &Path,
    checkpoint: Option<&Verified>,
    total_steps: u64,
    ranks: &Ranks,
) -> Result<(Actor, Option<(Critic, PathBuf)>)> {
    let learners = Learners {
        config,
        target: target(config.model.dtype)?,
        checkpoint,
        updates: planned_updates(config, total_steps),
        ranks,
    };
    let mut actor = learners.actor(policy)?;
    let location = config.model.critic.as_ref();
    let mut critic = location.map(|location| learners.critic(location, &actor)).transpose()?;
    if let Some((critic, _)) = &mut critic {
        let policy = &mut actor.learner.parameters;
        policy.share_gradients(&mut critic.learner.parameters)?;
    }
    Ok((actor, critic))
}

/// Where configuration and tokenizer of the policy in `folder` are read. A checkpoint of all weights has them beside the weights, which were
/// trained by these, whatever became of the folder since; one of an adapter has neither.
pub fn described(config: &RunConfig, folder: &Path, checkpoint: Option<&Verified>) -> PathBuf {
    let whole = checkpoint.filter(|_| config.model.adapter.is_none());
    whole.map_or_else(|| folder.to_owned(), |checkpoint| checkpoint.folder.join(POLICY))
}

/// What it takes to build them.
pub struct Learners<'a> {
    /// What runs.
    pub config: &'a RunConfig,
    /// Precision and device of the weights.
    pub target: Target,
    /// Weights and optimizer state to go on from.
    pub checkpoint: Option<&'a Verified>,
    /// Updates of actor and critic in the whole run.
    pub updates: (u64, u64),
    /// Who trains together.
    pub ranks: &'a Ranks,
}

impl Learners<'_> {
    fn actor(&self, folder: &Path) -> Result<Actor> {
        let config = self.config;
        let source = described(config, folder, self.checkpoint);
        let model = ModelConfig::read(&source)?;
        if let Some(adapter) = &config.model.adapter {
            return Adapted { above: self, adapter }.actor(folder, &model);
        }
        let mut weights = Weights::load(&source, &model, self.target)?;
        let mut learner = self.actor_learner(&mut weights)?;
        self.restore(&mut learner, ACTOR_OPTIMIZER, |it| it.state.actor_updates)?;
        let mut decoder = Decoder::new(&model, &weights)?;
        decoder.set_activation_checkpointing(config.model.activation_checkpointing);
        Ok(Actor {
            decoder,
            learner,
            frozen: None,
            kept: None,
        })
    }

    fn critic(&self, location: &Location, actor: &Actor) -> Result<(Critic, PathBuf)> {
        let config = self.config;
        let folder = resolve_location(location).context("model.critic")?;
        if let Some(adapter) = &config.model.adapter {
            // Frozen weights of one place are held once.
            let shared = actor.frozen.as_ref().filter(|_| *location == config.model.policy);
            let shared = shared.map(|frozen| (actor.decoder.config(), &frozen.base));
            let critic = Adapted { above: self, adapter }.critic(&folder, shared)?;
            return Ok((critic, folder));
        }
        let saved = self.checkpoint.map(|checkpoint| checkpoint.folder.join(CRITIC));
        let source = saved.unwrap_or_else(|| folder.clone());
        let (model, mut weights) = ValueModel::load(&source, self.target)?;
        let mut learner = self.critic_learner(&mut weights)?;
        self.restore(&mut learner, CRITIC_OPTIMIZER, |it| it.state.critic_updates)?;
        let mut model = ValueModel::new(&model, &weights)?;
        model
            .decoder
            .set_activation_checkpointing(config.model.activation_checkpointing);
        let keeps_pass = self.keeps_pass(&model);
        let critic = Critic {
            model,
            learner,
            adapter: None,
            keeps_pass,
            kept: None,
        };
        Ok((critic, folder))
    }

    /// Whether a critic keeps the pass of a step's first update.
    pub fn keeps_pass(&self, critic: &ValueModel) -> bool {
        keeps_critic_pass(self.config, &critic.decoder.config().shape(), self.ranks.count() as u64)
    }

    /// Makes the actor's `weights` trainable.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn actor_learner(&self, weights: &mut Weights) -> Result<Learner> {
        let spec = &self.config.optimizer;
        Learner::share(
            weights,
            spec.clone(),
            spec.actor_learning_rate,
            self.updates.0,
            self.ranks,
        )
    }

    /// Makes the critic's `weights` trainable.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn critic_learner(&self, weights: &mut Weights) -> Result<Learner> {
        let spec = &self.config.optimizer;
        Learner::share(
            weights,
            spec.clone(),
            spec.critic_learning_rate,
            self.updates.1,
            self.ranks,
        )
    }

    /// Takes over the optimizer's state of the checkpoint, if there is one.
    ///
    /// # Errors
    /// When it cannot be read or is of another model.
    pub fn restore(&self, learner: &mut Learner, name: &str, updates: impl Fn(&Verified) -> u64) -> Result<()> {
        match self.checkpoint {
            Some(checkpoint) => learner.restore(&checkpoint.folder, name, updates(checkpoint)),
            None => Ok(()),
        }
    }
}
