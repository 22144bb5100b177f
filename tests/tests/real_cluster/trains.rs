//! A job of real pods trains, whoever is killed on the way, to the bits of one process.

use std::time::Instant;

use ppo_crds::status::Phase;
use serde_json::json;

use crate::job::{Job, NAME};
use crate::world::world;

const STEPS: u64 = 240;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_a_reference_and_an_actor_that_are_killed_change_no_bit_of_what_the_pods_train() {
    let Some(world) = world().await else { return };
    let _node = world.keep_node().await;
    let job = Job::prepare(world, "trains", json!({"steps": STEPS})).await;
    let applied = Instant::now();
    let since = |what: &str, start: Instant| println!("{what}: {:.1} s", start.elapsed().as_secs_f64());
    job.apply().await;
    job.phase(Phase::Running).await;
    since("from apply to all pods ready", applied);
    job.step(1).await;
    since("from apply to the first step", applied);

    job.step(30).await;
    let uid = job.uid("rollout-1").await;
    let killed = Instant::now();
    job.delete("rollout-1").await;
    let at = job.steps();
    job.step(at + 5).await;
    since("from the engine's deletion to the fifth step after it", killed);
    job.replaced("rollout-1", &uid).await;
    since("from the engine's deletion to a ready one", killed);

    let uid = job.uid("reference-0").await;
    let killed = Instant::now();
    job.kill("reference-0").await;
    job.replaced("reference-0", &uid).await;
    since("from the reference's end to a ready one", killed);

    let at = job.steps();
    job.step(at + 7).await;
    let uid = job.uid("actor-0").await;
    let at = job.steps();
    assert!(
        at < STEPS - 20,
        "the job is too short: it was at step {at} when its actor was to be killed"
    );
    let killed = Instant::now();
    job.kill("actor-0").await;
    job.replaced("actor-0", &uid).await;
    since("from the actor's end to a ready one", killed);
    job.step(at + 2).await;
    since("from the actor's end to a step that was not yet made", killed);

    // The live job, as people see it.
    let status = job.ppo(&["status", NAME]).await.success().unwrap();
    assert!(
        status.contains("Running") && status.contains(&format!("/{STEPS}")),
        "{status}"
    );
    let logs = job.ppo(&["logs", NAME, "--tail", "200"]).await.success().unwrap();
    for pod in ["actor-0", "reference-0", "rollout-0", "rollout-1"] {
        assert!(logs.contains(pod), "{pod} says nothing in\n{logs}");
    }
    let why = job.ppo(&["why", NAME]).await;
    assert_eq!(why.code, Some(0), "{why:?}");

    let done = job.phase(Phase::Succeeded).await;
    since("from apply to the end", applied);
    // Deleting a pod is no failure of it; two processes were killed.
    assert_eq!(done.restarts, 2, "{done:?}");
    job.check_bits().await;
}
