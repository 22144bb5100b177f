//! What no change may touch.

use serde_json::{Value, json};

use super::{Case, case, reward};

/// Refused when a stored object changes.
pub(super) fn on_update() -> Vec<Case> {
    const FIXED: &str = "fixed at creation: make a new PpoJob";
    let of = |at: &str, message, valid, change| case(at, message, json!({"spec": valid}), json!({"spec": change}));
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
            let at = format!("spec.roles.{role}");
            cases.push(of(&at, message, none(), json!({"roles": {role: {field: 2}}})));
        }
        cases.push(of(
            "spec.roles.reward.placement",
            message,
            none(),
            reward(json!({"placement": {field: 2}})),
        ));
    }
    let formats = |role: &str, dtype: Value| json!({"roles": {role: {"dtype": dtype}}});
    for (valid, change) in [
        (none(), json!("float32")),
        (formats("reference", json!("float32")), json!("bfloat16")),
        (formats("reference", json!("float32")), Value::Null),
    ] {
        let change = formats("reference", change);
        cases.push(of("spec.roles.reference", "dtype is fixed", valid, change));
    }
    cases.push(of(
        "spec.roles.rollout",
        "only replicas, minReplicas and template",
        formats("rollout", json!("float32")),
        formats("rollout", json!("bfloat16")),
    ));
    for (field, value) in [
        ("engine", json!("vllm")),
        ("dtype", json!("float32")),
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
