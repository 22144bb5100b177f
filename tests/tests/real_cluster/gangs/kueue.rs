//! Kueue: quota for one of two jobs. What it evicts saves, gives the quota back, and goes on when it is admitted again.

use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams};
use ppo_crds::status::Phase;
use ppo_tests::{GangScheduler, PATIENCE, wait_for};
use serde_json::{Value, json};

use super::rivals::{self, GANG, Rivals, STEPS};
use crate::job::Job;
use crate::world::world;

/// The cluster's queue, and the flavor of its nodes.
const QUEUE: &str = "real";

fn api(job: &Job<'_>, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("kueue.x-k8s.io", "v1beta2", kind));
    match kind {
        "LocalQueue" | "Workload" => Api::namespaced_with(job.namespace.client.clone(), &job.namespace.name, &resource),
        _ => Api::all_with(job.namespace.client.clone(), &resource),
    }
}

async fn make(job: &Job<'_>, kind: &str, name: &str, spec: Value) {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("kueue.x-k8s.io", "v1beta2", kind));
    let object = DynamicObject::new(name, &resource).data(json!({"spec": spec}));
    let api = api(job, kind);
    wait_for(&format!("{kind} {name} to be taken"), PATIENCE, async || {
        Ok(api.create(&PostParams::default(), &object).await?)
    })
    .await
    .unwrap();
}

async fn stop_queue(job: &Job<'_>, policy: &str) {
    let patch = Patch::Merge(json!({"spec": {"stopPolicy": policy}}));
    let queues = api(job, "ClusterQueue");
    queues.patch(QUEUE, &PatchParams::default(), &patch).await.unwrap();
}

/// Waits until no Workload of the job holds quota.
async fn gives_quota_back(job: &Job<'_>) {
    job.wait("the quota to be given back", async || {
        let workloads = api(job, "Workload").list(&ListParams::default()).await?;
        let workload = workloads.items.first();
        let status = workload.map_or(&Value::Null, |workload| &workload.data["status"]);
        anyhow::ensure!(
            workload.is_some() && status["admission"].is_null(),
            "its Workload says {status}"
        );
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kueue_that_does_not_run_is_named_and_then_trains_two_jobs_of_which_the_evicted_one_goes_on_from_its_checkpoint()
 {
    let Some(world) = world().await else { return };
    let _node = world.keep_node().await;
    let kueue = GangScheduler::Kueue;
    // No checkpoint but the one that SIGTERM asks for.
    let patch = json!({"scheduling": {"gang": "kueue", "queue": QUEUE}, "checkpoint": {"everySteps": 0}});
    let rivals = Rivals::prepare(world, "kueue", patch.clone(), json!({})).await;
    rivals.install(kueue).await;
    let jobs: Vec<&Job> = rivals.jobs().collect();
    let resource = rivals::resource("kueue");
    let quota = json!([{"name": resource, "nominalQuota": GANG.to_string()}]);
    let groups = json!([{"coveredResources": [resource], "flavors": [{"name": QUEUE, "resources": quota}]}]);
    make(jobs[0], "ResourceFlavor", QUEUE, json!({})).await;
    make(
        jobs[0],
        "ClusterQueue",
        QUEUE,
        json!({"namespaceSelector": {}, "resourceGroups": groups}),
    )
    .await;
    for job in &jobs {
        make(job, "LocalQueue", QUEUE, json!({"clusterQueue": QUEUE})).await;
    }
    rivals.apply().await;
    for job in &jobs {
        rivals::says_that_nobody_looks(job, "Kueue has said nothing of Workload test-").await;
        assert_eq!(job.status().await.phase, Some(Phase::Queued));
    }

    kueue.start(world.cluster.control_plane()).await.unwrap();
    let (first, second) = rivals.first().await;
    second.phase(Phase::Queued).await;
    assert!(second.pod("actor-0").await.is_none(), "a job without quota has pods");

    first.step(5).await;
    stop_queue(first, "HoldAndDrain").await;
    first.phase(Phase::Queued).await;
    gives_quota_back(first).await;
    for pod in ["actor-0", "reference-0", "rollout-0"] {
        assert!(first.pod(pod).await.is_none(), "{pod} is left");
    }
    let saved = first.steps();
    assert!(saved < STEPS, "it had ended before it was evicted");
    let checkpoint = first.checkpoints().join(format!("step-{saved:08}"));
    assert!(checkpoint.exists(), "{} was not saved", checkpoint.display());

    stop_queue(first, "None").await;
    let (one, other) = rivals.first().await;
    let done = one.phase(Phase::Succeeded).await;
    assert_eq!(done.restarts, 0, "{done:?}");
    let admitted = [Some(Phase::Initializing), Some(Phase::Running), Some(Phase::Succeeded)];
    other
        .reaches("its turn", |status| admitted.contains(&status.phase))
        .await;
    // Its end does not need Kueue; a new job does, and Kueue's webhook is to approve its Workload.
    kueue.stop(world.cluster.control_plane()).await.unwrap();
    let late = rivals::job(world, "kueue-late", &resource, &patch, &json!({})).await;
    late.apply().await;
    let done = other.phase(Phase::Succeeded).await;
    assert_eq!(done.restarts, 0, "{done:?}");
    rivals.never_met();
    let events = std::fs::read_to_string(first.checkpoints().join("events.jsonl")).unwrap();
    assert!(events.contains(&format!("going on after step {saved}")), "{events}");
    first.check_bits().await;
    rivals::says_that_nobody_looks(&late, "Kueue's webhook does not answer").await;
}
