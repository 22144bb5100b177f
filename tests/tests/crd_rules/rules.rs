//! Every CEL rule of the definition has a manifest that it, and nothing else, refuses.

mod at_creation;
mod on_update;

use std::collections::BTreeSet;

use kube::api::{Api, Patch, PatchParams, PostParams};
use ppo_crds::PpoJob;
use ppo_tests::ControlPlane;
use serde_json::{Value, json};

use crate::leaves::own;
use crate::manifest::{least, merge};
use crate::schema::nodes;
use crate::server::{create, refusal};

use at_creation::at_creation;
use on_update::on_update;

/// A change of a valid manifest that a rule refuses, as a merge patch.
struct Case {
    /// Where the rule is; `spec` and what lies under it.
    at: String,
    /// Enough of its message to tell it from the others there.
    message: &'static str,
    /// The valid manifest is the least one with this.
    valid: Value,
    /// What is refused.
    change: Value,
}

fn case(at: &str, message: &'static str, valid: Value, change: Value) -> Case {
    Case {
        at: at.to_owned(),
        message,
        valid,
        change,
    }
}

/// A KL whose coefficient adapts.
fn adaptive(horizon: f64) -> Value {
    json!({"controller": {"adaptive": {"target": 6, "horizon": horizon}}})
}

/// Checkpoints in a claim that the operator makes.
fn claim(mode: &str) -> Value {
    json!({"volumeClaim": {"storage": "1Gi", "accessModes": [mode]}})
}

/// A source of rewards.
fn reward(reward: Value) -> Value {
    json!({"roles": {"reward": reward}})
}

/// Place and message of every rule.
fn rules() -> BTreeSet<(String, String)> {
    let mut rules = BTreeSet::new();
    for (path, node) in nodes() {
        for rule in node["x-kubernetes-validations"].as_array().into_iter().flatten() {
            let message = rule["message"].as_str().unwrap().to_owned();
            let named = rule["fieldPath"]
                .as_str()
                .map(|field| field.trim_start_matches('.').to_owned());
            assert!(
                rules.insert((named.unwrap_or(path.clone()), message)),
                "two rules of {path} cannot be told apart: {rule}"
            );
        }
    }
    rules
}

#[test]
fn every_rule_has_a_case() {
    let cases: Vec<Case> = at_creation().into_iter().chain(on_update()).collect();
    let mut rules = rules();
    assert!(rules.len() > 40, "{rules:?}");
    for case in &cases {
        let hit = rules
            .iter()
            .filter(|(at, message)| *at == case.at && message.contains(case.message));
        assert_eq!(hit.count(), 1, "{}: {}", case.at, case.message);
    }
    rules.retain(|(at, message)| {
        !cases
            .iter()
            .any(|case| case.at == *at && message.contains(case.message))
    });
    assert!(rules.is_empty(), "rules that no manifest tests: {rules:?}");
}

#[tokio::test]
async fn a_manifest_that_breaks_a_rule_is_refused_with_its_message_and_for_nothing_else() {
    let cluster = ControlPlane::shared().await.unwrap();
    let namespace = cluster.namespace("rules").await.unwrap();
    create(&namespace, &least()).await.unwrap();
    for Case {
        at, message, change, ..
    } in at_creation()
    {
        let mut manifest = least();
        merge(&mut manifest, change.clone());
        let refused = create(&namespace, &manifest).await;
        let Err(refused) = refused else {
            panic!("{at}: {change} is accepted; {message:?} was expected")
        };
        let field = if at.is_empty() { "<nil>" } else { &at };
        assert!(
            refused.names(field, message) && refused.causes.len() == 1,
            "{at}: {change}: {message:?} was expected: {refused:#?}"
        );
    }
}

