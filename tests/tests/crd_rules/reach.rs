//! Every field of the spec reaches what it asks for: another value of it is another plan of the operator, be it another
//! RunConfig, another pod or another time to look again. A field that is read nowhere would be a promise that nobody keeps.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

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

/// Fields that say what becomes of a job later on, each with the file and the name of a test that sees it happen. The plan for a job that
/// was just made is the same whatever they say.
const LATER: [(&str, &str, &str); 16] = [
    (
        "spec.failurePolicy.maxRestarts",
        "tests/tests/real_cluster/ends.rs",
        "an_engine_without_memory_is_restarted_until_the_budget_is_spent_and_the_job_says_oomkilled",
    ),
    (
        "spec.failurePolicy.maxRestartsPerRole.actor",
        "operator/src/ledger.rs",
        "a_roles_budget_is_for_its_own_restarts_alone",
    ),
    (
        "spec.failurePolicy.maxRestartsPerRole.reference",
        "tests/tests/lifecycle/restarts.rs",
        "a_role_that_keeps_failing_ends_the_job_with_its_last_words_and_the_budget",
    ),
    (
        "spec.failurePolicy.maxRestartsPerRole.reward",
        "operator/src/ledger.rs",
        "a_roles_budget_is_for_its_own_restarts_alone",
    ),
    (
        "spec.failurePolicy.maxRestartsPerRole.rollout",
        "operator/src/ledger.rs",
        "a_roles_budget_is_for_its_own_restarts_alone",
    ),
    (
        "spec.failurePolicy.rules[].action",
        "tests/tests/lifecycle/restarts.rs",
        "the_users_rules_come_first",
    ),
    (
        "spec.failurePolicy.rules[].exitCodes[]",
        "tests/tests/lifecycle/restarts.rs",
        "the_users_rules_come_first",
    ),
    (
        "spec.failurePolicy.rules[].maxRestarts",
        "operator/src/ledger.rs",
        "a_rule_that_ignores_has_its_own_budget_and_uses_no_other",
    ),
    (
        "spec.failurePolicy.rules[].podConditions[]",
        "operator/src/failure.rs",
        "a_rule_is_for_the_conditions_and_the_roles_that_it_names_and_for_all_where_it_names_none",
    ),
    (
        "spec.failurePolicy.rules[].reasons[]",
        "tests/tests/lifecycle/restarts.rs",
        "the_users_rules_come_first",
    ),
    (
        "spec.failurePolicy.rules[].roles[]",
        "operator/src/failure.rs",
        "a_rule_is_for_the_conditions_and_the_roles_that_it_names_and_for_all_where_it_names_none",
    ),
    (
        "spec.roles.rollout.minReplicas",
        "tests/tests/gang/pod_groups.rs",
        "volcano_places_the_floor_of_every_role",
    ),
    (
        "spec.runPolicy.cleanPodPolicy",
        "tests/tests/lifecycle/ends.rs",
        "a_finished_job_keeps_its_pods_where_none_are_to_be_cleaned_up",
    ),
    (
        "spec.runPolicy.managedBy",
        "tests/tests/lifecycle/runs.rs",
        "a_job_that_another_controller_manages_is_left_alone",
    ),
    (
        "spec.runPolicy.progressDeadlineSeconds",
        "tests/tests/lifecycle/actor.rs",
        "a_run_that_hangs_is_restarted_and_told_of_with_its_stage_and_whom_it_waits_for",
    ),
    (
        "spec.runPolicy.ttlSecondsAfterFinished",
        "tests/tests/lifecycle/ends.rs",
        "the_job_object_deletes_itself_after_its_time_and_takes_all_with_it",
    ),
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
    let later: Vec<&str> = LATER.iter().map(|(path, ..)| *path).collect();
    assert_eq!(
        unread, later,
        "fields whose value makes no difference, and those of which that is known"
    );
}

#[test]
fn each_field_that_counts_later_on_has_the_test_that_is_named_for_it() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for (field, file, test) in LATER {
        let text = std::fs::read_to_string(repository.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        let begins = format!("fn {test}() ");
        assert!(text.contains(&begins), "{field}: there is no test {test} in {file}");
    }
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
