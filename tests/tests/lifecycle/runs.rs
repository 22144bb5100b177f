//! From `kubectl apply` to running, and why not.

use k8s_openapi::api::events::v1::Event;
use kube::Api;
use ppo_crds::spec::Role;
use ppo_crds::status::{Phase, PpoJobStatus};
use serde_json::json;

use crate::job::{Stage, condition, role, variable};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_applied_job_becomes_pods_of_its_roles_and_runs() {
    let stage = Stage::running("runs", json!({})).await;
    assert_eq!(stage.pods().await, ["actor-0", "reference-0", "rollout-0", "rollout-1"]);
    // It runs from its first ready engine on (`minReplicas`); the second one may come later.
    let is_whole = |status: &PpoJobStatus| status.ready.as_deref() == Some("4/4");
    let status = stage.status("4 ready pods", is_whole).await;
    assert_eq!(status.rollout_replicas, 2);
    assert_eq!(status.observed_generation, Some(1));
    assert!(status.start_time.is_some());
    assert_eq!(condition(&status, "RolesReady").0, "True");
    let actor = stage.pod("actor-0").await;
    assert_eq!(variable(&actor, "PPO_ATTEMPT").unwrap(), "1");
    assert_eq!(
        variable(&actor, "PPO_ROLLOUT_SERVICE").unwrap(),
        format!("runs-rollout.{}.svc:8000", stage.namespace.name)
    );
    for pod in ["actor-0", "reference-0", "rollout-1"] {
        let deadline = variable(&stage.pod(pod).await, "PPO_READY_DEADLINE_SECONDS");
        assert_eq!(deadline.unwrap(), "1800", "{pod}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_cannot_run_fails_at_once_and_names_every_field() {
    // The API server knows neither regular expressions nor a template's fields; the operator does.
    let template = json!({"spec": {"nodeSelctor": {"gpu": "h100"}}});
    let reward = json!({"rules": [{"regex": {"pattern": "("}}]});
    let roles = json!({"reward": reward, "reference": {"template": template}});
    let stage = Stage::applied("invalid", json!({"spec": {"roles": roles}})).await;
    let status = stage.phase(Phase::Failed).await;
    let (_, reason, message) = condition(&status, "Failed");
    assert_eq!(reason, "InvalidSpec");
    assert!(
        message.contains("spec.roles.reward.rules[0].regex.pattern: not a regular expression"),
        "{message}"
    );
    assert!(
        message.contains("spec.roles.reference.template.spec.nodeSelctor: unknown field"),
        "{message}"
    );
    assert!(stage.pods().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_without_a_node_are_explained_in_the_schedulers_words_until_the_deadline_fails_the_job() {
    let changes = json!({"spec": {
        "roles": {"actor": {"gpusPerNode": 16}},
        "runPolicy": {"preRunningDeadlineSeconds": 4},
    }});
    let stage = Stage::applied("stuck", changes).await;
    let status = stage.phase(Phase::Failed).await;
    let (_, reason, message) = condition(&status, "Failed");
    assert_eq!(reason, "NotRunningInTime");
    assert!(
        message.contains("stuck-actor-0") && message.contains("Insufficient nvidia.com/gpu"),
        "{message}"
    );
    assert!(message.contains("preRunningDeadlineSeconds"), "{message}");
    // GPUs are given back.
    stage.has_pods(&[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_that_does_not_start_is_explained_in_the_kubelets_words() {
    let template = json!({"metadata": {"annotations": {"test.ppojob.dev/hold-start": ""}}});
    let changes = json!({"spec": {"roles": {"reference": {"template": template}}}});
    let stage = Stage::applied("blocked", changes).await;
    let name = stage.pod_name("reference-0");
    stage
        .wait("the pod to have a node", async || {
            let pod = stage.namespace.pods().get(&name).await?;
            anyhow::ensure!(pod.spec.and_then(|spec| spec.node_name).is_some(), "none yet");
            Ok(())
        })
        .await;
    stage
        .namespace
        .block_pod(&name, "ImagePullBackOff", "Back-off pulling image \"nowhere/worker\"")
        .await
        .unwrap();
    let status = stage
        .status("the kubelet's reason", |status| {
            status
                .roles
                .iter()
                .any(|role| role.name == Role::Reference && role.reason == "ImagePullBackOff")
        })
        .await;
    assert_eq!(status.phase, Some(Phase::Initializing));
    let reference = role(&status, Role::Reference);
    assert!(
        reference.message.contains("Back-off pulling image"),
        "{}",
        reference.message
    );
    stage.namespace.release_start(&name).await.unwrap();
    stage.phase(Phase::Running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_another_controller_manages_is_left_alone() {
    let changes = json!({"spec": {"runPolicy": {"managedBy": "kueue.x-k8s.io/multikueue"}}});
    let other = Stage::applied("managed", changes).await;
    other.runs_another("own").await;
    assert!(other.jobs.get("managed").await.unwrap().status.is_none());
    assert!(other.pods().await.iter().all(|pod| pod.starts_with("own-")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_change_of_phase_is_an_event_on_the_job() {
    let stage = Stage::running("told", json!({})).await;
    for (suspend, phase) in [(true, Phase::Suspended), (false, Phase::Running)] {
        stage.patch(json!({"spec": {"runPolicy": {"suspend": suspend}}})).await;
        stage.phase(phase).await;
    }
    stage.namespace.complete_pod(&stage.pod_name("actor-0")).await.unwrap();
    stage.phase(Phase::Succeeded).await;
    let events: Api<Event> = stage.namespace.api();
    stage
        .wait("the events", async || {
            let list = events.list(&Default::default()).await?;
            let of_job = list.into_iter().filter(|event| {
                let regarding = event.regarding.as_ref();
                regarding.is_some_and(|object| object.kind.as_deref() == Some("PpoJob"))
            });
            let reasons: Vec<String> = of_job.filter_map(|event| event.reason).collect();
            for (phase, times) in [("Running", 2), ("Suspended", 1), ("Succeeded", 1)] {
                let told = reasons.iter().filter(|reason| *reason == phase).count();
                anyhow::ensure!(told == times, "{phase} was told {told} times: {reasons:?}");
            }
            Ok(())
        })
        .await;
}
