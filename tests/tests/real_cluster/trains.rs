//! A job of real pods trains, whoever is killed on the way, to the bits of one process.

use std::time::Instant;

use ppo_crds::status::Phase;
use serde_json::json;

use crate::job::{Job, NAME};
use crate::world::world;

/// A fast machine makes some 250 of them while the test looks at the job and waits for pods.
const STEPS: u64 = 480;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_a_reference_a_reward_and_an_actor_that_are_killed_change_no_bit_of_what_the_pods_train() {
    let Some(world) = world().await else { return };
    let _node = world.keep_node().await;
    let model = json!({"source": {"pvc": {"claimName": "data", "path": "rm"}}, "weight": 0.5});
    let reward = json!({"model": model, "placement": {"gpusPerNode": 0}});
    let job = Job::prepare(world, "trains", json!({"steps": STEPS, "roles": {"reward": reward}})).await;
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
    // What other engines had drawn by then, and what nobody had begun, is not drawn again.
    let (again, samples) = (
        job.total("samples_drawn_again"),
        job.total("samples") / job.steps() as f64,
    );
    println!("samples that were drawn again: {again} (a step has {samples})");
    assert!(again <= samples, "{again} of {samples}");

    // The live job, as people see it, once the operator has heard of it.
    job.reaches("progress in its status", |status| status.progress.is_some())
        .await;
    let status = job.ppo(&["status", NAME]).await.success().unwrap();
    assert!(
        status.contains("Running") && status.contains(&format!("/{STEPS}")),
        "{status}"
    );
    let logs = job
        .ppo(&["logs", NAME, "--since", "1h", "--tail", "200"])
        .await
        .success()
        .unwrap();
    for pod in ["actor-0", "reference-0", "reward-0", "rollout-0", "rollout-1"] {
        assert!(logs.contains(pod), "{pod} says nothing in\n{logs}");
    }
    let why = job.ppo(&["why", NAME]).await;
    assert_eq!(why.code, Some(0), "{why:?}");

    for role in ["reference", "reward"] {
        let pod = format!("{role}-0");
        let uid = job.uid(&pod).await;
        let killed = Instant::now();
        job.kill(&pod).await;
        job.replaced(&pod, &uid).await;
        since(&format!("from the {role}'s end to a ready one"), killed);
    }

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

    let done = job.phase(Phase::Succeeded).await;
    since("from apply to the end", applied);
    // Deleting a pod is no failure of it; three processes were killed.
    assert_eq!(done.restarts, 3, "{done:?}");
    assert_eq!(done.progress.unwrap().summary, format!("{STEPS}/{STEPS}"));
    job.check_bits().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_actor_of_two_pods_trains_and_one_that_is_killed_takes_the_role_back_to_its_checkpoint() {
    let Some(world) = world().await else { return };
    let _node = world.keep_node().await;
    let job = Job::prepare(world, "ranks", json!({"steps": 60, "roles": {"actor": {"nodes": 2}}})).await;
    job.apply().await;
    job.step(25).await;
    let (first, second) = (job.uid("actor-0").await, job.uid("actor-1").await);
    job.kill("actor-1").await;
    job.replaced("actor-1", &second).await;
    job.replaced("actor-0", &first).await;
    let done = job.phase(Phase::Succeeded).await;
    assert_eq!(done.restarts, 1, "{done:?}");
    for rank in 0..2 {
        let shard = format!("step-00000060/actor-optimizer-{rank:05}-of-00002.safetensors");
        assert!(job.checkpoints().join(&shard).exists(), "{shard}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_hangs_is_ended_by_its_probe_and_made_anew_and_no_bit_differs() {
    let Some(world) = world().await else { return };
    let _node = world.keep_node().await;
    // Whom the probe asks is left to the operator. Without the engine the job waits, however fast the other one is.
    let soon =
        json!({"periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 3, "terminationGracePeriodSeconds": 1});
    let one = json!([{"name": "PPO_THREADS", "value": "1"}]);
    let worker = json!({"name": "worker", "env": one, "livenessProbe": soon});
    let template = json!({"spec": {"containers": [worker]}});
    let role = json!({"replicas": 2, "minReplicas": 2, "template": template});
    let job = Job::prepare(world, "hangs", json!({"steps": 60, "roles": {"rollout": role}})).await;
    job.apply().await;
    job.step(5).await;
    let (uid, other) = (job.uid("rollout-1").await, job.uid("rollout-0").await);
    job.freeze("rollout-1").await;
    job.replaced("rollout-1", &uid).await;
    assert_eq!(
        job.uid("rollout-0").await,
        other,
        "the other engine answered its probe all the time"
    );
    let done = job.phase(Phase::Succeeded).await;
    assert_eq!(done.restarts, 1, "{done:?}");
    job.check_bits().await;
}
