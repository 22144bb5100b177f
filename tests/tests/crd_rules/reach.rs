//! Every field of the spec reaches what it asks for: another value of it is another plan of the operator, be it another
//! RunConfig, another pod or another time to look again. A field that is read nowhere would be a promise that nobody keeps.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;
use ppo_crds::PpoJob;
use ppo_crds::pod::annotation;
use ppo_operator::gang::{self, Admission};
use ppo_operator::job::Job;
use ppo_operator::plan::plan;
use ppo_operator::settings::PodSettings;
use ppo_operator::snapshot::Snapshot;
use ppo_operator::world::{Children, Kind};
use serde_json::{Value, json};

use crate::manifest::{host, merge, set};
use crate::schema::nodes_of_the_spec;
use crate::values::candidates;

/// Fields that say what becomes of a job later on, each with the test that sees it happen. The plan for a job that was just
/// made is the same whatever they say.
const LATER: [(&str, &str); 16] = [
    ("spec.failurePolicy.maxRestarts", "lifecycle: restarts"),
    ("spec.failurePolicy.maxRestartsPerRole.actor", "lifecycle: restarts"),
    ("spec.failurePolicy.maxRestartsPerRole.reference", "operator: ledger"),
    ("spec.failurePolicy.maxRestartsPerRole.reward", "operator: ledger"),
    ("spec.failurePolicy.maxRestartsPerRole.rollout", "operator: ledger"),
    ("spec.failurePolicy.rules[].action", "lifecycle: restarts"),
    ("spec.failurePolicy.rules[].exitCodes[]", "lifecycle: restarts"),
    ("spec.failurePolicy.rules[].maxRestarts", "operator: failure"),
    ("spec.failurePolicy.rules[].podConditions[]", "lifecycle: restarts"),
    ("spec.failurePolicy.rules[].reasons[]", "lifecycle: restarts"),
    ("spec.failurePolicy.rules[].roles[]", "operator: failure"),
    ("spec.roles.rollout.minReplicas", "lifecycle: scales"),
    ("spec.runPolicy.cleanPodPolicy", "lifecycle: ends"),
    ("spec.runPolicy.managedBy", "lifecycle: objects"),
    ("spec.runPolicy.progressDeadlineSeconds", "lifecycle: actor"),
    ("spec.runPolicy.ttlSecondsAfterFinished", "lifecycle: ends"),
];

/// What the operator would do for the manifest, just applied on a cluster that has Volcano.
fn reached(manifest: &Value) -> Option<String> {
    let object: PpoJob = serde_json::from_value(manifest.clone()).ok()?;
    let job = Job::of(&object);
    job.config.as_ref().ok()?;
    let now = Timestamp::UNIX_EPOCH;
    let seen = Snapshot {
        children: Children::default(),
        expected: Default::default(),
        report: None,
        gang: gang::choose(&job.spec.scheduling, &[Kind::VolcanoPodGroup].into()),
        lookups: Default::default(),
        admission: Admission::Free,
        unapproved: None,
        refused: None,
        token_lost: false,
        lost_nodes: BTreeSet::new(),
        restart_request: object.metadata.annotations?.get(annotation::RESTART).cloned(),
        listening_since: now,
        vanished: Vec::new(),
    };
    let plan = plan(&job, &seen, &Default::default(), &PodSettings::default(), now);
    Some(format!("{plan:?}"))
}

#[test]
fn every_field_reaches_the_plan() {
    let mut plans: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let leaves = nodes_of_the_spec().into_iter().filter(|(_, node)| {
        // The fields of a block, and the entries of a list, are nodes of their own.
        let is_template = node["x-kubernetes-preserve-unknown-fields"] == true;
        node["type"] != "array" && (node["type"] != "object" || is_template)
    });
    for (path, node) in leaves {
        let mut host = host(&path);
        host["metadata"]["annotations"] = json!({});
        if let Some(patch) = heeded_with(&path) {
            merge(&mut host["spec"], patch);
        }
        // A field left out is a value too.
        let found = plans.entry(path.clone()).or_default();
        found.extend(reached(&host));
        let values = candidates(&path, &node).into_iter().filter(|it| it.allowed);
        for value in values.map(|it| it.value).chain(also(&path)) {
            let mut manifest = host.clone();
            set(&mut manifest, &path, value);
            found.extend(reached(&manifest));
        }
    }
    let unread: Vec<&str> = plans
        .iter()
        .filter(|(_, plans)| plans.len() < 2)
        .map(|(path, _)| path.as_str())
        .collect();
    let later: Vec<&str> = LATER.iter().map(|(path, _)| *path).collect();
    assert_eq!(
        unread, later,
        "fields whose value makes no difference, and those of which that is known"
    );
}

/// Without what a field is heeded by nobody.
fn heeded_with(path: &str) -> Option<Value> {
    // Several pods need a folder that they share.
    if path == "spec.roles.actor.nodes" {
        return Some(json!({"checkpoint": {"pvc": "claim"}}));
    }
    if path == "spec.algorithm.advantage.deviation" {
        return Some(json!({"algorithm": {"advantage": {"estimator": "grpo"}}, "batch": {"nSamplesPerPrompt": 2}}));
    }
    let model = || json!({"roles": {"reward": {"model": {"source": {"path": "/models/reward"}}}}});
    path.starts_with("spec.roles.reward.placement").then(model)
}

/// More values, where those of the schema alone make no good manifest: on a cluster a path is absolute, of checkpoints where
/// a pod can write.
fn also(path: &str) -> Vec<Value> {
    match path.ends_with(".path") {
        true => vec![json!("/tmp/a.jsonl"), json!("/tmp/b.jsonl")],
        false => Vec::new(),
    }
}
