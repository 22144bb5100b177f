//! Engines come and go while a job trains.

use anyhow::ensure;
use ppo_crds::status::Phase;
use serde_json::json;

use crate::job::{Job, NAME, is_ready};
use crate::world::world;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_scale_adds_and_takes_engines_of_a_running_job_and_changes_no_bit() {
    let Some(world) = world().await else { return };
    let _node = world.keep_node().await;
    let job = Job::prepare(
        world,
        "scales",
        json!({"steps": 160, "roles": {"rollout": {"replicas": 1}}}),
    )
    .await;
    job.apply().await;
    job.step(5).await;
    let scale = async |replicas: u32| {
        let replicas = format!("--replicas={replicas}");
        let scaled = job
            .namespace
            .kubectl(&["scale", &format!("ppo/{NAME}"), &replicas])
            .await;
        scaled.unwrap().success().unwrap();
    };
    scale(3).await;
    job.wait("two more engines", async || {
        for pod in ["rollout-1", "rollout-2"] {
            let found = job.pod(pod).await;
            ensure!(
                found.as_ref().is_some_and(is_ready),
                "{pod}: {:?}",
                found.and_then(|found| found.status)
            );
        }
        Ok(())
    })
    .await;
    let at = job.steps();
    job.step(at + 10).await;
    scale(1).await;
    job.wait("two engines less", async || {
        for pod in ["rollout-1", "rollout-2"] {
            ensure!(job.pod(pod).await.is_none(), "{pod} is still there");
        }
        Ok(())
    })
    .await;
    let done = job.phase(Phase::Succeeded).await;
    assert_eq!(done.restarts, 0, "{done:?}");
    job.check_bits().await;
}
