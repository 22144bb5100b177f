//! `kubectl scale` changes the number of engines of a running job.

use ppo_crds::status::Phase;
use serde_json::json;

use crate::job::Stage;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_come_and_go_while_the_others_stay() {
    let stage = Stage::running("elastic", json!({})).await;
    let (engine, actor) = (stage.uid("rollout-0").await, stage.uid("actor-0").await);
    // Three engines do not divide 32 prompts; a running job hands them out all the same.
    let scaled = stage
        .namespace
        .kubectl(&["scale", "ppo/elastic", "--replicas=3"])
        .await
        .unwrap();
    scaled.success().unwrap();
    stage
        .has_pods(&["actor-0", "reference-0", "rollout-0", "rollout-1", "rollout-2"])
        .await;
    stage
        .status("three engines", |status| {
            status.rollout_replicas == 3 && status.ready.as_deref() == Some("5/5")
        })
        .await;
    stage
        .namespace
        .kubectl(&["scale", "ppo/elastic", "--replicas=1"])
        .await
        .unwrap()
        .success()
        .unwrap();
    stage.has_pods(&["actor-0", "reference-0", "rollout-0"]).await;
    let status = stage.phase(Phase::Running).await;
    assert_eq!(status.restarts, 0);
    assert_eq!(
        (stage.uid("rollout-0").await, stage.uid("actor-0").await),
        (engine, actor)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_scales_below_the_floor() {
    let stage = Stage::running("floor", json!({"spec": {"roles": {"rollout": {"minReplicas": 2}}}})).await;
    let scaled = stage
        .namespace
        .kubectl(&["scale", "ppo/floor", "--replicas=1"])
        .await
        .unwrap();
    assert_ne!(scaled.code, Some(0));
    assert!(
        scaled.stderr.contains("minReplicas must be at most replicas"),
        "{}",
        scaled.stderr
    );
}
