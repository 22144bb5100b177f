//! A job's whole life, played on a control plane: every failure, restart and change that counts, each step after the one
//! before has settled. What it left behind is compared with other lives.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use ppo_crds::PpoJob;
use ppo_crds::status::{Phase, PpoJobStatus};
use ppo_tests::{ControlPlane, Faults, Namespace, Operator, PATIENCE, PodFailure, State, state, wait_for};
use serde_json::{Value, json};

use crate::history::History;

/// Its name.
pub const JOB: &str = "life";

/// What a life came to.
pub struct Life {
    /// What is left.
    pub end: State,
    /// What happened on the way.
    pub history: History,
    /// What the operator wrote, in order.
    pub writes: Vec<String>,
}

/// Plays a life under `faults`, a new operator taking the place of each that a fault kills.
pub async fn live(cluster: &ControlPlane, faults: Faults) -> Result<Life> {
    let namespace = cluster.namespace("life").await?;
    namespace.gpu_nodes(1, 8).await?;
    let history = History::record(&namespace).await?;
    let story = async {
        play(&namespace, &faults).await?;
        faults.stop();
        faults.settled().await?;
        state(&namespace).await
    };
    let end = tokio::select! {
        end = story => end.with_context(|| format!("writes: {:#?}", faults.writes()))?,
        () = operate(&namespace, &faults) => anyhow::bail!("operators are replaced for ever"),
    };
    Ok(Life {
        end,
        history: history.close(),
        writes: faults.writes(),
    })
}

/// Operators, one after the other.
pub async fn operate(namespace: &Namespace<'_>, faults: &Faults) {
    loop {
        let process = faults.process(&namespace.client);
        let operator = Operator::start_with(process.client(), Operator::options(namespace));
        process.killed().await;
        operator.kill().await;
    }
}

/// The script's beginning.
pub async fn play_until_running(namespace: &Namespace<'_>) -> Result<()> {
    let api: Api<PpoJob> = namespace.api();
    api.create(&PostParams::default(), &manifest()?).await?;
    wait(namespace, "its first run", |seen| seen.runs("4/4")).await
}

/// Changes the job in a way that means nothing: it is looked at again.
pub async fn touch(namespace: &Namespace<'_>) -> Result<()> {
    let patch = Patch::Merge(json!({"metadata": {"annotations": {"example.org/touched": "yes"}}}));
    let api: Api<PpoJob> = namespace.api();
    api.patch(JOB, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// The script.
pub async fn play(namespace: &Namespace<'_>, faults: &Faults) -> Result<()> {
    let api: Api<PpoJob> = namespace.api();
    play_until_running(namespace).await?;

    faults.remember(&namespace.client).await?;
    namespace.fail_pod("life-rollout-1", &PodFailure::exit(1)).await?;
    wait(namespace, "an engine to be replaced", |seen| {
        seen.runs("4/4") && seen.status.restarts == 1
    })
    .await?;

    faults.remember(&namespace.client).await?;
    namespace.fail_pod("life-actor-0", &PodFailure::exit(1)).await?;
    wait(namespace, "the actor role to restart", |seen| {
        seen.runs("4/4") && seen.status.restarts == 2
    })
    .await?;

    faults.remember(&namespace.client).await?;
    let before = uid(namespace, "life-rollout-0").await?;
    namespace.fail_pod("life-rollout-0", &PodFailure::preempted()).await?;
    wait(namespace, "a preempted engine to come back", |seen| {
        seen.runs("4/4") && seen.uid("life-rollout-0").is_some_and(|uid| uid != before)
    })
    .await?;

    faults.remember(&namespace.client).await?;
    change(&api, json!({"runPolicy": {"suspend": true}})).await?;
    // Its status too: a new operator that reads of a ready actor, and finds none, begins another attempt.
    wait(namespace, "its suspension", |seen| {
        let none_ready = seen.status.roles.iter().all(|role| role.ready == 0);
        seen.is(Phase::Suspended) && seen.pods.is_empty() && none_ready
    })
    .await?;

    faults.remember(&namespace.client).await?;
    change(&api, json!({"runPolicy": {"suspend": false}})).await?;
    wait(namespace, "its resumption", |seen| seen.runs("4/4")).await?;

    faults.remember(&namespace.client).await?;
    change(&api, json!({"roles": {"rollout": {"replicas": 3}}})).await?;
    wait(namespace, "a third engine", |seen| seen.runs("5/5")).await?;

    faults.remember(&namespace.client).await?;
    namespace.complete_pod("life-actor-0").await?;
    // Its status too: where the answer to the last deletion is swallowed, the operator writes nothing for longer than `settled` waits.
    wait(namespace, "its success", |seen| {
        seen.is(Phase::Succeeded) && seen.pods.len() == 1 && seen.status.rollout_replicas == 0
    })
    .await
}

/// One actor, one reference, two engines, a GPU each.
fn manifest() -> Result<PpoJob> {
    Ok(serde_json::from_value(json!({
        "apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "metadata": {"name": JOB},
        "spec": {
            "model": {"policy": {"path": "/models/policy"}},
            "prompts": {"source": {"path": "/data/train.jsonl"}},
            "batch": {"rolloutBatchSize": 32},
            "roles": {"rollout": {"replicas": 2}, "reward": {"rules": [{"json": {}}]}},
        },
    }))?)
}

async fn change(api: &Api<PpoJob>, spec: Value) -> Result<()> {
    let patch = Patch::Merge(json!({"spec": spec}));
    api.patch(JOB, &PatchParams::default(), &patch).await?;
    Ok(())
}

async fn uid(namespace: &Namespace<'_>, pod: &str) -> Result<String> {
    Ok(namespace.pods().get(pod).await?.uid().unwrap_or_default())
}

/// The job and its pods at one moment.
pub struct Seen {
    /// Whether the operator has seen the last change.
    observed: bool,
    /// The job's status.
    pub status: PpoJobStatus,
    /// Pods by name.
    pub pods: BTreeMap<String, Pod>,
}

impl Seen {
    fn is(&self, phase: Phase) -> bool {
        self.observed && self.status.phase == Some(phase)
    }

    fn runs(&self, ready: &str) -> bool {
        let none_ends = self.pods.values().all(|pod| pod.metadata.deletion_timestamp.is_none());
        self.is(Phase::Running) && self.status.ready.as_deref() == Some(ready) && none_ends
    }

    fn uid(&self, pod: &str) -> Option<String> {
        self.pods.get(pod)?.uid()
    }
}

/// Waits until `reached`.
pub async fn wait(namespace: &Namespace<'_>, what: &str, reached: impl Fn(&Seen) -> bool) -> Result<()> {
    let api: Api<PpoJob> = namespace.api();
    wait_for(what, PATIENCE * 2, async || {
        let job = api.get(JOB).await?;
        let status = job.status.unwrap_or_default();
        let pods = namespace.pods().list(&Default::default()).await?.items;
        let seen = Seen {
            observed: status.observed_generation == job.metadata.generation,
            status,
            pods: pods.into_iter().map(|pod| (pod.name_any(), pod)).collect(),
        };
        let names: Vec<_> = seen.pods.keys().collect();
        ensure!(
            reached(&seen),
            "pods {names:?}, status {}",
            serde_yaml::to_string(&seen.status)?
        );
        Ok(())
    })
    .await
}
