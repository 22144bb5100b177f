//! The models that a rank trains: the actor and, where there is one, the critic, from the manifest or from a checkpoint.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ppo_crds::RunConfig;
use ppo_crds::memory::{ModelShape, Shapes, keeps_critic_pass};
use ppo_crds::run_config::Location;
use ppo_crds::spec::Profile;

use super::adapted::Adapted;
use super::capacity::refuse_too_large;
use super::models::{ACTOR_OPTIMIZER, CRITIC, CRITIC_OPTIMIZER, POLICY};
use crate::actor::flat::Flat;
use crate::actor::learner::Learner;
use crate::actor::{Actor, Critic, planned_updates};
use crate::device;
use crate::hub::{resolve_location, resolve_unless_stopped};
use crate::model::{CriticFolder, Decoder, ModelConfig, Part, Target, ValueModel, named, target};
use crate::ranks::Ranks;
use crate::run_state::Verified;
use crate::stop::StopFlag;

/// What learns on this rank; the policy came from the folder `policy`. `checkpoint` replaces the manifest's weights.
///
/// # Errors
/// When a model cannot be had, naming what and where; [`Invalid`](crate::manifest::Invalid) where the GPU cannot hold it.
pub fn learners(
    config: &RunConfig,
    policy: &Path,
    checkpoint: Option<&Verified>,
    total_steps: u64,
    ranks: &Ranks,
) -> Result<(Actor, Option<Critic>)> {
    let learners = Learners {
        config,
        target: target(config.model.dtype)?,
        checkpoint,
        updates: planned_updates(config, total_steps),
        ranks,
    };
    if let Some(gpu) = device::gpu()? {
        let who = format!("{} of the actor", ranks.name(ranks.rank()));
        refuse_too_large(config, &learners.shapes(policy)?, (&who, ranks.count() as u64), &gpu)?;
    }
    let mut actor = learners.actor(policy)?;
    let location = config.model.critic.as_ref();
    let mut critic = location.map(|location| learners.critic(location, &actor)).transpose()?;
    if let Some(critic) = &mut critic {
        let policy = &mut actor.learner.parameters;
        policy.share_gradients(&mut critic.learner.parameters)?;
    }
    Ok((actor, critic))
}

/// Brings what learns to this machine where it is not there yet: the folder of the policy. Every rank does so before it waits for another
/// one: in turn, each machine would wait for the downloads of the others.
///
/// # Errors
/// When a model cannot be had, naming what and where; [`Interrupted`](crate::stop::Interrupted).
pub fn fetch(config: &RunConfig, stop: &StopFlag) -> Result<PathBuf> {
    let here = |location: &Location| resolve_unless_stopped(location, stop);
    let policy = here(&config.model.policy).context("model.policy")?;
    let critic = config.model.critic.as_ref().map(here);
    critic.transpose().context("model.critic")?;
    Ok(policy)
}

/// Where configuration and tokenizer of the policy in `folder` are read. A checkpoint of all weights has them beside the weights, which were
/// trained by these, whatever became of the folder since; one of an adapter has neither.
pub fn described(config: &RunConfig, folder: &Path, checkpoint: Option<&Verified>) -> PathBuf {
    let whole = whole(config, checkpoint);
    whole.map_or_else(|| folder.to_owned(), |checkpoint| checkpoint.folder.join(POLICY))
}

/// What was read of the policy where it is [`described`], by the field of the manifest that names the place: a checkpoint is none of its
/// fields.
///
/// # Errors
/// Those of `read`, as `name` has them.
pub fn of_policy<T>(
    config: &RunConfig,
    checkpoint: Option<&Verified>,
    name: impl Fn(&str, Result<T>) -> Result<T>,
    read: Result<T>,
) -> Result<T> {
    match whole(config, checkpoint) {
        Some(_) => read,
        None => name("model.policy", read),
    }
}

/// Says where sequences, of up to `longest` tokens, may be longer than the critic was made for. One that began as the policy never is: no
/// sequence is longer than that one's context.
pub fn warn_beyond(critic: &Critic, longest: usize) {
    let context = critic.model.decoder.config().max_positions;
    if context < longest {
        tracing::warn!(
            "a sequence may have {longest} tokens, the context of model.critic has {context}: beyond it its values mean little; lower \
             prompts.maxLength or generation.maxNewTokens"
        );
    }
}

