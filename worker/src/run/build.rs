//! Builds the roles of a run in this process, from the manifest or from a checkpoint.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Error, Result};
use ppo_crds::RunConfig;
use ppo_crds::run_config::RunLength;
use ppo_crds::spec::Role;

use super::data::Data;
use super::learners::{described, warn_beyond};
use super::reach::Reach;
use super::same_tokens::refuse_other_tokens;
use super::start::{Around, Start};
use super::trained::Trained;
use crate::data::{PromptOrder, PromptSet, total_steps};
use crate::engine::{Kernels, PolicyEngine, SamplingParams};
use crate::model::{Companions, target};
use crate::native::allocator;
use crate::pace;
use crate::reward::RewardSource;
use crate::roles::Reference;
use crate::run_state::Inputs;
use crate::tokenizer::Tokenizer;
use crate::trainer::{Ahead, StepSamples, Trainer};

/// The trainer with all its roles, and what else a run needs of them.
pub struct Roles {
    /// The trainer.
    pub trainer: Trainer,
    /// Held-out prompts.
    pub held_out: Option<PromptSet>,
    /// Folder the policy came from: the base of an adapter.
    pub policy_folder: PathBuf,
    /// Tokenizer and generation files of what is saved.
    pub companions: Companions,
    /// Of what the actor has read beside the configuration.
    pub inputs: Inputs,
}

impl Roles {
    /// Of all that was read beside the configuration, as far as it is known: pods say with their first answer what they hold.
    pub fn inputs(&self) -> Inputs {
        let reference = self.trainer.reference.as_ref().and_then(Reference::digest);
        Inputs {
            reference: reference.map(str::to_owned),
            reward: self.trainer.reward.digest().map(str::to_owned),
            ..self.inputs.clone()
        }
    }
}

/// Loads everything; the policy is in `policy_folder`, or where the run goes on in the checkpoint.
///
/// # Errors
/// When a model, the prompts or the engine cannot be had, naming what and where; [`Invalid`](crate::manifest::Invalid) where ranks have other
/// weights than this one, or the checkpoint is of other prompts, of an adapter above other weights, or beside another reference or reward
/// model; [`Interrupted`](crate::stop::Interrupted).
pub fn roles(config: RunConfig, policy_folder: PathBuf, start: Start, around: Around) -> Result<Roles> {
    let described = described(&config, &policy_folder, start.checkpoint);
    let data = Data::read(&config, &described, start)?;
    if start.checkpoint.is_none() {
        // A run that goes on has the models that it began with.
        refuse_other_tokens(
            &config,
            (&described, &data.tokenizer),
            around.peers.is_none(),
            &around.stop,
        )?;
    }
    let (prompts, batch) = (data.prompts.prompts.len(), config.batch.rollout_batch_size);
    let total_steps = total_steps(config.length, prompts, batch);
    if prompts < batch {
        tracing::warn!(
            "{prompts} prompts are fewer than the {batch} of a step (spec.batch.rolloutBatchSize), so a step has some of them several times; \
             add prompts, or lower it"
        );
    }
    // Of `steps` the manifest's own warnings say it; what episodes come to is known only here.
    if matches!(config.length, RunLength::Episodes(_)) && total_steps <= config.optimizer.critic_warmup_steps {
        tracing::warn!(
            "spec.optimizer.criticWarmupSteps is not below the {total_steps} steps of this run, so the policy never changes; \
             lower it, or make more steps"
        );
    }
    let trained = Trained::open(&config, &policy_folder, &data, total_steps, start, &around);
    // It may have failed at a rank that was asked to stop in its download: so was this one.
    let asked = |error: Error| match around.stop.check() {
        Ok(()) => error,
        Err(interrupted) => error.context(interrupted),
    };
    let Trained { actor, critic, inputs } = trained.map_err(asked)?;
    let policy = actor.decoder.config().clone();
    let sampling = Arc::new(sampling(&config, &data.tokenizer));
    data.check(&config, &policy, sampling.max_new_tokens)?;
    let longest = data.longest_prompt() + sampling.max_new_tokens;
    if let Some(critic) = &critic {
        warn_beyond(critic, longest);
    }
    let reach = Reach {
        config: &config,
        around: &around,
        start,
    };
    let target = target(config.dtype(Role::Rollout))?;
    let engine = PolicyEngine {
        model: &policy,
        kind: target.kind,
        device: target.device,
        shares_device: true,
        kernels: Kernels::default(),
        rollout: &config.rollout,
        sequences: config.batch.samples_per_step(),
        longest,
        usual_cache: None,
        policy_version: start.steps_done(),
        start_deadline: around.peers.map_or(pace::LEAST, |peers| peers.ready_deadline),
    };
    let rollout = reach.rollout(&engine, actor.weights(), &data.tokenizer)?;
    let reference = reach.reference(&actor, longest.min(policy.max_positions))?;
    let mut reward = RewardSource::new(&config.reward, reach.reward(longest.min(policy.max_positions))?)?;
    reward.report_to(&around.live);
    let order = PromptOrder {
        seed: config.seed,
        prompts: data.prompts.prompts.len(),
        batch: config.batch.rollout_batch_size,
        shuffle: config.prompts.shuffle,
    };
    allocator::return_memory();
    let ahead = start.checkpoint.map(|checkpoint| StepSamples::load(&checkpoint.folder));
    let trainer = Trainer {
        steps_done: start.steps_done(),
        draws: start.draws(),
        total_steps,
        prompts: data.prompts,
        order,
        tokenizer: data.tokenizer,
        sampling,
        rollout,
        ahead: Ahead::of(ahead.transpose()?.flatten()),
        reward,
        reference,
        actor,
        critic,
        ranks: around.ranks.clone(),
        kl: start.kl_controller(&config.algorithm),
        runtime: around.runtime,
        stop: around.stop,
        live: around.live,
        stages: Vec::new(),
        config,
    };
    Ok(Roles {
        trainer,
        held_out: data.held_out,
        policy_folder,
        companions: data.companions,
        inputs,
    })
}

fn sampling(config: &RunConfig, tokenizer: &Tokenizer) -> SamplingParams {
    let generation = &config.generation;
    let mut stop_token_ids = generation.stop_token_ids.clone();
    stop_token_ids.extend(tokenizer.eos_ids());
    stop_token_ids.sort_unstable();
    stop_token_ids.dedup();
    SamplingParams {
        temperature: generation.temperature as f32,
        top_p: generation.top_p as f32,
        top_k: generation.top_k as usize,
        min_p: generation.min_p as f32,
        max_new_tokens: generation.max_new_tokens as usize,
        min_new_tokens: generation.min_new_tokens as usize,
        stop_token_ids,
        stop: generation.stop.clone(),
        skip_special: true,
    }
}
