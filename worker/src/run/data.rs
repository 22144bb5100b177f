//! What a run reads besides its models: the prompts, and the tokenizer for them.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use ppo_crds::RunConfig;
use ppo_crds::spec::GenerationSpec;

use super::inputs::{digest_of_prompts, inputs_of, moment_of_run, refuse_other_ends, refuse_other_prompts};
use super::learners::of_policy;
use super::start::Start;
use crate::data::PromptSet;
use crate::manifest::Invalid;
use crate::model::named::found;
use crate::model::{Companions, ModelConfig};
use crate::outcome::BadData;
use crate::reward::Rule;
use crate::run_state::Inputs;
use crate::tokenizer::{Tokenizer, fixed_moment};

/// What a run reads beside its models.
pub struct Data {
    /// The policy's tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Tokenizer and generation files of what is saved.
    pub companions: Companions,
    /// Training prompts.
    pub prompts: PromptSet,
    /// What a checkpoint says of them.
    pub inputs: Inputs,
    /// Held-out prompts.
    pub held_out: Option<PromptSet>,
}

impl Data {
    /// Reads it with the tokenizer in `folder`. What is wrong with it, and needs no model to be found, is said here.
    ///
    /// # Errors
    /// [`BadData`]; [`Invalid`] where a stop string is in no response, or the run began with other prompts, another tokenizer for them, or other
    /// tokens that end a response; when a file cannot be read, naming it.
    pub fn read(config: &RunConfig, folder: &Path, start: Start) -> Result<Self> {
        let moment = moment_of_run(start.inputs(), fixed_moment()?)?;
        let tokenizer = of_policy(config, start.checkpoint, found, Tokenizer::load_at(folder, moment))?;
        if start.checkpoint.is_none() {
            // A run that goes on may not change them.
            check_stop_strings(&config.generation, &tokenizer)?;
        }
        let tokenizer = Arc::new(tokenizer);
        let companions = Companions::read(folder)?;
        let prompts = PromptSet::load(&config.prompts, &tokenizer).context(BadData)?;
        let mut inputs = inputs_of(&prompts, &tokenizer, config.prompts.chat_template);
        refuse_other_prompts(start.inputs(), &inputs, config, start.afresh)?;
        refuse_other_ends(start.inputs(), &inputs, config, start.afresh)?;
        let held_out = config.evaluation.as_ref();
        let held_out = held_out
            .map(|wanted| PromptSet::load_evaluation(wanted, &config.prompts, &tokenizer))
            .transpose()
            .context(BadData)?;
        inputs.held_out = held_out.as_ref().map(digest_of_prompts);
        let data = Self {
            tokenizer,
            companions,
            prompts,
            inputs,
            held_out,
        };
        let rules = Rule::all(&config.reward.rules)?;
        for set in data.sets() {
            check_labels(&rules, set).context(BadData)?;
        }
        Ok(data)
    }

    /// Checks it beside the policy, which answers with up to `max_new_tokens` tokens.
    ///
    /// # Errors
    /// [`Invalid`] where a response or a stop token cannot be one of the policy; [`BadData`] for a prompt that cannot.
    pub fn check(&self, config: &RunConfig, policy: &ModelConfig, max_new_tokens: usize) -> Result<()> {
        check_length(self.longest_prompt(), max_new_tokens, policy.max_positions)?;
        check_stop_ids(&config.generation.stop_token_ids, policy.vocab)?;
        for set in self.sets() {
            check_prompt_ids(set, policy.vocab).context(BadData)?;
        }
        let generation = &config.generation;
        if generation.stop.is_empty()
            && generation.stop_token_ids.is_empty()
            && let Err(none) = self.tokenizer.require_eos()
        {
            tracing::warn!("every response will go on to generation.maxNewTokens: {none:#}, or give generation.stop");
        }
        Ok(())
    }

    /// Tokens of the longest prompt.
    pub fn longest_prompt(&self) -> usize {
        let all = self.sets().flat_map(|set| &set.prompts);
        all.map(|prompt| prompt.ids.len()).max().unwrap_or(0)
    }

