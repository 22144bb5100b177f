//! Every field of the spec, with values from its schema: the API server and our own checks refuse the same ones.

use std::collections::BTreeSet;

use ppo_crds::Environment;
use ppo_crds::manifest::parse_manifest;
use ppo_crds::validate::validate;
use ppo_tests::ControlPlane;
use serde_json::{Value, json};

use crate::manifest::{get, host, set};
use crate::schema::{nodes, nodes_of_the_spec};
use crate::server::{Refusal, create_all};
use crate::values::{Candidate, candidates};

/// One manifest to ask about.
struct Trial {
    path: String,
    candidate: Candidate,
    manifest: Value,
}

fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (path, node) in nodes_of_the_spec().into_iter().filter(|(path, _)| path != "spec") {
        for candidate in candidates(&path, &node) {
            let mut manifest = host(&path);
            set(&mut manifest, &path, candidate.value.clone());
            trials.push(Trial {
                path: path.clone(),
                candidate,
                manifest,
            });
        }
    }
    trials
}

/// Messages of all rules: a value within its own limits may still break one.
fn rules() -> BTreeSet<String> {
    let of = |node: &Value| node["x-kubernetes-validations"].as_array().cloned().unwrap_or_default();
    let rules = nodes().into_iter().flat_map(|(_, node)| of(&node));
    rules.map(|rule| rule["message"].as_str().unwrap().to_owned()).collect()
}

/// What our own check says: nothing, or why not.
pub fn own(manifest: &Value) -> Result<(), String> {
    // JSON is YAML.
    let job = parse_manifest(&manifest.to_string(), "job.json").map_err(|error| error.to_string())?;
    validate(&job, &Environment::cluster()).map_err(|errors| errors.to_string())
}

/// Whether the words are of a limit of the schema.
fn is_limit(words: &str, path: &str) -> bool {
    let field = path.replace("[]", "[0]");
    let limits = ["is out of range", "is empty", "at most", "at least"];
    let of_it = words.lines().filter(|line| line.contains(&format!("{field}: ")));
    of_it
        .into_iter()
        .any(|line| limits.iter().any(|limit| line.contains(limit)) && !line.contains("must be at most"))
}

#[tokio::test]
async fn values_outside_their_limits_are_refused_and_those_inside_accepted_here_and_there() {
    let cluster = ControlPlane::shared().await.unwrap();
    let namespace = cluster.namespace("leaves").await.unwrap();
    let (trials, rules) = (trials(), rules());
    assert!(trials.len() > 1000, "{}", trials.len());
    let answers = create_all(&namespace, trials.iter().map(|trial| trial.manifest.clone()).collect()).await;
    let mut wrong = Vec::new();
    let mut never = trials
        .iter()
        .filter(|trial| trial.candidate.allowed)
        .map(|trial| &trial.path)
        .collect::<BTreeSet<_>>();
    for (trial, answer) in trials.iter().zip(answers) {
        if answer.is_ok() {
            never.remove(&trial.path);
        }
        if let Some(why) = disagreement(trial, answer, &rules) {
            let mut value = trial.candidate.value.to_string();
            value.truncate(value.floor_char_boundary(60));
            wrong.push(format!("{} = {value}: {why}", trial.path));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        trials.len(),
        wrong.join("\n")
    );
    assert!(never.is_empty(), "no value of these is ever accepted: {never:?}");
}

/// How the answers are not what they should be.
fn disagreement(trial: &Trial, answer: Result<Value, Refusal>, rules: &BTreeSet<String>) -> Option<String> {
    let own = own(&trial.manifest);
    match (trial.candidate.allowed, answer, own) {
        (false, Ok(_), _) => Some("the API server accepts it".into()),
        (false, Err(_), Ok(())) => Some("our own check accepts it".into()),
        (false, Err(refused), Err(_)) => {
            let field = trial.path.replace("[]", "[0]");
            let named =
                refused.causes.iter().any(|cause| cause.field.starts_with(&field)) || refused.message.contains(&field);
            (!named).then(|| format!("refused, but not for this field: {refused:?}"))
        }
        (true, Ok(stored), own) => {
            let given = get(&trial.manifest, &trial.path);
            let kept = same(given, get(&stored, &trial.path));
            match own {
                _ if !kept => Some(format!("it is stored as {:?}", get(&stored, &trial.path))),
                Err(own) if is_limit(&own, &trial.path) => Some(format!("only our own check refuses it: {own}")),
                _ => None,
            }
        }
        (true, Err(refused), own) => {
            let by_rule = |message: &str| rules.iter().any(|rule| message.contains(rule));
            let other = refused.causes.iter().find(|cause| !by_rule(&cause.message));
            match (other, own) {
                (Some(cause), _) => Some(format!("the API server refuses it: {cause:?}")),
                (None, _) if refused.causes.is_empty() => {
                    Some(format!("the API server refuses it: {}", refused.message))
                }
                (None, Ok(())) => Some(format!("only the API server refuses it: {}", refused.message)),
                (None, Err(_)) => None,
            }
        }
    }
}

/// Defaults are added to blocks; 1.0 comes back as 1.
fn same(given: Option<&Value>, stored: Option<&Value>) -> bool {
    match (given, stored) {
        (Some(Value::Number(given)), Some(Value::Number(stored))) => given.as_f64() == stored.as_f64(),
        (Some(Value::Object(given)), Some(Value::Object(stored))) => {
            given.iter().all(|(name, value)| same(Some(value), stored.get(name)))
        }
        (Some(Value::Array(given)), Some(Value::Array(stored))) => {
            given.len() == stored.len()
                && given
                    .iter()
                    .zip(stored)
                    .all(|(given, stored)| same(Some(given), Some(stored)))
        }
        (given, stored) => given == stored,
    }
}

#[tokio::test]
async fn a_field_that_does_not_exist_is_refused_in_every_block() {
    let cluster = ControlPlane::shared().await.unwrap();
    let namespace = cluster.namespace("unknown").await.unwrap();
    let mut blocks = nodes_of_the_spec();
    blocks.retain(|(_, node)| node["type"] == "object" && node["x-kubernetes-preserve-unknown-fields"] != true);
    assert!(blocks.len() > 30, "{}", blocks.len());
    let manifest = |path: &str| {
        let field = format!("{path}.nosuch");
        let mut manifest = host(&field);
        set(&mut manifest, &field, json!(1));
        manifest
    };
    let manifests: Vec<Value> = blocks.iter().map(|(path, _)| manifest(path)).collect();
    let answers = create_all(&namespace, manifests.clone()).await;
    for (((path, _), manifest), answer) in blocks.into_iter().zip(manifests).zip(answers) {
        let Err(refused) = answer else {
            panic!("the API server takes {path}.nosuch")
        };
        let words = format!("unknown field \"{}.nosuch\"", path.replace("[]", "[0]"));
        assert!(refused.message.contains(&words), "{path}: {refused:?}");
        let own = own(&manifest).unwrap_err();
        assert!(own.contains("nosuch: unknown field"), "{path}: {own}");
    }
}