/// The checkpoint, where it has all weights.
fn whole<'a>(config: &RunConfig, checkpoint: Option<&'a Verified>) -> Option<&'a Verified> {
    checkpoint.filter(|_| config.model.adapter.is_none())
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
    /// Shapes of what learns.
    fn shapes(&self, policy: &Path) -> Result<Shapes> {
        let source = described(self.config, policy, self.checkpoint);
        let critic = |location: &Location| -> Result<ModelShape> {
            let model = match whole(self.config, self.checkpoint) {
                Some(checkpoint) => ModelConfig::read(&checkpoint.folder.join(CRITIC)),
                None => {
                    let folder = resolve_location(location).context("model.critic")?;
                    named::described("model.critic", ModelConfig::read(&folder))
                }
            };
            Ok(model?.shape())
        };
        let critic = self.config.model.critic.as_ref().map(critic);
        Ok(Shapes {
            policy: self.policy_config(&source)?.shape(),
            critic: critic.transpose()?,
            reward: None,
        })
    }

    fn policy_config(&self, folder: &Path) -> Result<ModelConfig> {
        let read = ModelConfig::read_language_model(folder);
        of_policy(self.config, self.checkpoint, named::described, read)
    }

    fn actor(&self, folder: &Path) -> Result<Actor> {
        let config = self.config;
        let source = described(config, folder, self.checkpoint);
        let model = self.policy_config(&source)?;
        if let Some(adapter) = &config.model.adapter {
            return Adapted { above: self, adapter }.actor(folder, &model);
        }
        let flat = Flat::zeros(&Part::Whole.shapes(&model), self.target, self.ranks)?;
        let weights = flat.places();
        let filled = weights.fill(&source, &model, Part::Whole);
        of_policy(config, self.checkpoint, named::found, filled)?;
        let mut learner = self.actor_learner(flat)?;
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

    fn critic(&self, location: &Location, actor: &Actor) -> Result<Critic> {
        let config = self.config;
        let folder = resolve_location(location).context("model.critic")?;
        if let Some(adapter) = &config.model.adapter {
            // Frozen weights of one place are held once.
            let shared = actor.frozen.as_ref().filter(|_| *location == config.model.policy);
            let shared = shared.map(|frozen| (actor.decoder.config(), &frozen.base));
            return Adapted { above: self, adapter }.critic((location, folder), shared);
        }
        let saved = self.checkpoint.map(|checkpoint| checkpoint.folder.join(CRITIC));
        let source = match &saved {
            Some(saved) => CriticFolder::read(saved, self.keeps_score()),
            None => named::described("model.critic", CriticFolder::read(&folder, self.keeps_score())),
        }?;
        let flat = Flat::zeros(&Part::Whole.shapes(source.config()), self.target, self.ranks)?;
        let weights = flat.places();
        let filled = source.fill(&weights);
        let filled = match &saved {
            Some(_) => filled,
            None => named::found("model.critic", filled),
        };
        filled?;
        let mut learner = self.critic_learner(flat)?;
        self.restore(&mut learner, CRITIC_OPTIMIZER, |it| it.state.critic_updates)?;
        let mut model = ValueModel::new(source.config(), &weights)?;
        model
            .decoder
            .set_activation_checkpointing(config.model.activation_checkpointing);
        let keeps_pass = self.keeps_pass(&model);
        Ok(Critic {
            model,
            learner,
            location: location.clone(),
            folder,
            adapter: None,
            keeps_pass,
            kept: None,
        })
    }

    /// Whether a critic that comes of a reward model starts with its score head. OpenRLHF reads it (`get_llm_for_sequence_regression`),
    /// TRL's value model is the reward model itself, and verl's `AutoModelForTokenClassification` finds `score.weight` by its name.
    /// AlpacaFarm takes the trunk alone.
    pub fn keeps_score(&self) -> bool {
        match self.config.algorithm.profile {
            Profile::Openrlhf | Profile::Verl | Profile::Trl => true,
            Profile::Default | Profile::Alpacafarm => false,
        }
    }

    /// Whether a critic keeps the pass of a step's first update.
    pub fn keeps_pass(&self, critic: &ValueModel) -> bool {
        keeps_critic_pass(self.config, &critic.decoder.config().shape(), self.ranks.count() as u64)
    }

    /// Makes the actor's tensors trainable.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn actor_learner(&self, flat: Flat) -> Result<Learner> {
        let spec = &self.config.optimizer;
        Learner::of(flat, spec.clone(), spec.actor_learning_rate, self.updates.0, self.ranks)
    }

    /// Makes the critic's tensors trainable.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn critic_learner(&self, flat: Flat) -> Result<Learner> {
        let spec = &self.config.optimizer;
        Learner::of(
            flat,
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