    /// All prompts.
    fn sets(&self) -> impl Iterator<Item = &PromptSet> {
        std::iter::once(&self.prompts).chain(&self.held_out)
    }
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
///
/// # Errors
/// [`Invalid`], naming it.
pub fn check_stop_ids(ids: &[u32], vocabulary: i64) -> Result<(), Invalid> {
    match ids.iter().find(|id| i64::from(**id) >= vocabulary) {
        Some(id) => Err(Invalid::new(format!(
            "generation.stopTokenIds has {id}, and the model's vocabulary {vocabulary} tokens, from 0"
        ))),
        None => Ok(()),
    }
}

/// A text that stops is looked for in what is shown of a response, which is without special tokens: one with such a token in it would never
/// stop anything. It does no harm where that token ends a response anyhow.
fn check_stop_strings(generation: &GenerationSpec, tokenizer: &Tokenizer) -> Result<()> {
    let ends = |id: &u32| generation.stop_token_ids.contains(id) || tokenizer.eos_ids().contains(id);
    for stop in &generation.stop {
        // What the tokenizer cannot split has no token in it.
        let ids = tokenizer.encode(stop, false).unwrap_or_default();
        for id in ids.into_iter().filter(|id| !ends(id)) {
            let is_special = tokenizer.decode(&[id], true)?.is_empty() && !tokenizer.decode(&[id], false)?.is_empty();
            // Not the unknown token, which stands for characters of the text.
            if let Some(name) = tokenizer
                .token_name(id)
                .filter(|name| is_special && stop.contains(name))
            {
                let refused = match *stop == name {
                    true => format!("generation.stop has {stop:?}, which is a special token"),
                    false => format!("generation.stop has {stop:?}, and in it {name:?}, which is a special token"),
                };
                return Err(Invalid::new(format!(
                    "{refused}: it is in no text of a response, so this never stops one; give generation.stopTokenIds: [{id}]"
                ))
                .into());
            }
        }
    }
    Ok(())
}

/// A rule that compares with a label cannot work without one: said before the models load, not at the first step or evaluation.
fn check_labels(rules: &[Rule], set: &PromptSet) -> Result<()> {
    for prompt in &set.prompts {
        rules
            .iter()
            .try_for_each(|rule| rule.check_label(prompt.label.as_ref()))
            .with_context(|| prompt.place.to_string())?;
    }
    Ok(())
}

/// One that the model has no row for would end the engine, whichever step it came in.
fn check_prompt_ids(set: &PromptSet, vocabulary: i64) -> Result<()> {
    for prompt in &set.prompts {
        if let Some(id) = prompt.ids.iter().find(|id| i64::from(**id) >= vocabulary) {
            bail!(
                "{}: the prompt has token {id}, and the model's vocabulary {vocabulary} tokens, from 0: the tokenizer in \
                 its folder is of another model",
                prompt.place
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ppo_crds::spec::RewardRule;
    use serde_json::json;

    use super::*;
    use crate::data::{At, Label, Prompt};

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

    #[test]
    fn a_stop_string_with_a_special_token_is_refused_with_the_id_to_give_unless_that_ends_responses_anyhow() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizer");
        let tokenizer = Tokenizer::load(&fixtures.join("chatml")).unwrap();
        let check = |stop: &str, ids: &[u32]| {
            let generation = GenerationSpec {
                stop: vec!["end".to_owned(), stop.to_owned()],
                stop_token_ids: ids.to_vec(),
                ..GenerationSpec::default()
            };
            check_stop_strings(&generation, &tokenizer)
        };
        for (stop, words) in [
            ("<|im_start|>", "\"<|im_start|>\", which is a special token"),
            ("\n<|im_start|>", "in it \"<|im_start|>\", which is a special token"),
        ] {
            let refused = check(stop, &[]).unwrap_err();
            assert!(refused.is::<Invalid>());
            let refused = refused.to_string();
            assert!(
                refused.contains(words) && refused.ends_with("give generation.stopTokenIds: [1]"),
                "{refused}"
            );
        }
        check("<|im_start|>", &[1]).unwrap();
        for fits in ["<|im_end|>", "\n", " ", "<|im_", "\u{e9}"] {
            check(fits, &[]).unwrap();
        }
    }

    fn set(label: Option<&str>, ids: &[u32]) -> PromptSet {
        let prompt = Prompt {
            ids: ids.into(),
            label: label.map(Label::from),
            place: At::line(6).in_file(&"held-out.jsonl".into()),
            ..Prompt::default()
        };
        PromptSet {
            prompts: vec![prompt],
            dropped: 0,
        }
    }

    #[test]
    fn a_prompt_with_a_token_outside_the_vocabulary_is_refused_by_its_place() {
        let check = |ids: &[u32]| check_prompt_ids(&set(None, ids), 32);
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
        let check = |label| check_labels(&rules, &set(label, &[0]));
        check(Some("5")).unwrap();
        for label in [None, Some("five")] {
            let refused = format!("{:#}", check(label).unwrap_err());
            assert!(refused.starts_with("held-out.jsonl: line 7: "), "{refused}");
        }
    }
}