#[tokio::test]
async fn what_a_rule_leaves_free_is_accepted() {
    let cluster = ControlPlane::shared().await.unwrap();
    let namespace = cluster.namespace("free").await.unwrap();
    let two = |claim: Value| json!({"checkpoint": {"volumeClaim": claim}, "roles": {"actor": {"nodes": 2}}});
    for change in [
        json!({"algorithm": {"profile": "verl", "kl": {"coef": 0.1, "stopAbove": 1}}, "model": {"reference": {"path": "/r"}}}),
        json!({"algorithm": {"profile": "alpacafarm", "kl": adaptive(1.0)}}),
        json!({"algorithm": {"kl": adaptive(26.0)}}),
        json!({"evaluation": {"source": {"path": "/e.jsonl"}, "nSamplesPerPrompt": 2, "temperature": 0.5}}),
        json!({"roles": {"reference": {"nodes": 3, "gpusPerNode": 7}}}),
        reward(json!({"placement": {"gpusPerNode": 7}})),
        json!({"roles": {"rollout": {"engine": "vllm", "blockSize": 32}}}),
        json!({"roles": {"rollout": {"maxBatchTokens": 255}}}),
        reward(json!({"rules": [{"json": {}, "weight": 0}, {"json": {}, "weight": -1}]})),
        reward(json!({"rules": [{"json": {}, "weight": 0}], "remote": {"urls": ["http://a"]}})),
        two(json!({"storage": "1Gi"})),
        two(json!({"storage": "1Gi", "accessModes": []})),
        two(json!({"storage": "1Gi", "accessModes": ["ReadOnlyMany", "ReadWriteMany"]})),
        json!({"checkpoint": claim("ReadWriteOncePod")}),
    ] {
        let mut manifest = least();
        merge(&mut manifest["spec"], change.clone());
        let accepted = create(&namespace, &manifest).await;
        assert!(accepted.is_ok(), "{change}: {accepted:?}");
        assert_eq!(own(&manifest), Ok(()), "{change}");
    }
}

#[tokio::test]
async fn what_is_fixed_at_creation_cannot_be_added_changed_or_removed() {
    let cluster = ControlPlane::shared().await.unwrap();
    let namespace = cluster.namespace("fixed").await.unwrap();
    let jobs: Api<PpoJob> = namespace.api();
    let dry_run = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    for (
        index,
        Case {
            at,
            message,
            valid,
            change,
        },
    ) in on_update().into_iter().enumerate()
    {
        let name = format!("a{index}");
        let mut manifest = least();
        merge(&mut manifest, valid);
        manifest["metadata"]["name"] = json!(name);
        let job = serde_json::from_value(manifest.clone()).unwrap();
        jobs.create(&PostParams::default(), &job).await.unwrap();
        if let Some(status) = manifest.get("status") {
            let seen = Patch::Merge(json!({"status": status}));
            jobs.patch_status(&name, &PatchParams::default(), &seen).await.unwrap();
        }
        let refused = jobs.patch(&name, &dry_run, &Patch::Merge(&change)).await;
        let Err(refused) = refused.map_err(refusal) else {
            panic!("{at}: {change} is accepted; {message:?} was expected")
        };
        assert!(
            refused.names(&at, message) && refused.causes.len() == 1,
            "{at}: {change}: {message:?} was expected: {refused:#?}"
        );
    }
}

#[tokio::test]
async fn what_may_change_changes_and_engines_may_then_be_any_number() {
    let cluster = ControlPlane::shared().await.unwrap();
    let namespace = cluster.namespace("changes").await.unwrap();
    let jobs: Api<PpoJob> = namespace.api();
    let job = serde_json::from_value(least()).unwrap();
    jobs.create(&PostParams::default(), &job).await.unwrap();
    for change in [
        // 128 prompts do not divide by 5: refused at creation only.
        json!({"roles": {"rollout": {"replicas": 5, "minReplicas": 2, "template": {"metadata": {"labels": {"a": "b"}}}}}}),
        json!({"runPolicy": {"suspend": true, "activeDeadlineSeconds": 7, "ttlSecondsAfterFinished": 7, "cleanPodPolicy": "All",
            "preRunningDeadlineSeconds": 7, "progressDeadlineSeconds": 7}}),
        json!({"scheduling": {"gang": "none", "queue": "a", "priorityClassName": "b"}}),
        json!({"failurePolicy": {"maxRestarts": 7, "rules": [{"action": "Ignore"}]}}),
    ] {
        let patch = Patch::Merge(json!({"spec": change}));
        jobs.patch("a", &PatchParams::default(), &patch).await.unwrap();
    }
}
