//! What must be identical across ranks, and between a run and the checkpoint it resumes: weights, what is computed with them, and the data
//! that a configuration only names.

use anyhow::{Context, Result};
use jiff::Timestamp;
use ppo_crds::RunConfig;
use ppo_crds::run_config::Location;
use serde::{Deserialize, Serialize};

use super::guard::Afresh;
use crate::actor::{Actor, Critic};
use crate::data::{Label, PromptSet};
use crate::manifest::Invalid;
use crate::model::Weights;
use crate::model::digest::{Hash, Hasher, digest};
use crate::ranks::Ranks;
use crate::run_state::Inputs;
use crate::tokenizer::Tokenizer;

/// Digests of the weights that a rank holds, and what it computes with them.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
pub struct Held {
    /// Below the policy's adapter; None: there is none.
    base: Option<String>,
    /// Below the critic's, where they are not the policy's own.
    critic_base: Option<String>,
    /// What is computed with the policy's weights.
    conventions: String,
    /// The same of the critic's.
    critic_conventions: Option<String>,
    /// What is trained of the policy; None where nobody compares it.
    policy: Option<String>,
    /// What is trained of the critic.
    critic: Option<String>,
}

impl Held {
    /// What a rank has loaded. One that is alone hashes what its checkpoint does not hold, and no more.
    ///
    /// # Errors
    /// When weights cannot be read.
    pub fn of(config: &RunConfig, actor: &Actor, critic: Option<&Critic>, ranks: &Ranks) -> Result<Self> {
        let hash = |weights: &Weights| Ok::<_, anyhow::Error>(digest(weights)?.to_string());
        let base = actor.frozen.as_ref().map(|frozen| hash(&frozen.base)).transpose()?;
        // Of one place they are held once.
        let apart = critic
            .filter(|critic| critic.adapter.is_some() && config.model.critic.as_ref() != Some(&config.model.policy));
        let below = |critic: &Critic| hash(&Weights(critic.model.decoder.parameters().into_iter().collect()));
        let critic_base = apart.map(below).transpose()?;
        let mut held = Self {
            base,
            critic_base,
            conventions: actor.decoder.config().conventions(),
            critic_conventions: critic.map(|critic| critic.model.decoder.config().conventions()),
            ..Self::default()
        };
        if !ranks.is_alone() {
            held.policy = Some(hash(&actor.learner.parameters.weights())?);
            let trained = critic.map(|critic| hash(&critic.learner.parameters.weights()));
            held.critic = trained.transpose()?;
        }
        Ok(held)
    }

    /// Compares what rank 0 holds with what the `others` do, from rank 1.
    ///
    /// # Errors
    /// [`Invalid`], naming the rank and the model.
    pub fn refuse_others(&self, others: &[Self], ranks: &Ranks) -> Result<()> {
        for (rank, other) in (1..).zip(others) {
            let (what, model) = if (&other.base, &other.policy) != (&self.base, &self.policy) {
                ("other weights", "model.policy")
            } else if (&other.critic_base, &other.critic) != (&self.critic_base, &self.critic) {
                ("other weights", "model.critic")
            } else if other.conventions != self.conventions {
                ("another config.json", "model.policy")
            } else if other.critic_conventions != self.critic_conventions {
                ("another config.json", "model.critic")
            } else {
                continue;
            };
            return Err(Invalid::new(format!(
                "{} has {what} of {model} than rank 0: give {model}.hub.revision a commit, or its path the same files on every node",
                ranks.name(rank)
            ))
            .into());
        }
        Ok(())
    }

    /// As a checkpoint keeps them, beside what it says of the `prompts`. Reference and reward model belong to no rank.
    pub fn inputs(&self, prompts: &Inputs) -> Inputs {
        Inputs {
            policy: self.base.clone(),
            critic: self.critic_base.clone(),
            // Where all weights are trained the checkpoint has a config.json of its own.
            policy_conventions: self.base.as_ref().map(|_| self.conventions.clone()),
            critic_conventions: self.critic_base.as_ref().and(self.critic_conventions.clone()),
            ..prompts.clone()
        }
    }
}

/// What the chat template takes for now: one that prints the date gives a run that goes on another day the prompts that it began with.
/// `fixed` is the moment that a run begins at where it is not the clock's. None is the clock, for a run of a version that kept no moment.
///
/// # Errors
/// When the checkpoint's moment is none.
pub fn moment_of_run(began_with: Option<&Inputs>, fixed: Option<Timestamp>) -> Result<Option<Timestamp>> {
    let saved = began_with.map(|inputs| inputs.moment);
    let seconds = match (saved, fixed) {
        (Some(Some(saved)), _) => saved,
        (Some(None), fixed) => return Ok(fixed),
        (None, fixed) => fixed.unwrap_or_else(Timestamp::now).as_second(),
    };
    let moment =
        Timestamp::from_second(seconds).context("the moment that the run began at, as its checkpoint has it")?;
    Ok(Some(moment))
}

