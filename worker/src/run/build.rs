//! Builds the roles of a run in this process, from the manifest or from a checkpoint.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ppo_crds::RunConfig;

use super::guard::Afresh;
use super::inputs::{Held, digest_of_prompts, refuse_other_base, refuse_other_prompts};
use super::learners::{described, learners};
use super::reach::Reach;
use crate::actor::checkpoint::{Inputs, Verified};
use crate::data::{PromptOrder, PromptSet, total_steps};
use crate::engine::{PolicyEngine, SamplingParams};
use crate::hub::resolve_location;
use crate::manifest::Invalid;
use crate::model::{Companions, ModelConfig, target};
use crate::native::allocator;
use crate::outcome::BadData;
use crate::place::Peers;
use crate::ppo::controller::KlController;
use crate::ranks::Ranks;
use crate::ranks::order::Order;
use crate::reward::{RewardSource, Rule};
use crate::roles::{Publication, Reference};
use crate::stop::StopFlag;
use crate::telemetry::Live;
use crate::tokenizer::Tokenizer;
use crate::trainer::{Ahead, StepSamples, Trainer};

/// For the other ranks to load what this one has loaded.
const LOAD_DEADLINE: Duration = Duration::from_secs(1800);

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
    /// Folder the critic came from.
    pub critic_folder: Option<PathBuf>,
    /// The critic's configuration.
    pub critic_config: Option<ModelConfig>,
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

