//! The life of a job on a real control plane: it runs, restarts, suspends and ends, and says why.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use kube::Api;
use kube::api::PostParams;
use ppo_crds::PpoJob;
use ppo_crds::status::Phase;
use ppo_tests::{ControlPlane, Namespace, Operator, PATIENCE, wait_for};
use serde_json::{Value, json};

/// A small job: one actor, one reference, two engines, a GPU each.
fn manifest(name: &str, changes: Value) -> PpoJob {
    let mut job = json!({
        "apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "metadata": {"name": name},
        "spec": {
            "model": {"policy": {"path": "/models/policy"}},
            "prompts": {"source": {"path": "/data/train.jsonl"}},
            "batch": {"rolloutBatchSize": 32},
            "roles": {"rollout": {"replicas": 2}, "reward": {"rules": [{"json": {}}]}},
        },
    });
    merge(&mut job, changes);
    serde_json::from_value(job).unwrap()
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

async fn create(namespace: &Namespace<'_>, job: &PpoJob) -> Api<PpoJob> {
    let api: Api<PpoJob> = namespace.api();
    api.create(&PostParams::default(), job).await.unwrap();
    api
}

async fn wait_for_phase(api: &Api<PpoJob>, name: &str, phase: Phase) -> PpoJob {
    wait_for(&format!("{name} to be {phase:?}"), PATIENCE, async || {
        let job = api.get(name).await?;
        let status = job.status.clone().unwrap_or_default();
        anyhow::ensure!(status.phase == Some(phase), "{}", serde_yaml::to_string(&status)?);
        Ok(job)
    })
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_applied_job_becomes_pods_of_its_roles_and_runs() {
    let cluster = ControlPlane::shared().await.unwrap();
    let namespace = cluster.namespace("runs").await.unwrap();
    namespace.gpu_nodes(1, 8).await.unwrap();
    let _operator = Operator::start(&namespace);
    let api = create(&namespace, &manifest("small", json!({}))).await;
    let job = wait_for_phase(&api, "small", Phase::Running).await;
    let status = job.status.unwrap();
    assert_eq!(status.ready.as_deref(), Some("4/4"));
    let pods = namespace.pods().list(&Default::default()).await.unwrap();
    let mut names: Vec<_> = pods
        .items
        .iter()
        .map(|pod| pod.metadata.name.clone().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "small-actor-0",
            "small-reference-0",
            "small-rollout-0",
            "small-rollout-1"
        ]
    );
}
