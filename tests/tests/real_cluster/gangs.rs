//! Gangs of real pods, each by its own scheduler: two jobs of which one fits train one after the other and never hold a node
//! at the same time, and a scheduler that is installed but does not run is named by the job, which goes on once it does.

mod holders;
mod kueue;
mod rivals;

use ppo_crds::status::Phase;
use ppo_tests::GangScheduler;
use serde_json::json;

use self::rivals::Rivals;
use crate::world::{World, next_world, world};

/// The jobs of a scheduler that places pods, from its absence to the end of both.
async fn one_after_the_other(
    world: &World,
    scheduler: GangScheduler,
    gang: &str,
    template: serde_json::Value,
    named: &str,
) {
    let _node = world.keep_node().await;
    let rivals = Rivals::prepare(world, gang, json!({"scheduling": {"gang": gang}}), template).await;
    rivals.install(scheduler).await;
    rivals.apply().await;
    for job in rivals.jobs() {
        rivals::says_that_nobody_looks(job, named).await;
        assert_eq!(job.status().await.phase, Some(Phase::Scheduling));
    }
    scheduler.start(world.cluster.control_plane()).await.unwrap();
    let (first, second) = rivals.first().await;
    rivals::waits_for_nodes(second).await;
    first.phase(Phase::Succeeded).await;
    second.phase(Phase::Succeeded).await;
    rivals.never_met();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volcano_that_does_not_run_is_named_and_then_trains_two_jobs_one_after_the_other() {
    let Some(world) = world().await else { return };
    let named = "the scheduler volcano has said nothing of 3 pods, test-actor-0 among them";
    one_after_the_other(world, GangScheduler::Volcano, "volcano", json!({}), named).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn coscheduling_that_does_not_run_is_named_and_then_trains_two_jobs_one_after_the_other() {
    let Some(world) = world().await else { return };
    let named = "the scheduler scheduler-plugins-scheduler has said nothing of 3 pods, test-actor-0 among them";
    one_after_the_other(world, GangScheduler::Coscheduling, "coscheduling", json!({}), named).await;
}

/// In that cluster, by a scheduler beside its own.
async fn the_native_gang_one_after_the_other(world: &World) {
    let named = "the scheduler gang-scheduler has said nothing of 3 pods, test-actor-0 among them";
    let template = json!({"schedulerName": GangScheduler::NATIVE});
    one_after_the_other(world, GangScheduler::Native, "workload", template, named).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubernetes_own_gang_trains_two_jobs_one_after_the_other_once_its_scheduler_runs() {
    let Some(world) = world().await else { return };
    the_native_gang_one_after_the_other(world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gang_of_the_next_kubernetes_trains_two_jobs_one_after_the_other_once_its_scheduler_runs() {
    let Some(world) = next_world().await else { return };
    the_native_gang_one_after_the_other(&world).await;
}