/// What a checkpoint says of `prompts` whose ids `tokenizer` made: of chats, where they are `templated`.
pub fn inputs_of(prompts: &PromptSet, tokenizer: &Tokenizer, templated: bool) -> Inputs {
    let template = tokenizer.template_content().filter(|_| templated);
    // Tokenizer and template only say why prompts are others.
    Inputs {
        prompts: digest_of_prompts(prompts),
        tokenizer: tokenizer.fingerprint().ok().map(|text| text.to_string()),
        template: template.map(|content| Hash::of(content.as_bytes()).to_string()),
        moment: tokenizer.moment().map(Timestamp::as_second),
        ends: Some(tokenizer.eos_ids().to_vec()),
        ..Inputs::default()
    }
}

/// Of ids and labels, in their order.
pub fn digest_of_prompts(set: &PromptSet) -> String {
    let mut hash = Hasher::default();
    let mut enter = |bytes: &[u8]| {
        hash.update(&(bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    for prompt in &set.prompts {
        let ids: Vec<u8> = prompt.ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        enter(&ids);
        let label = prompt.label.as_ref();
        // What has a text counts by it, as it always did; a list or an object by its JSON.
        let kind = label.map_or(0_u8, |label| if label.text().is_ok() { 1 } else { 2 });
        enter(&[kind]);
        enter(label.map(Label::shown).unwrap_or_default().as_bytes());
    }
    hash.finish().to_string()
}

/// The order in which prompts come is a function of their number, so a run that goes on needs those that it began with.
///
/// # Errors
/// [`Invalid`], where they are known and others; with the tokenizer or the chat template, where those are known and others.
pub fn refuse_other_prompts(saved: Option<&Inputs>, now: &Inputs, config: &RunConfig, afresh: Afresh) -> Result<()> {
    let Some(saved) = saved.filter(|saved| saved.prompts != now.prompts) else {
        return Ok(());
    };
    let other = match (
        is_other(&saved.tokenizer, &now.tokenizer),
        is_other(&saved.template, &now.template),
    ) {
        (false, false) => None,
        (true, false) => Some("tokenizer"),
        (false, true) => Some("chat template"),
        (true, true) => Some("tokenizer with its chat template"),
    };
    let (files, afresh) = (&config.prompts.path, afresh.words());
    let words = match other {
        None => format!(
            "the prompts in {files} are not those that the run began with (ids, labels or their order): restore what lay there, or {afresh}"
        ),
        Some(what) => format!(
            "the {what} of model.policy ({}) is not the one that the run began with, and makes other ids of the prompts in {files}: restore \
             its files, or give model.policy.hub.revision the commit that the run began with; or {afresh}",
            words(&config.model.policy)
        ),
    };
    Err(Invalid::new(words).into())
}

/// What ends a response is learnt. All weights have it in their checkpoint; an adapter's is read where its policy lies.
///
/// # Errors
/// [`Invalid`], where the ids are known and others.
pub fn refuse_other_ends(saved: Option<&Inputs>, now: &Inputs, config: &RunConfig, afresh: Afresh) -> Result<()> {
    match (saved.and_then(|saved| saved.ends.as_ref()), &now.ends) {
        (Some(was), Some(is)) if was != is => Err(Invalid::new(format!(
            "the ids that end a response of model.policy ({}) have changed since the run began: they were {was:?} and are {is:?}; restore its \
             generation_config.json, config.json and tokenizer_config.json, or give model.policy.hub.revision the commit that the run began \
             with; or {}",
            words(&config.model.policy),
            afresh.words()
        ))
        .into()),
        _ => Ok(()),
    }
}

/// An adapter goes on above the weights that it was trained on, and what is computed with them is the same.
///
/// # Errors
/// [`Invalid`], where they are known and others.
pub fn refuse_other_base(saved: Option<&Inputs>, now: &Inputs, config: &RunConfig, afresh: Afresh) -> Result<()> {
    let Some(saved) = saved else { return Ok(()) };
    let place = |location: Option<&Location>| location.map_or_else(|| "none".to_owned(), words);
    let policy = ("model.policy", place(Some(&config.model.policy)));
    let critic = ("model.critic", place(config.model.critic.as_ref()));
    let (what, (model, place)) = if saved.policy != now.policy {
        ("the weights of", policy)
    } else if saved.critic != now.critic {
        ("the weights of", critic)
    } else if is_other(&saved.policy_conventions, &now.policy_conventions) {
        ("the sizes and constants in config.json of", policy)
    } else if is_other(&saved.critic_conventions, &now.critic_conventions) {
        ("the sizes and constants in config.json of", critic)
    } else {
        return Ok(());
    };
    Err(Invalid::new(format!(
        "{what} {model} ({place}) are not those that the adapter in the checkpoint was trained on: restore them, or give \
         {model}.hub.revision the commit that the run began with; or {}",
        afresh.words()
    ))
    .into())
}

/// A run goes on with the reference and the reward model that it began with. `model` is the field of one of them, with where it lies.
///
/// # Errors
/// [`Invalid`], where its digest is known and another one.
pub fn refuse_other_model(
    saved: Option<&str>,
    now: Option<&str>,
    model: (&str, &Location),
    afresh: Afresh,
) -> Result<()> {
    let (field, place) = model;
    match saved {
        Some(saved) if now != Some(saved) => Err(Invalid::new(format!(
            "{field} ({}) has changed since the run began: restore its files, or give {field}.hub.revision the commit that it began with; \
             or {}",
            words(place),
            afresh.words()
        ))
        .into()),
        _ => Ok(()),
    }
}

/// Of what a checkpoint says: an earlier version may have noted nothing.
fn is_other(saved: &Option<String>, now: &Option<String>) -> bool {
    saved.is_some() && saved != now
}

fn words(place: &Location) -> String {
    match place {
        Location::Hub { id, revision } => format!("{id}, {revision}"),
        Location::Path(folder) => folder.display().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ppo_crds::manifest::parse_manifest;
    use ppo_crds::{Environment, resolve};
    use serde_json::{Value, json};

    use super::*;

    /// A tokenizer, a template and a prompt in `folder`, and a run of them.
    fn templated(folder: &Path, template: &str) -> RunConfig {
        let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizer/chatml/tokenizer.json");
        std::fs::copy(tokenizer, folder.join("tokenizer.json")).unwrap();
        std::fs::write(folder.join("chat_template.jinja"), template).unwrap();
        std::fs::write(folder.join("a.jsonl"), r#"{"prompt": "One"}"#).unwrap();
        let manifest = json!({
            "apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "metadata": {"name": "inputs"},
            "spec": {"model": {"policy": {"path": "p"}}, "prompts": {"source": {"path": "a.jsonl"}, "chatTemplate": true},
                     "roles": {"reward": {"rules": [{"json": {}}]}}},
        });
        let job = parse_manifest(&manifest.to_string(), "job.json").unwrap();
        let here = Environment::Laptop {
            manifest_folder: folder.into(),
        };
        resolve(&job, &here).unwrap()
    }

    fn read(config: &RunConfig, folder: &Path, moment: Option<Timestamp>) -> Inputs {
        let tokenizer = Tokenizer::load_at(folder, moment).unwrap();
        inputs_of(&PromptSet::load(&config.prompts, &tokenizer).unwrap(), &tokenizer, true)
    }

    #[test]
    fn a_run_whose_template_prints_the_date_goes_on_another_day_with_the_prompts_that_it_began_with() {
        let folder = tempfile::tempdir().unwrap();
        let template = "Today: {{ strftime_now('%d %b %Y') }}. {{ messages[0].content }}";
        let config = templated(folder.path(), template);
        let (monday, thursday) = (1_700_000_000, 1_700_000_000 + 3 * 86_400);
        let read = |began_with: Option<&Inputs>, clock: i64| {
            let moment = moment_of_run(began_with, Some(Timestamp::from_second(clock).unwrap())).unwrap();
            read(&config, folder.path(), moment)
        };
        let first = read(None, monday);
        let refuse = |now: &Inputs| refuse_other_prompts(Some(&first), now, &config, Afresh::Here);
        refuse(&read(None, thursday)).unwrap_err();
        let goes_on = read(Some(&first), thursday);
        refuse(&goes_on).unwrap();
        assert_eq!(goes_on, first);
        // An earlier version kept no moment.
        let older = Inputs::default();
        assert_eq!(moment_of_run(Some(&older), None).unwrap(), None);
        assert!(moment_of_run(None, None).unwrap().is_some());
    }

    #[test]
    fn prompts_that_another_tokenizer_or_template_made_are_refused_with_its_name_and_not_the_files() {
        let folder = tempfile::tempdir().unwrap();
        let template = "{{ messages[0].content }}";
        let config = templated(folder.path(), template);
        let first = read(&config, folder.path(), None);
        let refused = |saved: &Inputs| {
            let now = read(&config, folder.path(), None);
            let refused = refuse_other_prompts(Some(saved), &now, &config, Afresh::Here).unwrap_err();
            assert!(refused.is::<Invalid>());
            refused.to_string()
        };
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("chat_template.jinja", "User: {{ messages[0].content }}");
        let words = refused(&first);
        assert!(words.starts_with("the chat template of model.policy ("), "{words}");
        // An earlier version noted neither.
        let older = Inputs {
            prompts: first.prompts.clone(),
            ..Inputs::default()
        };
        assert!(refused(&older).starts_with("the prompts in "));
        write("chat_template.jinja", template);
        let text = std::fs::read(folder.path().join("tokenizer.json")).unwrap();
        let mut tokenizer: Value = serde_json::from_slice(&text).unwrap();
        tokenizer["normalizer"] = json!({"type": "Lowercase"});
        write("tokenizer.json", &tokenizer.to_string());
        let words = refused(&first);
        assert!(
            words.starts_with("the tokenizer of model.policy (") && words.contains("model.policy.hub.revision"),
            "{words}"
        );
        write("a.jsonl", r#"{"prompt": "Two"}"#);
        let now = read(&config, folder.path(), None);
        write("a.jsonl", r#"{"prompt": "One"}"#);
        assert!(refused(&now).starts_with("the prompts in "));
    }

    #[test]
    fn an_end_token_that_came_or_went_is_refused_with_both_lists_and_one_that_nobody_noted_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let config = templated(folder.path(), "{{ messages[0].content }}");
        let first = read(&config, folder.path(), None);
        let refuse = |saved: &Inputs, now: &Inputs| refuse_other_ends(Some(saved), now, &config, Afresh::Here);
        refuse(&first, &first).unwrap();
        let ends = json!({"eos_token_id": [5, 2]}).to_string();
        std::fs::write(folder.path().join("generation_config.json"), ends).unwrap();
        let now = read(&config, folder.path(), None);
        let refused = refuse(&first, &now).unwrap_err();
        assert!(refused.is::<Invalid>());
        let words = refused.to_string();
        assert!(words.contains("they were [] and are [2, 5]"), "{words}");
        refuse(&Inputs::default(), &now).unwrap();
    }

    #[test]
    fn an_adapter_above_another_configuration_is_refused_with_the_models_name() {
        let folder = tempfile::tempdir().unwrap();
        let config = templated(folder.path(), "");
        let of = |policy: &str| Inputs {
            policy: Some("1".into()),
            policy_conventions: Some(policy.into()),
            ..Inputs::default()
        };
        let refuse = |saved: &Inputs, now: &Inputs| refuse_other_base(Some(saved), now, &config, Afresh::Here);
        refuse(&of("rope 1"), &of("rope 1")).unwrap();
        let words = refuse(&of("rope 1"), &of("rope 2")).unwrap_err().to_string();
        assert!(
            words.starts_with("the sizes and constants in config.json of model.policy (")
                && words.contains("hub.revision"),
            "{words}"
        );
        let older = Inputs {
            policy_conventions: None,
            ..of("")
        };
        refuse(&older, &of("rope 2")).unwrap();
    }

    #[test]
    fn prompts_with_labels_that_have_a_text_count_as_they_always_did() {
        let digest = |label: Value| {
            let prompt = crate::data::Prompt {
                ids: vec![1, 2].into(),
                label: Label::of(label).unwrap(),
                ..Default::default()
            };
            digest_of_prompts(&PromptSet {
                prompts: vec![prompt],
                dropped: 0,
            })
        };
        let mut hash = Hasher::default();
        for bytes in [&[1, 0, 0, 0, 2, 0, 0, 0][..], &[1], b"[42]"] {
            hash.update(&(bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        }
        assert_eq!(digest("[42]".into()), hash.finish().to_string());
        assert_eq!(digest("42".into()), digest(42.into()));
        assert_ne!(digest("[42]".into()), digest(vec![42].into()), "a list is no text");
        assert_ne!(digest("".into()), digest(Value::Null));
    }

    #[test]
    fn a_model_that_changed_under_its_name_is_refused_and_one_that_nobody_noted_is_not() {
        let place = Location::Hub {
            id: "a/b".into(),
            revision: "main".into(),
        };
        let check = |saved, now| refuse_other_model(saved, now, ("model.reference", &place), Afresh::Here);
        check(None, Some("1")).unwrap();
        check(Some("1"), Some("1")).unwrap();
        for now in [Some("2"), None] {
            let refused = check(Some("1"), now).unwrap_err();
            let words = refused.to_string();
            assert!(refused.is::<Invalid>());
            assert!(
                words.contains("model.reference (a/b, main)") && words.contains("give model.reference.hub.revision"),
                "{words}"
            );
        }
    }
}
