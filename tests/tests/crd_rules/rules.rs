//! Every CEL rule of the definition has a manifest that it, and nothing else, refuses.

use std::collections::BTreeSet;

use kube::api::{Api, Patch, PatchParams, PostParams};
use ppo_crds::PpoJob;
use ppo_tests::ControlPlane;
use serde_json::{Value, json};

use crate::leaves::own;
use crate::manifest::{least, merge};
use crate::schema::nodes;
use crate::server::{create, refusal};

/// A change of a valid manifest that a rule refuses, as a merge patch.
struct Case {
    /// Where the rule is; `spec` and what lies under it.
    at: &'static str,
    /// Enough of its message to tell it from the others there.
    message: &'static str,
    /// The valid manifest is the least one with this.
    valid: Value,
    /// What is refused.
    change: Value,
}

fn case(at: &'static str, message: &'static str, valid: Value, change: Value) -> Case {
    Case {
        at,
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

/// Refused at creation.
fn at_creation() -> Vec<Case> {
    let of = |at, message, change: Value| case(at, message, json!({}), json!({"spec": change}));
    let climbing = || json!({"path": null, "pvc": {"claimName": "claim", "path": "a/../../b"}});
    let relative = || json!({"path": "a.jsonl"});
    let none = json!({"path": null});
    let reward = |reward: Value| json!({"roles": {"reward": reward}});
    let mut cases = vec![
        case(
            "",
            "metadata.name must have at most 48",
            json!({}),
            json!({"metadata": {"name": "1a"}}),
        ),
        case(
            "",
            "metadata.name must have at most 48",
            json!({}),
            json!({"metadata": {"name": "a".repeat(49)}}),
        ),
        of("spec", "give episodes or steps", json!({"episodes": 1, "steps": 1})),
        of(
            "spec",
            "model.critic is for",
            json!({"model": {"critic": {"path": "/c"}}, "algorithm": {"advantage": {"estimator": "rloo"}}, "batch": {"nSamplesPerPrompt": 2}}),
        ),
        of(
            "spec",
            "model.reference is not used",
            json!({"model": {"reference": {"path": "/r"}}, "algorithm": {"kl": {"coef": 0}}}),
        ),
        of(
            "spec",
            "model.reference is not used",
            json!({"model": {"reference": {"path": "/r"}}, "algorithm": {"profile": "verl"}}),
        ),
        of(
            "spec.algorithm",
            "kl.stopAbove and kl.controller.adaptive need a KL",
            json!({"algorithm": {"kl": {"coef": 0, "stopAbove": 1}}}),
        ),
        of(
            "spec.algorithm",
            "kl.stopAbove and kl.controller.adaptive need a KL",
            json!({"algorithm": {"profile": "verl", "kl": adaptive(10000.0)}}),
        ),
        of(
            "spec",
            "horizon must be above a fifth",
            json!({"algorithm": {"kl": adaptive(25.6)}}),
        ),
        of(
            "spec.model",
            "reference is not used with adapter",
            json!({"model": {"reference": {"path": "/r"}, "adapter": {}}}),
        ),
        of(
            "spec.model.adapter.targets",
            "name each projection once",
            json!({"model": {"adapter": {"targets": ["q_proj", "v_proj", "q_proj"]}}}),
        ),
        of(
            "spec",
            "replicas must divide",
            json!({"roles": {"rollout": {"replicas": 5}}}),
        ),
        of(
            "spec",
            "batch.trainBatchSize must divide",
            json!({"batch": {"trainBatchSize": 5}}),
        ),
        of(
            "spec",
            "batch.trainBatchSize must be a multiple",
            json!({"batch": {"trainBatchSize": 1}, "roles": {"actor": {"gpusPerNode": 2}}}),
        ),
        of(
            "spec",
            "batch.microTrainBatchSize x",
            json!({"batch": {"microTrainBatchSize": 3}}),
        ),
        of(
            "spec",
            "batch.microTrainBatchSize x",
            json!({"batch": {"trainBatchSize": 32, "microTrainBatchSize": 8}, "roles": {"actor": {"gpusPerNode": 8}}}),
        ),
        of(
            "spec",
            "multiple of the actor's ranks (nodes x gpusPerNode) x",
            json!({"roles": {"actor": {"gpusPerNode": 7}}}),
        ),
        of(
            "spec",
            "multiple of the reference's ranks",
            json!({"roles": {"reference": {"nodes": 3, "gpusPerNode": 0}}}),
        ),
        of(
            "spec",
            "multiple of the reward model's ranks",
            reward(json!({"model": {"source": {"path": "/r"}}, "placement": {"gpusPerNode": 5}})),
        ),
        of(
            "spec",
            "exactMatch and numericMatch compare",
            reward(json!({"rules": [{"exactMatch": {}}]})),
        ),
        of(
            "spec",
            "exactMatch and numericMatch compare",
            reward(json!({"rules": [{"numericMatch": {}}]})),
        ),
        of(
            "spec.model.policy",
            "give exactly one of path, pvc, hub",
            json!({"model": {"policy": {"hub": {"id": "a/b"}}}}),
        ),
        of(
            "spec.model.policy",
            "give exactly one of path, pvc, hub",
            json!({"model": {"policy": none}}),
        ),
        of(
            "spec.model.critic",
            "give exactly one of path, pvc, hub",
            json!({"model": {"critic": {}}}),
        ),
        of(
            "spec.model.reference",
            "give exactly one of path, pvc, hub",
            json!({"model": {"reference": {}}}),
        ),
        of(
            "spec.roles.reward.model.source",
            "give exactly one of path, pvc, hub",
            reward(json!({"model": {"source": {}}})),
        ),
        of(
            "spec.prompts",
            "chatTemplateVariables are for",
            json!({"prompts": {"chatTemplateVariables": {"enable_thinking": false}}}),
        ),
        of(
            "spec.prompts.source",
            "give exactly one of path, pvc",
            json!({"prompts": {"source": none}}),
        ),
        of(
            "spec.evaluation.source",
            "give exactly one of path, pvc",
            json!({"evaluation": {"source": {}}}),
        ),
        of(
            "spec.checkpoint",
            "give at most one of",
            json!({"checkpoint": {"path": "/c", "pvc": "claim"}}),
        ),
        of(
            "spec.checkpoint",
            "give at most one of",
            json!({"checkpoint": {"pvc": "claim", "volumeClaim": {"storage": "1Gi"}}}),
        ),
        of(
            "spec.checkpoint.volumeClaim.accessModes",
            "ReadOnlyMany alone",
            json!({"checkpoint": claim("ReadOnlyMany")}),
        ),
        of(
            "spec.checkpoint.volumeClaim.accessModes",
            "ReadOnlyMany alone",
            json!({"checkpoint": claim("ReadOnlyMany"), "roles": {"actor": {"nodes": 2}}}),
        ),
        of(
            "spec",
            "accessModes needs ReadWriteMany",
            json!({"checkpoint": claim("ReadWriteOnce"), "roles": {"actor": {"nodes": 2}}}),
        ),
        of(
            "spec.model.policy.path",
            "is relative",
            json!({"model": {"policy": relative()}}),
        ),
        of(
            "spec.model.critic.path",
            "is relative",
            json!({"model": {"critic": relative()}}),
        ),
        of(
            "spec.model.reference.path",
            "is relative",
            json!({"model": {"reference": relative()}}),
        ),
        of(
            "spec.roles.reward.model.source.path",
            "is relative",
            reward(json!({"model": {"source": relative()}})),
        ),
        of(
            "spec.prompts.source.path",
            "is relative",
            json!({"prompts": {"source": relative()}}),
        ),
        of(
            "spec.evaluation.source.path",
            "is relative",
            json!({"evaluation": {"source": relative()}}),
        ),
        of("spec.checkpoint.path", "is relative", json!({"checkpoint": relative()})),
        of(
            "spec.model.policy.pvc.path",
            "'..'",
            json!({"model": {"policy": climbing()}}),
        ),
        of(
            "spec.model.critic.pvc.path",
            "'..'",
            json!({"model": {"critic": climbing()}}),
        ),
        of(
            "spec.model.reference.pvc.path",
            "'..'",
            json!({"model": {"reference": climbing()}}),
        ),
        of(
            "spec.roles.reward.model.source.pvc.path",
            "'..'",
            reward(json!({"model": {"source": climbing()}})),
        ),
        of(
            "spec.prompts.source.pvc.path",
            "'..'",
            json!({"prompts": {"source": climbing()}}),
        ),
        of(
            "spec.evaluation.source.pvc.path",
            "'..'",
            json!({"evaluation": {"source": climbing()}}),
        ),
        of(
            "spec.generation",
            "minNewTokens must be at most",
            json!({"generation": {"minNewTokens": 1025}}),
        ),
        of(
            "spec.algorithm.kl.controller",
            "give exactly one of fixed",
            json!({"algorithm": {"kl": {"controller": {}}}}),
        ),
        of(
            "spec.algorithm.clip.dual",
            "must be above 1, or 0",
            json!({"algorithm": {"clip": {"dual": 0.5}}}),
        ),
        of(
            "spec.algorithm.clip.dual",
            "must be above 1, or 0",
            json!({"algorithm": {"clip": {"dual": 1}}}),
        ),
        of(
            "spec.algorithm.score.clip",
            "min must be below max",
            json!({"algorithm": {"score": {"clip": {"min": 1, "max": 1}}}}),
        ),
        of(
            "spec.roles.rollout",
            "minReplicas must be at most",
            json!({"roles": {"rollout": {"minReplicas": 2}}}),
        ),
        of(
            "spec.roles.rollout",
            "blockSize is 16",
            json!({"roles": {"rollout": {"blockSize": 32}}}),
        ),
        of(
            "spec.roles.rollout",
            "maxBatchTokens must be at least",
            json!({"roles": {"rollout": {"engine": "vllm", "maxBatchTokens": 255}}}),
        ),
        of(
            "spec.roles.reward",
            "give at least one of model, rules",
            reward(json!({"rules": []})),
        ),
        of(
            "spec.roles.reward",
            "every source has weight 0",
            reward(json!({"rules": [{"json": {}, "weight": 0}]})),
        ),
        of(
            "spec.roles.reward",
            "every source has weight 0",
            reward(json!({
                "rules": [], "model": {"source": {"path": "/r"}, "weight": 0}, "remote": {"urls": ["http://a"], "weight": 0},
            })),
        ),
        of(
            "spec.roles.reward.rules[]",
            "give exactly one of exactMatch",
            reward(json!({"rules": [{}]})),
        ),
        of(
            "spec.roles.reward.rules[]",
            "give exactly one of exactMatch",
            reward(json!({"rules": [{"json": {}, "regex": {"pattern": "a"}}]})),
        ),
        of(
            "spec.roles.reward.rules[].length",
            "min must be at most max",
            reward(json!({"rules": [{"length": {"min": 2, "max": 1}}]})),
        ),
        of(
            "spec.roles.reward.remote.urls",
            "each URL must start",
            reward(json!({"remote": {"urls": ["ftp://a"]}})),
        ),
    ];
    for estimator in ["rloo", "grpo", "drGrpo", "reinforcePlusPlusBaseline"] {
        let change = json!({"algorithm": {"advantage": {"estimator": estimator}}});
        cases.push(of("spec", "algorithm.advantage.estimator compares", change));
    }
    cases
}

/// Refused when a stored object changes.
fn on_update() -> Vec<Case> {
    const FIXED: &str = "fixed at creation: make a new PpoJob";
    let of = |at, message, valid, change| case(at, message, json!({"spec": valid}), json!({"spec": change}));
    let reward = |reward: Value| json!({"roles": {"reward": reward}});
    let model = |path: &str| reward(json!({"model": {"source": {"path": path}}}));
    let remote = |url: &str| reward(json!({"remote": {"urls": [url]}}));
    let evaluation = |every: u64| json!({"evaluation": {"source": {"path": "/e.jsonl"}, "everySteps": every}});
    let none = || json!({});
    let scheduled = |change: Value| {
        let wants_pods = json!({"status": {"activeSince": "2026-01-01T00:00:00Z"}});
        let words = "change only while the job wants no pods";
        case(
            "spec.scheduling",
            words,
            wants_pods,
            json!({"spec": {"scheduling": change}}),
        )
    };
    let mut cases = vec![
        scheduled(json!({"gang": "none"})),
        scheduled(json!({"queue": "a"})),
        of("spec.model", FIXED, none(), json!({"model": {"dtype": "float32"}})),
        of("spec.prompts", FIXED, none(), json!({"prompts": {"maxLength": 7}})),
        of(
            "spec.generation",
            FIXED,
            none(),
            json!({"generation": {"temperature": 0.5}}),
        ),
        of(
            "spec.algorithm",
            FIXED,
            none(),
            json!({"algorithm": {"kl": {"coef": 0.5}}}),
        ),
        of("spec.batch", FIXED, none(), json!({"batch": {"ppoEpochs": 2}})),
        of(
            "spec.optimizer",
            FIXED,
            none(),
            json!({"optimizer": {"actorLearningRate": 0.5}}),
        ),
        of("spec.seed", FIXED, none(), json!({"seed": 7})),
        of("spec.overlap", FIXED, none(), json!({"overlap": "oneStep"})),
        of("spec.checkpoint", FIXED, none(), json!({"checkpoint": {"keep": 7}})),
        of("spec.telemetry", FIXED, none(), json!({"telemetry": {"samples": 7}})),
        of(
            "spec.roles.reward.rules",
            FIXED,
            none(),
            reward(json!({"rules": [{"regex": {"pattern": "a"}}]})),
        ),
        of("spec", "evaluation is fixed", none(), evaluation(7)),
        of("spec", "evaluation is fixed", evaluation(7), evaluation(8)),
        of(
            "spec",
            "evaluation is fixed",
            evaluation(7),
            json!({"evaluation": null}),
        ),
        of("spec.roles.reward", "model is fixed", none(), model("/r")),
        of("spec.roles.reward", "model is fixed", model("/r"), model("/s")),
        of(
            "spec.roles.reward",
            "model is fixed",
            model("/r"),
            reward(json!({"model": null})),
        ),
        of("spec.roles.reward", "remote is fixed", none(), remote("http://a")),
        of(
            "spec.roles.reward",
            "remote is fixed",
            remote("http://a"),
            remote("http://b"),
        ),
        of(
            "spec.roles.reward",
            "remote is fixed",
            remote("http://a"),
            reward(json!({"remote": null})),
        ),
    ];
    for (field, at, message) in [
        ("episodes", "spec", "episodes is fixed"),
        ("steps", "spec", "steps is fixed"),
    ] {
        cases.push(of(at, message, none(), json!({field: 7})));
        cases.push(of(at, message, json!({field: 7}), json!({field: 8})));
        cases.push(of(at, message, json!({field: 7}), json!({field: null})));
    }
    let manager = |name: Value| json!({"runPolicy": {"managedBy": name}});
    for (valid, change) in [
        (none(), json!("a")),
        (manager(json!("a")), json!("b")),
        (manager(json!("a")), Value::Null),
    ] {
        cases.push(of("spec.runPolicy", "managedBy is fixed", valid, manager(change)));
    }
    for field in ["nodes", "gpusPerNode"] {
        let message = "nodes and gpusPerNode are fixed";
        for role in ["actor", "reference"] {
            let at = if role == "actor" {
                "spec.roles.actor"
            } else {
                "spec.roles.reference"
            };
            cases.push(of(at, message, none(), json!({"roles": {role: {field: 2}}})));
        }
        cases.push(of(
            "spec.roles.reward.placement",
            message,
            none(),
            reward(json!({"placement": {field: 2}})),
        ));
    }
    for (field, value) in [
        ("engine", json!("vllm")),
        ("gpusPerReplica", json!(2)),
        ("maxBatchTokens", json!(2)),
        ("maxSequences", json!(2)),
        ("kvCacheMebibytes", json!(2)),
    ] {
        let change = json!({"roles": {"rollout": {field: value}}});
        cases.push(of(
            "spec.roles.rollout",
            "only replicas, minReplicas and template",
            none(),
            change,
        ));
    }
    // Of another engine: the builtin one has a size of its own.
    cases.push(of(
        "spec.roles.rollout",
        "only replicas, minReplicas and template",
        json!({"roles": {"rollout": {"engine": "vllm"}}}),
        json!({"roles": {"rollout": {"blockSize": 2}}}),
    ));
    cases
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
            .filter(|(at, message)| at == case.at && message.contains(case.message));
        assert_eq!(hit.count(), 1, "{}: {}", case.at, case.message);
    }
    rules.retain(|(at, message)| !cases.iter().any(|case| case.at == at && message.contains(case.message)));
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
        let field = if at.is_empty() { "<nil>" } else { at };
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
    let reward = |reward: Value| json!({"roles": {"reward": reward}});
    let two = |claim: Value| json!({"checkpoint": {"volumeClaim": claim}, "roles": {"actor": {"nodes": 2}}});
    for change in [
        json!({"algorithm": {"profile": "verl", "kl": {"coef": 0.1, "stopAbove": 1}}, "model": {"reference": {"path": "/r"}}}),
        json!({"algorithm": {"profile": "alpacafarm", "kl": adaptive(1.0)}}),
        json!({"algorithm": {"kl": adaptive(26.0)}}),
        // Roles without pods share nothing.
        json!({"algorithm": {"profile": "verl"}, "roles": {"reference": {"gpusPerNode": 7}}}),
        json!({"model": {"adapter": {}}, "roles": {"reference": {"gpusPerNode": 7}}}),
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
            refused.names(at, message) && refused.causes.len() == 1,
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
