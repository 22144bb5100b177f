//! Resuming from a checkpoint: under the configuration that made it, except for the fields that may change.

use anyhow::Result;
use ppo_crds::RunConfig;
use ppo_crds::spec::Role;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::guard::Afresh;
use super::places;
use crate::actor::{planned_updates, schedule};
use crate::data::total_steps;
use crate::manifest::Invalid;
use crate::run_state::State;

/// What may change and leaves every result as it is, or is told beside it. Engines may round otherwise than before (`rollout.engine`, `rollout.dtype`):
/// the actor learns by log-probabilities of its own.
const MAY_CHANGE: [&str; 6] = ["name", "length", "checkpoint", "telemetry", "evaluation", "rollout"];

/// What may change where the run diverged: without it, the same numbers would end the same way.
const CURES: [&str; 5] = [
    "optimizer.actorLearningRate",
    "optimizer.criticLearningRate",
    "optimizer.maxGradNorm",
    "algorithm.kl.coef",
    "algorithm.kl.stopAbove",
];

/// How a remote reward is asked. What its servers are may be said anew where they moved: their scores are what they say they are, as before.
const ASKED: [&str; 5] = ["urls", "timeoutSeconds", "maxRetries", "maxConcurrency", "batchSize"];

/// A run that goes on from a checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct Continuation<'a> {
    /// The checkpoint's.
    pub state: &'a State,
    /// The configuration that it goes on under.
    pub now: &'a RunConfig,
    /// Whether the run diverged after that checkpoint.
    pub diverged: bool,
}

impl Continuation<'_> {
    /// A checkpoint goes on only under the configuration that made it; the job's name, how long it is, how often to look and to save, how a remote
    /// reward is asked, and what changes memory and speed alone, may change, and where the run diverged what may prevent it. So may a path or a hub's revision where what
    /// lies there is compared by digests: a run whose branch moved goes on with the commit that it began with.
    ///
    /// # Errors
    /// [`Invalid`], with every field that is another one.
    pub fn check(&self, afresh: Afresh) -> Result<()> {
        let (before, after) = self.both()?;
        let (before, after) = (self.compared(before), self.compared(after));
        let fields = after.as_object().into_iter().flatten();
        let changed: Vec<String> = fields
            .filter(|(name, _)| !MAY_CHANGE.contains(&name.as_str()))
            .flat_map(|(name, value)| differences(name, before.get(name).unwrap_or(&Value::Null), value))
            .collect();
        if changed.is_empty() {
            return Ok(());
        }
        let words = format!(
            "it was made under another configuration; restore the manifest, or {}\n{}",
            afresh.words(),
            changed.join("\n")
        );
        Err(Invalid::new(words).into())
    }

    /// What has changed and changes what is learnt, in words; the order of a run's steps comes from `prompts` prompts.
    pub fn changes(&self, prompts: usize) -> Vec<String> {
        let (before, after) = self.both().unwrap_or_default();
        let cures = CURES.iter().filter_map(|field| {
            let pointer = pointer(field);
            let (was, is) = (before.pointer(&pointer)?, after.pointer(&pointer)?);
            (was != is).then(|| format!("{field} was {was}, is {is}"))
        });
        cures
            .chain(self.new_precision())
            .chain(self.new_servers())
            .chain(self.new_length(prompts))
            .collect()
    }

    /// What engines of another number format come to.
    fn new_precision(&self) -> Option<String> {
        let before = RunConfig::deserialize(&self.state.run_config).ok()?;
        let (was, is) = (before.dtype(Role::Rollout), self.now.dtype(Role::Rollout));
        let words = "from here on samples are drawn with other rounding";
        (was != is).then(|| format!("roles.rollout.dtype was {}, is {}: {words}", was.name(), is.name()))
    }

    /// Other servers that score. Their addresses are not told: some have a password.
    fn new_servers(&self) -> Option<String> {
        let before = RunConfig::deserialize(&self.state.run_config).ok()?;
        let (was, is) = (before.reward.remote?, self.now.reward.remote.as_ref()?);
        let words = "roles.reward.remote.urls are others: from here on these servers score";
        (was.urls != is.urls).then(|| words.to_owned())
    }

    /// What another length comes to: the learning rate's schedule spans the whole run, and jumps to where it would be.
    fn new_length(&self, prompts: usize) -> Option<String> {
        let before = RunConfig::deserialize(&self.state.run_config).ok()?;
        let steps = |config: &RunConfig| total_steps(config.length, prompts, config.batch.rollout_batch_size);
        let (was, is) = (steps(&before), steps(self.now));
        if was == is {
            return None;
        }
        let words = format!("the run had {was} steps, has {is}");
        if is <= self.state.step {
            return Some(format!(
                "{words}: {} are made already, and it ends with these",
                self.state.step
            ));
        }
        let optimizer = &self.now.optimizer;
        let rate = |steps| schedule::factor(optimizer, self.state.actor_updates, planned_updates(self.now, steps).0);
        Some(match (rate(was), rate(is)) {
            (was, is) if was == is => words,
            (was, is) => format!(
                "{words}: the learning rate's schedule spans them, and goes on at {is:.3} of the full rate, where that of the run as it was \
                 would be at {was:.3}"
            ),
        })
    }

    /// The checkpoint's configuration and the present one. Where an older version of this program made the checkpoint, it has what newer fields
    /// default to.
    fn both(&self) -> serde_json::Result<(Value, Value)> {
        let Ok(saved) = RunConfig::deserialize(&self.state.run_config) else {
            return Ok((self.state.run_config.clone(), serde_json::to_value(self.now)?));
        };
        let (mut saved, now) = (places::resolved(&saved), places::resolved(self.now));
        if let Some(known) = &self.state.inputs {
            places::take(&mut saved, &now, known);
        }
        Ok((serde_json::to_value(saved)?, serde_json::to_value(now)?))
    }

    /// A configuration without what may change within its blocks.
    fn compared(&self, config: Value) -> Value {
        let mut config = without_memory(config, self.now);
        if let Some(remote) = config.pointer_mut("/reward/remote").and_then(Value::as_object_mut) {
            remote.retain(|field, _| !ASKED.contains(&field.as_str()));
        }
        for field in CURES.iter().filter(|_| self.diverged) {
            if let Some(value) = config.pointer_mut(&pointer(field)) {
                *value = Value::Null;
            }
        }
        config
    }
}

