//! Jobs that cannot run say why, in the kubelet's own words or the worker's.

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
    assert_eq!(why.code, Some(3), "{why:?}");
    assert!(
        why.stdout.contains("OOMKilled") && why.stdout.contains("memory"),
        "{}",
        why.stdout
    );
}

/// A job that fails at its first try, for a reason that its actor tells: the words of its status, which `why` repeats.
async fn fails_at_once(job: &Job<'_>, reason: &str) -> String {
    job.apply().await;
    let failed = job.phase(Phase::Failed).await;
    assert_eq!(failed.restarts, 0, "another try would end the same way: {failed:?}");
    let why = job.ppo(&["why", NAME]).await;
    assert_eq!(why.code, Some(3), "{why:?}");
    for words in [reason, "test-actor-0"] {
        assert!(why.stdout.contains(words), "{words} is not in {}", why.stdout);
    }
    serde_json::to_string(&failed).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_is_no_prompt_fails_the_job_at_once_and_is_named_by_file_and_line() {
    let Some(world) = world().await else { return };
    let _node = world.keep_node().await;
    let job = Job::prepare(world, "row", json!({})).await;
    let prompts = job.volume("data").join("prompts.jsonl");
    let mut rows = std::fs::read_to_string(&prompts).unwrap();
    rows.push_str("\n{\"answer\": \"7\"}\n");
    std::fs::write(&prompts, rows).unwrap();
    let said = fails_at_once(&job, "DataError").await;
    assert!(said.contains("prompts.jsonl") && said.contains("91"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_diverges_fails_the_job_at_once_and_its_kl_is_named() {
    let Some(world) = world().await else { return };
    let _node = world.keep_node().await;
    let kl = json!({"coef": 0.05, "stopAbove": 1e-6});
    let job = Job::prepare(world, "diverges", json!({"steps": 60, "algorithm": {"kl": kl}})).await;
    let said = fails_at_once(&job, "Diverged").await;
    assert!(said.contains("stopAbove"), "{said}");
}
