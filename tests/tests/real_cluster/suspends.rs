//! A suspended job saves, gives everything back, and goes on.

use anyhow::ensure;
use kube::api::ListParams;
use ppo_crds::status::Phase;
use serde_json::json;

use crate::job::{Job, NAME};
use crate::world::world;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suspended_actor_saves_on_sigterm_and_the_resumed_job_ends_with_the_same_bits() {
    let Some(world) = world().await else { return };
    let _node = world.keep_node().await;
    // No checkpoint but the one that SIGTERM asks for.
    let job = Job::prepare(world, "suspends", json!({"steps": 80, "checkpoint": {"everySteps": 0}})).await;
    job.apply().await;
    job.step(10).await;
    job.ppo(&["suspend", NAME]).await.success().unwrap();
    job.phase(Phase::Suspended).await;
    job.wait("its pods to be gone", async || {
        let left = job
            .namespace
            .pods()
            .list(&ListParams::default().labels("ppojob.dev/job=test"))
            .await?
            .items;
        ensure!(left.is_empty(), "{} are left", left.len());
        Ok(())
    })
    .await;
    let saved = job.steps();
    assert!(saved < 80);
    assert!(
        job.checkpoints().join(format!("step-{saved:08}")).exists(),
        "step {saved} was not saved"
    );
    let events = std::fs::read_to_string(job.checkpoints().join("events.jsonl")).unwrap();
    assert!(events.contains("checkpoint saved"), "{events}");

    job.ppo(&["resume", NAME]).await.success().unwrap();
    let done = job.phase(Phase::Succeeded).await;
    assert_eq!(done.restarts, 0, "{done:?}");
    let events = std::fs::read_to_string(job.checkpoints().join("events.jsonl")).unwrap();
    assert!(events.contains(&format!("going on after step {saved}")), "{events}");
    job.check_bits().await;
}
