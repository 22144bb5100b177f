//! How jobs end, and what is left of them.

use ppo_crds::PpoJob;
use ppo_crds::status::Phase;
use serde_json::json;

use crate::job::{Stage, condition};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_job_succeeds_when_its_actor_has_made_all_steps_and_gives_the_gpus_back() {
    let stage = Stage::running("done", json!({})).await;
    stage.has_budget(true).await;
    stage.namespace.complete_pod(&stage.pod_name("actor-0")).await.unwrap();
    let status = stage.phase(Phase::Succeeded).await;
    assert_eq!(condition(&status, "Complete").0, "True");
    assert!(status.completion_time.is_some());
    assert_eq!(status.ready.as_deref(), Some("0/4"));
    // The finished pod stays for its log.
    stage.has_pods(&["actor-0"]).await;
    // A budget without pods to count would be an alert for ever.
    stage.has_budget(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_finished_job_stays_what_it_is() {
    let stage = Stage::running("over", json!({"spec": {"runPolicy": {"cleanPodPolicy": "All"}}})).await;
    stage.namespace.complete_pod(&stage.pod_name("actor-0")).await.unwrap();
    let mut ended = stage.phase(Phase::Succeeded).await;
    stage.has_pods(&[]).await;
    stage.patch(json!({"spec": {"runPolicy": {"suspend": true}}})).await;
    stage.looked_at().await;
    stage
        .patch(json!({"metadata": {"annotations": {"ppojob.dev/restart": "actor=now"}}}))
        .await;
    stage.runs_another("later").await;
    // What the first look leads to is done before the second.
    for _ in 0..2 {
        stage.looked_at_anew().await;
    }
    let status = stage.jobs.get("over").await.unwrap().status.unwrap();
    // That its changes are seen is told, and how many engines are left.
    ended.observed_generation = status.observed_generation;
    ended.rollout_replicas = 0;
    assert_eq!(status, ended);
    let pods = stage.pods().await;
    assert!(pods.iter().all(|pod| pod.starts_with("later-")), "{pods:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_finished_job_keeps_its_pods_where_none_are_to_be_cleaned_up() {
    let all = ["actor-0", "reference-0", "rollout-0", "rollout-1"];
    let stage = Stage::running("kept", json!({"spec": {"runPolicy": {"cleanPodPolicy": "None"}}})).await;
    stage.has_pods(&all).await;
    stage.namespace.complete_pod(&stage.pod_name("actor-0")).await.unwrap();
    stage.phase(Phase::Succeeded).await;
    stage.keeps(&all).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_active_deadline_fails_the_job() {
    let stage = Stage::applied("slow", json!({"spec": {"runPolicy": {"activeDeadlineSeconds": 3}}})).await;
    let status = stage.phase(Phase::Failed).await;
    let (_, reason, message) = condition(&status, "Failed");
    assert_eq!(reason, "DeadlineExceeded");
    assert!(message.contains("activeDeadlineSeconds is 3"), "{message}");
    stage.has_pods(&[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_job_object_deletes_itself_after_its_time_and_takes_all_with_it() {
    let policy = json!({"ttlSecondsAfterFinished": 1, "cleanPodPolicy": "None"});
    let stage = Stage::running("brief", json!({"spec": {"runPolicy": policy}})).await;
    stage.namespace.complete_pod(&stage.pod_name("actor-0")).await.unwrap();
    stage
        .wait("the job to be gone", async || {
            let left: Option<PpoJob> = stage.jobs.get_opt("brief").await?;
            anyhow::ensure!(left.is_none(), "it is there");
            Ok(())
        })
        .await;
    stage.has_pods(&[]).await;
}
