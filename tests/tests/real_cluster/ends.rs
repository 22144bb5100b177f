//! Jobs that cannot run say why, in the kubelet's own words.

use ppo_crds::status::Phase;
use serde_json::{Value, json};

use crate::job::{Job, NAME};
use crate::world::world;

fn rollout(container: Value) -> Value {
    let mut container = container;
    container["name"] = json!("worker");
    json!({"roles": {"rollout": {"replicas": 1, "template": {"spec": {"containers": [container]}}}}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_that_cannot_be_pulled_is_named_by_the_job_and_by_why() {
    let Some(world) = world().await else { return };
    let _node = world.keep_node().await;
    let patch = rollout(json!({"image": "registry.invalid/ppo-worker:none"}));
    let job = Job::prepare(world, "image", patch).await;
    job.apply().await;
    // The operator and the plugin both look at the pods.
    job.reaches("the kubelet's reason in the status", |status| {
        let said = serde_json::to_string(status).unwrap_or_default();
        said.contains("ImagePullBackOff") || said.contains("ErrImagePull")
    })
    .await;
    let why = job.ppo(&["why", NAME]).await;
    println!("{}", why.stdout);
    assert_eq!(why.code, Some(3), "{why:?}");
    for words in ["registry.invalid/ppo-worker:none", "test-rollout-0"] {
        assert!(why.stdout.contains(words), "{words} is not in {}", why.stdout);
    }
    assert_ne!(job.status().await.phase, Some(Phase::Running));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_without_memory_is_restarted_until_the_budget_is_spent_and_the_job_says_oomkilled() {
    let Some(world) = world().await else { return };
    let _node = world.keep_node().await;
    let mut patch = rollout(json!({"resources": {"limits": {"memory": "24Mi"}}}));
    patch["failurePolicy"] = json!({"maxRestarts": 1});
    let job = Job::prepare(world, "memory", patch).await;
    job.apply().await;
    let failed = job.phase(Phase::Failed).await;
    assert_eq!(failed.restarts, 1, "{failed:?}");
    let said = serde_json::to_string(&failed).unwrap();
    assert!(said.contains("OOMKilled"), "{said}");
    let why = job.ppo(&["why", NAME]).await;
    assert!(why.code == Some(2) || why.code == Some(3), "{why:?}");
    assert!(
        why.stdout.contains("OOMKilled") && why.stdout.contains("memory"),
        "{}",
        why.stdout
    );
}
