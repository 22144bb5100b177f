//! What no manifest may say.

use serde_json::{Value, json};

use super::{Case, adaptive, case, claim, reward};
use crate::manifest::set;

/// Refused at creation.
pub(super) fn at_creation() -> Vec<Case> {
    let of = |at: &str, message, change: Value| case(at, message, json!({}), json!({"spec": change}));
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
            "spec.optimizer",
            "give warmupRatio or warmupUpdates",
            json!({"optimizer": {"warmupRatio": 0.1, "warmupUpdates": 1}}),
        ),
        of(
            "spec",
            "batch.dynamicSampling is for",
            json!({"batch": {"dynamicSampling": {}, "nSamplesPerPrompt": 2}}),
        ),
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
            "spec.algorithm",
            "ratio: sequence is not for rloo under trl",
            json!({"algorithm": {"profile": "trl", "ratio": "sequence", "advantage": {"estimator": "rloo"}}, "batch": {"nSamplesPerPrompt": 2}}),
        ),
        of(
            "spec.algorithm",
            "surrogate: cispo is not for rloo under trl",
            json!({"algorithm": {"profile": "trl", "surrogate": "cispo", "advantage": {"estimator": "rloo"}}, "batch": {"nSamplesPerPrompt": 2}}),
        ),
        of(
            "spec.algorithm",
            "clip.dual is not for surrogate: cispo",
            json!({"algorithm": {"surrogate": "cispo", "clip": {"dual": 3}}}),
        ),
        of(
            "spec.algorithm.advantage",
            "deviation: batch is for estimator: grpo",
            json!({"algorithm": {"advantage": {"deviation": "batch"}}}),
        ),
        of(
            "spec.algorithm",
            "give truncatedImportanceSampling or rolloutCorrection",
            json!({"algorithm": {"truncatedImportanceSampling": 2, "rolloutCorrection": {}}}),
        ),
        of(
            "spec.algorithm.rolloutCorrection",
            "low must be below high",
            json!({"algorithm": {"rolloutCorrection": {"low": 2}}}),
        ),
        of(
            "spec.algorithm.rolloutCorrection",
            "level: geometric is for outside: mask",
            json!({"algorithm": {"rolloutCorrection": {"level": "geometric"}}}),
        ),
        of(
            "spec.algorithm",
            "maskTruncated is not for means that count padding",
            json!({"algorithm": {"maskTruncated": true, "aggregation": "paddedMean"}}),
        ),
        of(
            "spec.algorithm",
            "maskTruncated is not for means that count padding",
            json!({"algorithm": {"maskTruncated": true, "profile": "alpacafarm"}}),
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
            "spec",
            "roles.reference.dtype is model.dtype with model.adapter",
            json!({"model": {"adapter": {}}, "roles": {"reference": {"dtype": "float32"}}}),
        ),
        of(
            "spec.evaluation",
            "greedy samples of a prompt are all equal",
            json!({"evaluation": {"source": {"path": "/e.jsonl"}, "nSamplesPerPrompt": 2}}),
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
            "exactMatch, numericMatch and mathMatch compare",
            reward(json!({"rules": [{"exactMatch": {}}]})),
        ),
        of(
            "spec",
            "exactMatch, numericMatch and mathMatch compare",
            reward(json!({"rules": [{"numericMatch": {}}]})),
        ),
        of(
            "spec",
            "exactMatch, numericMatch and mathMatch compare",
            reward(json!({"rules": [{"mathMatch": {}}]})),
        ),
        of(
            "spec.model.policy",
            "give exactly one of path, pvc, hub",
            json!({"model": {"policy": {"hub": {"id": "a/b"}}}}),
        ),
        of(
            "spec.prompts",
            "chatTemplateVariables are for",
            json!({"prompts": {"chatTemplateVariables": {"enable_thinking": false}}}),
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
            "spec.checkpoint.path",
            "is relative",
            json!({"checkpoint": {"path": "c"}}),
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
            "spec.roles.reward.rules[]",
            "give exactly one of exactMatch",
            json!({"prompts": {"labelField": "answer"}, "roles": {"reward": {"rules": [{"json": {}, "mathMatch": {}}]}}}),
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
    for source in [
        "spec.model.policy",
        "spec.model.critic",
        "spec.model.reference",
        "spec.roles.reward.model.source",
        "spec.prompts.source",
        "spec.evaluation.source",
    ] {
        let climbing = json!({"path": null, "pvc": {"claimName": "claim", "path": "a/../../b"}});
        for (field, message, value) in [
            ("", "give exactly one of path", json!({"path": null})),
            (".path", "is relative", json!({"path": "a.jsonl"})),
            (".pvc.path", "'..'", climbing),
        ] {
            let mut change = json!({});
            set(&mut change, source, value);
            cases.push(case(&format!("{source}{field}"), message, json!({}), change));
        }
    }
    for source in ["spec.prompts.source", "spec.evaluation.source"] {
        let two = json!({"path": "/a.jsonl", "paths": ["/b.jsonl"]});
        for (field, message, value) in [
            ("", "give exactly one of path, paths, pvc", two),
            (".paths[]", "is relative", json!({"path": null, "paths": ["a.jsonl"]})),
        ] {
            let mut change = json!({});
            set(&mut change, source, value);
            cases.push(case(&format!("{source}{field}"), message, json!({}), change));
        }
    }
    for estimator in ["rloo", "grpo", "drGrpo", "reinforcePlusPlusBaseline"] {
        let change = json!({"algorithm": {"advantage": {"estimator": estimator}}});
        cases.push(of("spec", "algorithm.advantage.estimator compares", change));
    }
    cases
}
