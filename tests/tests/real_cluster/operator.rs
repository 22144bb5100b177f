//! The operator is not needed while nothing happens, and picks up where it was.

use ppo_crds::status::Phase;
use serde_json::json;

use crate::job::Job;
use crate::world::{OPERATOR_NAMESPACE, world};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_trains_on_while_the_operators_are_killed_and_their_successors_replace_its_dead_engine() {
    let Some(world) = world().await else { return };
    let _node = world.keep_node().await;
    let job = Job::prepare(world, "operator", json!({"steps": 200})).await;
    job.apply().await;
    job.phase(Phase::Running).await;
    let control_plane = world.cluster.control_plane();
    let label = "app.kubernetes.io/component=operator";
    let names = [
        "get",
        "pods",
        "--namespace",
        OPERATOR_NAMESPACE,
        "-l",
        label,
        "-o=jsonpath={.items[*].metadata.name}",
    ];
    let operators = control_plane.kubectl(&names).await.unwrap().success().unwrap();
    assert_eq!(operators.split_whitespace().count(), 2, "{operators}");
    let uid = job.uid("rollout-0").await;
    for operator in operators.split_whitespace() {
        world
            .cluster
            .signal("SIGKILL", OPERATOR_NAMESPACE, operator)
            .await
            .unwrap();
    }
    job.kill("rollout-0").await;
    let at = job.steps();
    job.step(at + 5).await;
    job.replaced("rollout-0", &uid).await;
    let done = job.phase(Phase::Succeeded).await;
    assert_eq!(done.restarts, 1, "{done:?}");
    job.check_bits().await;
}
