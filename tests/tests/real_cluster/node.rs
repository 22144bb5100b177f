//! A node that is not heard of.

use anyhow::ensure;
use ppo_crds::status::Phase;
use serde_json::json;

use crate::job::{Job, NAME, is_ready};
use crate::world::world;

/// On a fast machine they are made before the node counts as lost.
const STEPS: u64 = 400;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_node_is_not_heard_of_for_a_while_trains_on_and_restarts_nothing() {
    let Some(world) = world().await else { return };
    let _alone = world.node.write().await;
    let job = Job::prepare(world, "node", json!({"steps": STEPS})).await;
    job.apply().await;
    job.phase(Phase::Running).await;
    job.step(5).await;
    world.cluster.stop("kubelet").await.unwrap();
    world.cluster.ready("Unknown").await.unwrap();
    job.wait("its pods to count as not ready", async || {
        let actor = job.pod("actor-0").await;
        ensure!(actor.as_ref().is_some_and(|actor| !is_ready(actor)), "{actor:?}");
        Ok(())
    })
    .await;
    // The processes do not know.
    let at = job.steps();
    job.step((at + 5).min(STEPS)).await;
    // It is told that the pods do not count as ready, and of no pod that it has ended.
    job.phase(Phase::Restarting).await;
    let why = job.ppo(&["why", NAME]).await;
    println!("{}", why.stdout);
    assert_eq!(why.code, Some(3), "{why:?}");
    for words in ["The pod runs and is not ready", "test-actor-0"] {
        assert!(why.stdout.contains(words), "{words} is not in {}", why.stdout);
    }
    for cause in ["Crashed", "Disrupted", "OutOfMemory", "Terminating"] {
        assert!(!why.stdout.contains(cause), "{cause} is in {}", why.stdout);
    }
    world.cluster.launch("kubelet").await.unwrap();
    world.cluster.ready("True").await.unwrap();
    let done = job.phase(Phase::Succeeded).await;
    assert_eq!(done.restarts, 0, "{done:?}");
    job.check_bits().await;
}