/// A field's place in JSON.
fn pointer(field: &str) -> String {
    format!("/{}", field.replace('.', "/"))
}

/// The fields at and below `field` that are others, each in words. What is given in another way, as a model by its path and no longer by
/// its name on the hub, has no field in common, and is told whole; so is a list.
fn differences(field: &str, was: &Value, is: &Value) -> Vec<String> {
    if was == is {
        return Vec::new();
    }
    match (was, is) {
        (Value::Object(before), Value::Object(after)) if before.keys().any(|name| after.contains_key(name)) => {
            let gone = before.keys().filter(|name| !after.contains_key(*name));
            let names = after.keys().chain(gone);
            let of = |block: &Map<String, Value>, name: &str| block.get(name).cloned().unwrap_or_default();
            names
                .flat_map(|name| differences(&format!("{field}.{name}"), &of(before, name), &of(after, name)))
                .collect()
        }
        _ => vec![format!("{}: was {was}, is {is}", in_manifest(field))],
    }
}

/// What the manifest calls a field of what runs, where it is in another block there.
fn in_manifest(field: &str) -> String {
    match field {
        "model.referenceDtype" => "roles.reference.dtype".to_owned(),
        "prompts.path" => "prompts.source".to_owned(),
        "batch.maxDraws" => "batch.dynamicSampling.maxDraws".to_owned(),
        "algorithm.estimator" | "algorithm.gamma" | "algorithm.lambda" | "algorithm.whiten" | "algorithm.deviation" => {
            field.replace("algorithm.", "algorithm.advantage.")
        }
        _ if field == "reward" || field.starts_with("reward.") => format!("roles.{field}"),
        _ => field.to_owned(),
    }
}

