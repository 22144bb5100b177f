//! Manifests around one field: the least a job needs, with the blocks in which that field lives.

use serde_json::{Value, json};

/// The least that is accepted.
pub fn least() -> Value {
    json!({
        "apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "metadata": {"name": "a"},
        "spec": {
            "model": {"policy": {"path": "/models/policy"}},
            "prompts": {"source": {"path": "/data/train.jsonl"}},
            "roles": {"reward": {"rules": [{"json": {}}]}},
        },
    })
}

/// RFC 7396: null removes.
pub fn merge(into: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *into = patch;
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    for (key, value) in patch {
        match value {
            Value::Null => drop(into.as_object_mut().unwrap().remove(&key)),
            value => merge(&mut into[key.as_str()], value),
        }
    }
}

/// A manifest that is accepted and has every block above `path`.
pub fn host(path: &str) -> Value {
    let mut manifest = least();
    for block in path.match_indices(['.', '[']).map(|(at, _)| &path[..at]) {
        if let Some(patch) = needed_by(block) {
            merge(&mut manifest["spec"], patch);
        }
    }
    // The builtin engine's has one value.
    if path == "spec.roles.rollout.blockSize" {
        merge(&mut manifest["spec"], json!({"roles": {"rollout": {"engine": "vllm"}}}));
    }
    if path == "spec.batch.dynamicSampling" {
        merge(&mut manifest["spec"], dynamic_sampling());
    }
    // Greedy samples are all equal.
    if path == "spec.evaluation.nSamplesPerPrompt" {
        merge(&mut manifest["spec"], json!({"evaluation": {"temperature": 1}}));
    }
    // A rule is of one kind, and this one has no settings.
    if path == "spec.roles.reward.rules[].mathMatch" {
        let rule = json!({"prompts": {"labelField": "answer"}, "roles": {"reward": {"rules": [{"mathMatch": {}}]}}});
        merge(&mut manifest["spec"], rule);
    }
    // A source is one place.
    for block in ["prompts", "evaluation"] {
        if path == format!("spec.{block}.source.paths") {
            merge(&mut manifest["spec"], json!({block: {"source": {"path": null}}}));
        }
    }
    if path == "spec.prompts.chatTemplateVariables" {
        merge(&mut manifest["spec"], json!({"prompts": {"chatTemplate": true}}));
    }
    manifest
}

/// Of an estimator that compares the samples of a group.
fn dynamic_sampling() -> Value {
    json!({"algorithm": {"advantage": {"estimator": "grpo"}}, "batch": {"nSamplesPerPrompt": 2, "dynamicSampling": {}}})
}

/// What a block that is not always there consists of, at the least.
fn needed_by(block: &str) -> Option<Value> {
    let claim = || json!({"path": null, "pvc": {"claimName": "claim"}});
    let several = || json!({"path": null, "paths": ["/data/a.jsonl"]});
    let hub = || json!({"path": null, "hub": {"id": "owner/model"}});
    let rule = |rule: Value| json!({"prompts": {"labelField": "answer"}, "roles": {"reward": {"rules": [rule]}}});
    Some(match block {
        "spec.algorithm.rolloutCorrection" => json!({"algorithm": {"rolloutCorrection": {}}}),
        "spec.model.policy.pvc" => json!({"model": {"policy": claim()}}),
        "spec.model.policy.hub" => json!({"model": {"policy": hub()}}),
        "spec.model.critic" => json!({"model": {"critic": {"path": "/models/critic"}}}),
        "spec.model.critic.pvc" => json!({"model": {"critic": claim()}}),
        "spec.model.critic.hub" => json!({"model": {"critic": hub()}}),
        "spec.model.reference" => json!({"model": {"reference": {"path": "/models/reference"}}}),
        "spec.model.reference.pvc" => json!({"model": {"reference": claim()}}),
        "spec.model.reference.hub" => json!({"model": {"reference": hub()}}),
        "spec.model.adapter" => json!({"model": {"adapter": {}}}),
        "spec.prompts.source.pvc" => json!({"prompts": {"source": claim()}}),
        "spec.prompts.source.paths" => json!({"prompts": {"source": several()}}),
        "spec.evaluation" => json!({"evaluation": {"source": {"path": "/data/held-out.jsonl"}}}),
        "spec.evaluation.source.pvc" => json!({"evaluation": {"source": claim()}}),
        "spec.evaluation.source.paths" => json!({"evaluation": {"source": several()}}),
        "spec.batch.dynamicSampling" => dynamic_sampling(),
        "spec.algorithm.kl.controller" => json!({"algorithm": {"kl": {"controller": {"fixed": {}}}}}),
        "spec.algorithm.kl.controller.adaptive" => {
            json!({"algorithm": {"kl": {"controller": {"fixed": null, "adaptive": {"target": 6, "horizon": 10000}}}}})
        }
        "spec.algorithm.score.clip" => json!({"algorithm": {"score": {"clip": {"min": -1e12, "max": 1e12}}}}),
        "spec.roles.reward.model" => json!({"roles": {"reward": {"model": {"source": {"path": "/models/reward"}}}}}),
        "spec.roles.reward.model.source.pvc" => json!({"roles": {"reward": {"model": {"source": claim()}}}}),
        "spec.roles.reward.model.source.hub" => json!({"roles": {"reward": {"model": {"source": hub()}}}}),
        "spec.roles.reward.remote" => json!({"roles": {"reward": {"remote": {"urls": ["http://verifier/"]}}}}),
        "spec.roles.reward.rules[].exactMatch" => rule(json!({"exactMatch": {}})),
        "spec.roles.reward.rules[].numericMatch" => rule(json!({"numericMatch": {}})),
        "spec.roles.reward.rules[].regex" => rule(json!({"regex": {"pattern": "a"}})),
        "spec.roles.reward.rules[].length" => rule(json!({"length": {"max": 1_048_576}})),
        "spec.failurePolicy.rules[]" => json!({"failurePolicy": {"rules": [{"action": "Ignore"}]}}),
        "spec.checkpoint.volumeClaim" => json!({"checkpoint": {"volumeClaim": {"storage": "1Gi"}}}),
        _ => return None,
    })
}

/// Puts `value` at `path`; `[]` is a list's first entry.
pub fn set(manifest: &mut Value, path: &str, value: Value) {
    let mut node = manifest;
    for name in path.split('.') {
        let list = name.strip_suffix("[]");
        node = &mut node[list.unwrap_or(name)];
        if list.is_some() {
            if node.as_array().is_none_or(Vec::is_empty) {
                *node = json!([null]);
            }
            node = &mut node[0];
        }
    }
    *node = value;
}

/// What stands at `path`.
pub fn get<'a>(manifest: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.')
        .try_fold(manifest, |node, name| match name.strip_suffix("[]") {
            Some(list) => node.get(list)?.get(0),
            None => node.get(name),
        })
}
