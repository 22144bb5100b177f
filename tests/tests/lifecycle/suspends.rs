//! Suspend saves first, then gives the GPUs back; resume goes on.

use ppo_crds::status::Phase;
use serde_json::json;

use crate::job::{Stage, condition, variable};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suspended_job_lets_its_actor_save_before_the_other_roles_go_and_resumes_as_a_new_attempt() {
    let stage = Stage::running("pause", json!({})).await;
    stage.has_budget(true).await;
    let actor = stage.pod_name("actor-0");
    stage.namespace.hold_stop(&actor).await.unwrap();
    stage.patch(json!({"spec": {"runPolicy": {"suspend": true}}})).await;
    stage
        .wait("the actor to be asked to stop", async || {
            let pod = stage.namespace.pods().get(&actor).await?;
            anyhow::ensure!(pod.metadata.deletion_timestamp.is_some(), "not yet");
            Ok(())
        })
        .await;
    let status = stage.phase(Phase::Suspended).await;
    assert_eq!(condition(&status, "Suspended").1, "Suspending");
    // The others stay while the actor saves.
    stage.keeps(&["reference-0", "rollout-0", "rollout-1"]).await;
    assert!(stage.pods().await.contains(&"actor-0".to_owned()));
    stage.namespace.release_stop(&actor).await.unwrap();
    stage.has_pods(&[]).await;
    stage.has_budget(false).await;
    stage
        .status("the end of suspending", |status| {
            condition(status, "Suspended").1 == "Suspended"
        })
        .await;

    stage.patch(json!({"spec": {"runPolicy": {"suspend": false}}})).await;
    let status = stage.phase(Phase::Running).await;
    assert_eq!((status.attempt, status.restarts), (2, 0));
    assert_eq!(variable(&stage.pod("actor-0").await, "PPO_ATTEMPT").unwrap(), "2");
    stage.has_budget(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_made_suspended_has_no_pods_until_it_is_resumed() {
    let stage = Stage::applied("later", json!({"spec": {"runPolicy": {"suspend": true}}})).await;
    stage.phase(Phase::Suspended).await;
    assert!(stage.pods().await.is_empty());
    stage.patch(json!({"spec": {"runPolicy": {"suspend": false}}})).await;
    stage.phase(Phase::Running).await;
}