/// A configuration without the fields that say how a pass is cut and what of it is kept: they change memory and speed, and of results the
/// rounding. Their defaults depend on the number of ranks.
fn without_memory(mut config: Value, now: &RunConfig) -> Value {
    let fields = [
        ("batch", "microRolloutBatchSize", true),
        ("batch", "microTrainBatchSize", !now.algorithm.means_micro_batches()),
        ("model", "activationCheckpointing", true),
    ];
    for (block, field, may_change) in fields {
        let block = config.get_mut(block).and_then(Value::as_object_mut);
        if let Some(block) = block.filter(|_| may_change) {
            block.remove(field);
        }
    }
    config
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ppo_crds::manifest::parse_manifest;
    use ppo_crds::run_config::{Location, RewardModel, RunLength};
    use ppo_crds::spec::{DType, Estimator, Overlap, Profile, RemoteRewardSpec, Schedule};
    use ppo_crds::{Environment, resolve};
    use serde_json::json;

    use super::*;
    use crate::run_state::Inputs;

    fn config() -> RunConfig {
        let manifest = json!({
            "apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "metadata": {"name": "guard"},
            "spec": {"model": {"policy": {"path": "p"}}, "prompts": {"source": {"path": "d.jsonl"}},
                     "roles": {"reward": {"rules": [{"json": {}}]}}},
        });
        let job = parse_manifest(&manifest.to_string(), "job.json").unwrap();
        let here = Environment::Laptop {
            manifest_folder: "/".into(),
        };
        resolve(&job, &here).unwrap()
    }

    /// Of a checkpoint after 5 steps.
    fn state(saved: &Value, inputs: Option<&Inputs>) -> State {
        State {
            step: 5,
            draws: None,
            kl_coefficient: 0.1,
            actor_updates: 5,
            critic_updates: 5,
            quality: None,
            kl: None,
            run_config: saved.clone(),
            inputs: inputs.cloned(),
        }
    }

    fn check_at(afresh: Afresh, (saved, inputs): (&Value, Option<&Inputs>), now: &RunConfig) -> Result<()> {
        let (state, diverged) = (&state(saved, inputs), false);
        Continuation { state, now, diverged }.check(afresh)
    }

    fn check(saved: (&Value, Option<&Inputs>), now: &RunConfig) -> Result<()> {
        check_at(Afresh::Here, saved, now)
    }

    #[test]
    fn a_checkpoint_from_before_a_field_was_there_goes_on_where_the_field_has_its_default() {
        let mut now = config();
        let mut saved = serde_json::to_value(&now).unwrap();
        saved.as_object_mut().unwrap().remove("overlap").unwrap();
        for field in ["ratio", "maskTruncated"] {
            saved["algorithm"].as_object_mut().unwrap().remove(field).unwrap();
        }
        check((&saved, None), &now).unwrap();
        now.overlap = Overlap::OneStep;
        let words = check((&saved, None), &now).unwrap_err().to_string();
        assert!(words.contains("overlap: was \"none\", is \"oneStep\""), "{words}");
    }

    #[test]
    fn what_is_another_is_named_by_its_field_and_not_by_its_block() {
        let mut now = config();
        now.optimizer.actor_learning_rate = 0.0002;
        let saved = serde_json::to_value(&now).unwrap();
        now.optimizer.actor_learning_rate = 0.00001;
        let words = check((&saved, None), &now).unwrap_err().to_string();
        let named: Vec<&str> = words.lines().skip(1).collect();
        let is = json!(0.00001);
        assert_eq!(named, [format!("optimizer.actorLearningRate: was 0.0002, is {is}")]);

        let told = |was: Value, is: Value| differences("a", &was, &is);
        assert!(told(json!({"b": [1]}), json!({"b": [1]})).is_empty());
        assert_eq!(
            told(json!({"b": [1, 2]}), json!({"b": [1]})),
            ["a.b: was [1,2], is [1]"]
        );
        assert_eq!(
            told(json!({"b": 1, "c": 2}), json!({"b": 1, "d": {"e": 3}})),
            [r#"a.d: was null, is {"e":3}"#, "a.c: was 2, is null"]
        );
        assert_eq!(
            told(json!({"path": "m"}), json!({"hub": {"id": "x/y"}})),
            [r#"a: was {"path":"m"}, is {"hub":{"id":"x/y"}}"#]
        );
    }

    #[test]
    fn a_field_that_the_manifest_has_in_another_block_is_named_as_it_is_written_there() {
        let mut now = config();
        now.algorithm.gamma = 1.0;
        let saved = serde_json::to_value(&now).unwrap();
        now.algorithm.gamma = 0.5;
        now.batch.max_draws = Some(3);
        let words = check((&saved, None), &now).unwrap_err().to_string();
        let named: Vec<&str> = words.lines().skip(1).collect();
        assert_eq!(
            named,
            [
                "algorithm.advantage.gamma: was 1.0, is 0.5",
                "batch.dynamicSampling.maxDraws: was null, is 3"
            ]
        );
    }

    #[test]
    fn what_changes_memory_and_speed_alone_may_change_and_so_may_the_name() {
        let mut now = config();
        let saved = serde_json::to_value(&now).unwrap();
        now.name = "again".into();
        now.batch.micro_rollout_batch_size += 1;
        now.batch.micro_train_batch_size += 1;
        now.model.activation_checkpointing = !now.model.activation_checkpointing;
        check((&saved, None), &now).unwrap();
        // Of these a mean of means depends.
        now.algorithm.profile = Profile::Trl;
        now.algorithm.estimator = Estimator::Gae;
        let mut saved = saved;
        saved["algorithm"] = serde_json::to_value(&now.algorithm).unwrap();
        let refused = check_at(Afresh::InPod(Path::new("/volumes/c")), (&saved, None), &now).unwrap_err();
        assert!(refused.is::<Invalid>());
        let words = refused.to_string();
        assert!(
            words.contains("\nbatch.microTrainBatchSize: was") && words.contains("move /volumes/c away"),
            "{words}"
        );
    }

    #[test]
    fn engines_may_take_another_number_format_which_is_told_and_a_reference_or_a_reward_model_may_not() {
        let mut began = config();
        began.reward.model = Some(RewardModel {
            source: Location::Path("rm".into()),
            weight: 1.0,
            dtype: None,
        });
        let saved = serde_json::to_value(&began).unwrap();
        let state = state(&saved, None);
        let told = |now: &RunConfig| {
            let (state, diverged) = (&state, false);
            let goes_on = Continuation { state, now, diverged };
            goes_on.check(Afresh::Here).map(|()| goes_on.changes(10))
        };
        assert!(told(&began).unwrap().is_empty());
        let mut engines = began.clone();
        engines.rollout.dtype = Some(DType::Float32);
        assert_eq!(
            told(&engines).unwrap(),
            ["roles.rollout.dtype was bfloat16, is float32: from here on samples are drawn with other rounding"]
        );
        let mut reference = began.clone();
        reference.model.reference_dtype = Some(DType::Float32);
        let words = told(&reference).unwrap_err().to_string();
        assert!(
            words.ends_with("\nroles.reference.dtype: was null, is \"float32\""),
            "{words}"
        );
        let mut reward = began.clone();
        if let Some(model) = &mut reward.reward.model {
            model.dtype = Some(DType::Float32);
        }
        let words = told(&reward).unwrap_err().to_string();
        assert!(
            words.ends_with("\nroles.reward.model.dtype: was null, is \"float32\""),
            "{words}"
        );
    }

    #[test]
    fn a_remote_reward_may_be_asked_in_another_way_and_elsewhere_which_is_told_and_weigh_no_other() {
        let mut began = config();
        let remote = json!({"urls": ["http://a/score"], "weight": 2});
        began.reward.remote = Some(serde_json::from_value(remote).unwrap());
        let state = state(&serde_json::to_value(&began).unwrap(), None);
        let told = |change: &dyn Fn(&mut RemoteRewardSpec)| {
            let mut now = began.clone();
            change(now.reward.remote.as_mut().unwrap());
            let (state, now, diverged) = (&state, &now, false);
            let goes_on = Continuation { state, now, diverged };
            goes_on.check(Afresh::Here).map(|()| goes_on.changes(10))
        };
        let patient = told(&|remote| {
            remote.timeout_seconds += 1;
            remote.max_retries += 1;
            remote.max_concurrency += 1;
            remote.batch_size += 1;
        });
        assert!(patient.unwrap().is_empty());
        let elsewhere = told(&|remote| remote.urls = vec!["http://b/score".into()]);
        assert_eq!(
            elsewhere.unwrap(),
            ["roles.reward.remote.urls are others: from here on these servers score"]
        );
        let words = told(&|remote| remote.weight = 1.0).unwrap_err().to_string();
        assert!(
            words.ends_with("\nroles.reward.remote.weight: was 2.0, is 1.0"),
            "{words}"
        );
        let mut without = began.clone();
        without.reward.remote = None;
        let (state, now, diverged) = (&state, &without, false);
        let goes_on = Continuation { state, now, diverged };
        goes_on.check(Afresh::Here).unwrap_err();
    }

    #[test]
    fn a_revision_may_change_where_weights_are_compared_by_their_digest_and_nowhere_else() {
        let at = |revision: &str| Location::Hub {
            id: "a/b".into(),
            revision: revision.into(),
        };
        let mut now = config();
        now.model.policy = at("main");
        now.model.reference = Some(at("main"));
        let saved = serde_json::to_value(&now).unwrap();
        let known = Inputs {
            reference: Some("1".into()),
            ..Inputs::default()
        };
        let check = |inputs: Option<&Inputs>, now: &RunConfig| check((&saved, inputs), now);
        now.model.policy = at("0123abc");
        check(Some(&Inputs::default()), &now).unwrap();
        check(None, &now).unwrap_err();
        now.model.reference = Some(at("0123abc"));
        check(Some(&known), &now).unwrap();
        check(Some(&Inputs::default()), &now).unwrap_err();
        now.model.reference = Some(Location::Path("b".into()));
        check(Some(&known), &now).unwrap_err();
    }

    #[test]
    fn what_is_compared_by_its_digest_may_have_moved_and_another_model_is_still_another_one() {
        let mut now = config();
        let saved = serde_json::to_value(&now).unwrap();
        let known = Inputs {
            reference: Some("1".into()),
            ..Inputs::default()
        };
        let check = |inputs: &Inputs, now: &RunConfig| check((&saved, Some(inputs)), now);
        now.prompts.path = Path::new("/elsewhere/d.jsonl").to_owned().into();
        check(&Inputs::default(), &now).unwrap();
        let moved = Location::Path("/elsewhere/p".into());
        now.model.reference = now.model.reference.map(|_| moved.clone());
        now.model.critic = now.model.critic.map(|_| moved.clone());
        now.model.policy = moved;
        check(&known, &now).unwrap();
        // Nothing says that it is the model that the run began with.
        let words = check(&Inputs::default(), &now).unwrap_err().to_string();
        assert!(words.contains("model.policy.path: was"), "{words}");
        now.model.policy = Location::Path("/elsewhere/q".into());
        check(&known, &now).unwrap_err();
    }

    #[test]
    fn a_place_is_the_same_one_however_its_path_is_written_and_wherever_the_run_is_started() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("model")).unwrap();
        let at = |path: &str| RunConfig {
            model: ppo_crds::run_config::Model {
                policy: Location::Path(root.path().join(path)),
                ..config().model
            },
            ..config()
        };
        let saved = serde_json::to_value(at("model")).unwrap();
        check((&saved, None), &at("model/../model")).unwrap();
        check((&saved, None), &at("other")).unwrap_err();
        let mut relative = config();
        relative.model.policy = Location::Path("p".into());
        let kept = serde_json::to_value(places::kept(&relative)).unwrap();
        assert_eq!(
            kept["model"]["policy"]["path"],
            json!(std::path::absolute("p").unwrap())
        );
        check((&kept, None), &relative).unwrap();
    }

    #[test]
    fn what_may_keep_a_run_from_diverging_may_change_where_it_did_and_is_told() {
        let mut now = config();
        now.algorithm.kl.stop_above = Some(1.0);
        let state = state(&serde_json::to_value(&now).unwrap(), None);
        now.optimizer.actor_learning_rate = 1e-7;
        now.algorithm.kl.stop_above = None;
        let after = |diverged: bool, now: &RunConfig| {
            let state = &state;
            let goes_on = Continuation { state, now, diverged };
            goes_on.check(Afresh::Here).map(|()| goes_on.changes(10))
        };
        let refused = after(false, &now).unwrap_err().to_string();
        assert!(
            refused.contains("\noptimizer.actorLearningRate: was ")
                && refused.contains("\nalgorithm.kl.stopAbove: was 1.0, is null"),
            "{refused}"
        );
        let told = after(true, &now).unwrap();
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].starts_with("optimizer.actorLearningRate was "), "{told:?}");
        assert_eq!(told[1], "algorithm.kl.stopAbove was 1.0, is null");
        // What else an optimizer has stays.
        now.optimizer.weight_decay += 0.5;
        after(true, &now).unwrap_err();
    }

    #[test]
    fn a_longer_run_is_told_where_its_schedule_goes_on() {
        let mut now = config();
        let updates = (now.batch.updates_per_epoch() * now.batch.ppo_epochs) as u64;
        (now.optimizer.schedule, now.optimizer.min_learning_rate_ratio) = (Schedule::Linear, 0.0);
        now.length = RunLength::Steps(5);
        let state = State {
            actor_updates: 5 * updates,
            ..state(&serde_json::to_value(&now).unwrap(), None)
        };
        let told = |now: &RunConfig| {
            let (state, diverged) = (&state, false);
            let goes_on = Continuation { state, now, diverged };
            goes_on.check(Afresh::Here).unwrap();
            goes_on.changes(10)
        };
        assert!(told(&now).is_empty());
        now.length = RunLength::Steps(10);
        let words = told(&now).remove(0);
        assert!(
            words.contains("had 5 steps, has 10") && words.contains("would be at 0.000"),
            "{words}"
        );
        now.length = RunLength::Steps(4);
        let words = told(&now).remove(0);
        assert!(
            words.ends_with("has 4: 5 are made already, and it ends with these"),
            "{words}"
        );
    }
}