/// Loads everything. `checkpoint` replaces the manifest's weights of actor and critic; where it does not fit what is read, the run may
/// begin `afresh`.
///
/// # Errors
/// When a model, the prompts or the engine cannot be had, naming what and where; [`Invalid`] where ranks have other weights than this one, or
/// the checkpoint is of other prompts, of an adapter above other weights, or beside another reference or reward model.
pub fn roles(
    config: RunConfig,
    (checkpoint, afresh): (Option<&Verified>, Afresh),
    runtime: tokio::runtime::Handle,
    stop: StopFlag,
    live: Arc<Live>,
    (peers, ranks): (Option<&Peers>, &Ranks),
    publication: &Publication,
) -> Result<Roles> {
    let policy_folder = resolve_location(&config.model.policy).context("model.policy")?;
    let described = described(&config, &policy_folder, checkpoint);
    let tokenizer = Arc::new(Tokenizer::load(&described)?);
    let companions = Companions::read(&described)?;
    let prompts = PromptSet::load(&config.prompts, &tokenizer).context(BadData)?;
    let began_with = checkpoint.and_then(|checkpoint| checkpoint.state.inputs.as_ref());
    let digest = digest_of_prompts(&prompts);
    refuse_other_prompts(began_with, &digest, &config.prompts.path, afresh)?;
    let held_out = config.evaluation.as_ref();
    let held_out = held_out
        .map(|wanted| PromptSet::load_evaluation(wanted, &config.prompts, &tokenizer))
        .transpose()
        .context(BadData)?;
    let held_out_path = config.evaluation.as_ref().map(|evaluation| evaluation.path.as_path());
    let asked: Vec<(&Path, &PromptSet)> = [(config.prompts.path.as_path(), &prompts)]
        .into_iter()
        .chain(held_out_path.zip(held_out.as_ref()))
        .collect();
    let rules = Rule::all(&config.reward.rules)?;
    for (path, set) in &asked {
        check_labels(&rules, path, set).context(BadData)?;
    }
    let total_steps = total_steps(config.length, prompts.prompts.len(), config.batch.rollout_batch_size);

    ranks.order(&Order::Open {
        checkpoint: checkpoint.cloned(),
        total_steps,
    })?;
    let (actor, critic) = learners(&config, &policy_folder, checkpoint, total_steps, ranks)?;
    let held = Held::of(&config, &actor, critic.as_ref().map(|(critic, _)| critic), ranks)?;
    let others = ranks.replies(LOAD_DEADLINE).context("the models of the other ranks")?;
    held.refuse_others(&others, ranks)?;
    let inputs = held.inputs(digest);
    refuse_other_base(began_with, &inputs, &config, afresh)?;
    allocator::return_memory();
    let policy_config = actor.decoder.config().clone();
    let sampling = Arc::new(sampling(&config, &policy_config, &tokenizer));
    let longest_prompt = prompts
        .prompts
        .iter()
        .chain(held_out.iter().flat_map(|set| &set.prompts))
        .map(|prompt| prompt.ids.len())
        .max();
    let longest = longest_prompt.unwrap_or(0) + sampling.max_new_tokens;
    check_length(
        longest_prompt.unwrap_or(0),
        sampling.max_new_tokens,
        policy_config.max_positions,
    )?;
    check_stop_ids(&config.generation.stop_token_ids, policy_config.vocab)?;
    for (path, set) in &asked {
        check_prompt_ids(path, set, policy_config.vocab).context(BadData)?;
    }
    let steps_done = checkpoint.map_or(0, |checkpoint| checkpoint.state.step);
    let weights = actor.weights();
    let reach = Reach {
        config: &config,
        peers,
        runtime: &runtime,
        stop: &stop,
        live: &live,
        publication,
        began_with: (began_with, afresh),
    };
    let target = target(config.model.dtype)?;
    let engine = PolicyEngine {
        model: &policy_config,
        kind: target.kind,
        device: target.device,
        shares_device: true,
        rollout: &config.rollout,
        sequences: config.batch.samples_per_step(),
        longest,
        usual_cache: None,
        policy_version: steps_done,
    };
    let rollout = reach.rollout(&engine, weights, &tokenizer)?;
    let reference = reach.reference(target, &actor, longest.min(policy_config.max_positions))?;
    let reward = RewardSource::new(&config.reward, reach.reward()?)?;
    let (critic, critic_folder) = critic.unzip();
    let critic_config = critic.as_ref().map(|critic| critic.model.decoder.config().clone());
    let mut kl = KlController::of(&config.algorithm);
    if let Some(checkpoint) = checkpoint {
        kl.coef = checkpoint.state.kl_coefficient;
    }
    let order = PromptOrder {
        seed: config.seed,
        prompts: prompts.prompts.len(),
        batch: config.batch.rollout_batch_size,
        shuffle: config.prompts.shuffle,
    };
    allocator::return_memory();
    let ahead = checkpoint.map_or(Ok(None), |checkpoint| StepSamples::load(&checkpoint.folder))?;
    let trainer = Trainer {
        steps_done,
        total_steps,
        prompts,
        order,
        tokenizer,
        sampling,
        rollout,
        ahead: Ahead::of(ahead),
        reward,
        reference,
        actor,
        critic,
        ranks: ranks.clone(),
        kl,
        runtime,
        stop,
        live,
        stages: Vec::new(),
        config,
    };
    Ok(Roles {
        trainer,
        held_out,
        policy_folder,
        companions,
        critic_folder,
        critic_config,
        inputs,
    })
}

/// A response that the model's context cuts off would be shorter than the manifest says, on any engine.
fn check_length(longest_prompt: usize, max_new_tokens: usize, context: usize) -> Result<(), Invalid> {
    let room = context.saturating_sub(longest_prompt);
    if room == 0 {
        return Err(Invalid::new(format!(
            "the longest prompt has {longest_prompt} tokens, the model's context {context}; lower prompts.maxLength below it"
        )));
    }
    if max_new_tokens > room {
        return Err(Invalid::new(format!(
            "generation.maxNewTokens is {max_new_tokens}, and beside the longest prompt, of {longest_prompt} tokens, the model's context of \
             {context} has room for {room}; lower it, or prompts.maxLength"
        )));
    }
    Ok(())
}

/// One that no token has would never stop anything.
fn check_stop_ids(ids: &[u32], vocabulary: i64) -> Result<(), Invalid> {
    match ids.iter().find(|id| i64::from(**id) >= vocabulary) {
        Some(id) => Err(Invalid::new(format!(
            "generation.stopTokenIds has {id}, and the model's vocabulary {vocabulary} tokens, from 0"
        ))),
        None => Ok(()),
    }
}

