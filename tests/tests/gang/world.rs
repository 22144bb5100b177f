//! What the tests of gangs share: jobs, and what becomes of them.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams, PostParams};
use ppo_crds::PpoJob;
use ppo_crds::status::Phase;
use ppo_tests::{Faults, Namespace, Operator, PATIENCE, wait_for};
use serde_json::{Value, json};

/// How long nothing must happen where nothing may: several rounds of every scheduler.
const QUIET: Duration = Duration::from_millis(2500);

/// An operator, and what it writes.
pub fn watched_operator(namespace: &Namespace<'_>) -> (Operator, Faults) {
    let writes = Faults::none();
    let client = writes.process(&namespace.client).client();
    (Operator::start_with(client, Operator::options(namespace)), writes)
}

/// Waits until the operator has nothing left to write, then has it look at the job once more.
pub async fn a_second_look_writes_nothing(namespace: &Namespace<'_>, job: &str, writes: &Faults) {
    writes.settled().await.unwrap();
    let before = writes.writes().len();
    assert_ne!(before, 0, "its writes are not counted");
    let touch = json!({"metadata": {"annotations": {"example.org/touched": "yes"}}});
    merge(namespace, job, touch).await;
    writes.settled().await.unwrap();
    assert_eq!(writes.writes()[before..], Vec::<String>::new(), "a second look wrote");
}

/// A job with an actor, a reference and `engines` rollout engines, a GPU each.
pub async fn create(namespace: &Namespace<'_>, name: &str, gang: &str, queue: &str, engines: u32, floor: u32) {
    let job = json!({
        "apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "metadata": {"name": name},
        "spec": {
            "model": {"policy": {"path": "/models/policy"}},
            "prompts": {"source": {"path": "/data/train.jsonl"}},
            "batch": {"rolloutBatchSize": 32},
            "roles": {"rollout": {"replicas": engines, "minReplicas": floor}, "reward": {"rules": [{"json": {}}]}},
            "scheduling": {"gang": gang, "queue": queue},
        },
    });
    let job: PpoJob = serde_json::from_value(job).unwrap();
    namespace.api().create(&PostParams::default(), &job).await.unwrap();
}

pub async fn delete(namespace: &Namespace<'_>, name: &str) {
    namespace
        .api::<PpoJob>()
        .delete(name, &Default::default())
        .await
        .unwrap();
}

pub async fn merge(namespace: &Namespace<'_>, name: &str, patch: Value) {
    let jobs = namespace.api::<PpoJob>();
    jobs.patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .unwrap();
}

pub async fn wait_for_phase(namespace: &Namespace<'_>, name: &str, phase: Phase) -> PpoJob {
    // A scheduler that gave a gang up on its first try looks at it again after a pause of its own.
    wait_for(&format!("{name} to be {phase:?}"), 2 * PATIENCE, async || {
        let job = namespace.api::<PpoJob>().get(name).await?;
        let status = job.status.clone().unwrap_or_default();
        anyhow::ensure!(status.phase == Some(phase), "{}", serde_yaml::to_string(&status)?);
        Ok(job)
    })
    .await
    .unwrap()
}

/// Waits until the job is not placed for a reason whose message contains `words`.
pub async fn wait_for_words(namespace: &Namespace<'_>, name: &str, reason: &str, words: &str) {
    wait_for(&format!("{name} to say {reason}, {words:?}"), PATIENCE, async || {
        let job = namespace.api::<PpoJob>().get(name).await?;
        let conditions = job.status.unwrap_or_default().conditions;
        let gang = conditions.iter().find(|condition| condition.type_ == "GangScheduled");
        let said =
            gang.is_some_and(|gang| gang.status == "False" && gang.reason == reason && gang.message.contains(words));
        anyhow::ensure!(said, "{gang:?}");
        Ok(())
    })
    .await
    .unwrap();
}

pub async fn pods(namespace: &Namespace<'_>, job: &str) -> Vec<Pod> {
    let pods = namespace.pods().list(&Default::default()).await.unwrap();
    let prefix = format!("{job}-");
    pods.into_iter()
        .filter(|pod| pod.name_any().starts_with(&prefix))
        .collect()
}

pub async fn wait_for_pods(namespace: &Namespace<'_>, job: &str, count: usize) -> Vec<Pod> {
    wait_for(&format!("{count} pods of {job}"), PATIENCE, async || {
        let pods = pods(namespace, job).await;
        let names: Vec<String> = pods.iter().map(ResourceExt::name_any).collect();
        anyhow::ensure!(pods.len() == count, "{names:?}");
        Ok(pods)
    })
    .await
    .unwrap()
}

pub fn bound(pods: &[Pod]) -> Vec<String> {
    let bound = pods.iter().filter(|pod| node(pod).is_some());
    bound.map(ResourceExt::name_any).collect()
}

pub fn node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// Looks again and again for a while that the job has pods, and none of them a node.
pub async fn stays_unbound(namespace: &Namespace<'_>, job: &str) {
    let end = tokio::time::Instant::now() + QUIET;
    while tokio::time::Instant::now() < end {
        let pods = pods(namespace, job).await;
        assert!(!pods.is_empty(), "{job} has no pods that could be placed");
        assert_eq!(bound(&pods), Vec::<String>::new(), "a part of {job} was placed");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
