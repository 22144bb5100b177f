//! Roles that a person asks to be made anew.

use ppo_crds::status::Phase;
use serde_json::json;

use crate::job::{Job, NAME};
use crate::world::world;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_and_an_actor_that_restart_role_names_are_made_anew_and_no_bit_differs() {
    let Some(world) = world().await else { return };
    let _node = world.keep_node().await;
    // No checkpoint but the one that the actor saves when it is asked to end.
    let job = Job::prepare(
        world,
        "restarts",
        json!({"steps": 160, "checkpoint": {"everySteps": 0}}),
    )
    .await;
    job.apply().await;
    job.step(5).await;

    let engines = ["rollout-0", "rollout-1"];
    let before = [job.uid(engines[0]).await, job.uid(engines[1]).await];
    let actor = job.uid("actor-0").await;
    job.ppo(&["restart-role", NAME, "rollout"]).await.success().unwrap();
    for (engine, uid) in engines.iter().zip(&before) {
        job.replaced(engine, uid).await;
    }
    assert_eq!(job.uid("actor-0").await, actor, "the actor waits for its engines");
    let at = job.steps();
    job.step(at + 5).await;

    let reference = job.uid("reference-0").await;
    job.ppo(&["restart-role", NAME, "actor"]).await.success().unwrap();
    job.replaced("actor-0", &actor).await;
    assert_eq!(job.uid("reference-0").await, reference, "it was not named");
    let done = job.phase(Phase::Succeeded).await;
    // What a person asks for is no failure.
    assert_eq!(done.restarts, 0, "{done:?}");
    let events = std::fs::read_to_string(job.checkpoints().join("events.jsonl")).unwrap();
    assert!(events.contains("going on after step"), "{events}");
    job.check_bits().await;
}