/// A rule that compares with a label cannot work without one: said before the models load, not at the first step or evaluation.
fn check_labels(rules: &[Rule], path: &Path, set: &PromptSet) -> Result<()> {
    for prompt in &set.prompts {
        rules
            .iter()
            .try_for_each(|rule| rule.check_label(prompt.label.as_deref()))
            .with_context(|| format!("{}: {}", path.display(), prompt.place))?;
    }
    Ok(())
}

/// One that the model has no row for would end the engine, whichever step it came in.
fn check_prompt_ids(path: &Path, set: &PromptSet, vocabulary: i64) -> Result<()> {
    for prompt in &set.prompts {
        if let Some(id) = prompt.ids.iter().find(|id| i64::from(**id) >= vocabulary) {
            bail!(
                "{}: {}: the prompt has token {id}, and the model's vocabulary {vocabulary} tokens, from 0: the tokenizer in \
                 its folder is of another model",
                path.display(),
                prompt.place
            );
        }
    }
    Ok(())
}

fn sampling(config: &RunConfig, model: &ModelConfig, tokenizer: &Tokenizer) -> SamplingParams {
    let generation = &config.generation;
    let mut stop_token_ids = generation.stop_token_ids.clone();
    stop_token_ids.extend(model.eos_token_ids().iter().chain(tokenizer.eos_ids()));
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

#[cfg(test)]
mod tests {
    use ppo_crds::spec::RewardRule;
    use serde_json::json;

    use super::*;
    use crate::data::Prompt;

    #[test]
    fn a_response_that_does_not_fit_the_models_context_is_refused_with_what_fits() {
        check_length(24, 40, 64).unwrap();
        let refused = check_length(24, 41, 64).unwrap_err().to_string();
        assert!(
            refused.contains("generation.maxNewTokens is 41") && refused.contains("room for 40"),
            "{refused}"
        );
        let refused = check_length(64, 1, 64).unwrap_err().to_string();
        assert!(refused.contains("lower prompts.maxLength"), "{refused}");
    }

    #[test]
    fn a_stop_token_outside_the_vocabulary_is_refused_by_its_number() {
        check_stop_ids(&[0, 31], 32).unwrap();
        let refused = check_stop_ids(&[3, 32], 32).unwrap_err().to_string();
        assert!(refused.contains("generation.stopTokenIds has 32"), "{refused}");
    }

    fn set(label: Option<&str>, ids: &[u32]) -> PromptSet {
        let prompt = Prompt {
            ids: ids.into(),
            label: label.map(str::to_owned),
            place: "line 7".into(),
            ..Prompt::default()
        };
        PromptSet {
            prompts: vec![prompt],
            dropped: 0,
        }
    }

    #[test]
    fn a_prompt_with_a_token_outside_the_vocabulary_is_refused_by_its_place() {
        let check = |ids: &[u32]| check_prompt_ids(Path::new("held-out.jsonl"), &set(None, ids), 32);
        check(&[0, 31]).unwrap();
        let refused = check(&[3, 32]).unwrap_err().to_string();
        assert!(
            refused.contains("held-out.jsonl: line 7: the prompt has token 32"),
            "{refused}"
        );
    }

    #[test]
    fn a_label_that_a_rule_cannot_compare_with_is_refused_by_its_place() {
        let rules: Vec<RewardRule> = serde_json::from_value(json!([{"numericMatch": {}}])).unwrap();
        let rules = Rule::all(&rules).unwrap();
        let check = |label| check_labels(&rules, Path::new("held-out.jsonl"), &set(label, &[0]));
        check(Some("5")).unwrap();
        for label in [None, Some("five")] {
            let refused = format!("{:#}", check(label).unwrap_err());
            assert!(refused.starts_with("held-out.jsonl: line 7: "), "{refused}");
        }
    }
}
