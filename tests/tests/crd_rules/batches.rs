//! Batch arithmetic: the API server and our own check take the same sizes and refuse the same ones.

use ppo_tests::ControlPlane;
use serde_json::{Value, json};

use crate::leaves::own;
use crate::manifest::{least, merge};
use crate::server::create_all;

/// 24 samples a step, shared by few ranks in pieces of few sizes; null is a field left out.
fn changes() -> Vec<Value> {
    let mut changes = Vec::new();
    for actor in [[1, 0], [1, 3], [2, 2]] {
        // The ranks of reference and reward model share nothing equally: any number of them will do.
        for (reference, reward) in [(1, None), (1, Some(7)), (5, None), (5, Some(7))] {
            for train in [None, Some(4), Some(6), Some(24)] {
                for micro_train in [None, Some(1), Some(2), Some(5)] {
                    for micro_rollout in [None, Some(2), Some(3)] {
                        changes.extend(["default", "verl"].map(|profile| {
                            change(profile, actor, reference, reward, [train, micro_train, micro_rollout])
                        }));
                    }
                }
            }
        }
    }
    changes
}

fn change(
    profile: &str,
    [nodes, gpus]: [u32; 2],
    reference: u32,
    reward: Option<u32>,
    [train, micro_train, micro_rollout]: [Option<u32>; 3],
) -> Value {
    let model = reward.map(|_| json!({"source": {"path": "/models/reward"}}));
    json!({
        // Without a KL, as under verl, there is no reference.
        "algorithm": {"profile": profile},
        "batch": {
            "rolloutBatchSize": 12, "nSamplesPerPrompt": 2, "trainBatchSize": train, "microTrainBatchSize": micro_train,
            "microRolloutBatchSize": micro_rollout,
        },
        "roles": {
            "actor": {"nodes": nodes, "gpusPerNode": gpus},
            "reference": {"gpusPerNode": reference},
            "reward": {"model": model, "placement": {"gpusPerNode": reward}},
        },
        "checkpoint": {"pvc": "claim"},
    })
}

#[tokio::test]
async fn sizes_that_do_not_divide_are_refused_here_and_there_and_those_that_do_accepted() {
    let cluster = ControlPlane::shared().await.unwrap();
    let namespace = cluster.namespace("batches").await.unwrap();
    let manifests = changes().into_iter().map(|change| {
        let mut manifest = least();
        merge(&mut manifest["spec"], change);
        manifest
    });
    let manifests: Vec<Value> = manifests.collect();
    let answers = create_all(&namespace, manifests.clone()).await;
    let accepted = answers.iter().filter(|answer| answer.is_ok()).count();
    assert!(accepted > 100 && answers.len() - accepted > 100, "{accepted}");
    for (manifest, answer) in manifests.iter().zip(answers) {
        let own = own(manifest);
        assert_eq!(answer.is_ok(), own.is_ok(), "{manifest}: {answer:?}, {own:?}");
    }
}
