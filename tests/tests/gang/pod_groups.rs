//! Schedulers with PodGroups: Volcano, coscheduling, Kubernetes' own.

use kube::ResourceExt;
use ppo_crds::status::Phase;
use ppo_tests::{ControlPlane, GangScheduler, Namespace, Operator, Options, PodFailure};
use serde_json::json;
use tokio::sync::OnceCell;

use crate::world::{
    a_second_look_writes_nothing, bound, create, delete, merge, pods, stays_unbound, wait_for_phase, wait_for_pods,
    wait_for_words, watched_operator,
};

/// A cluster with Volcano and coscheduling.
async fn cluster() -> &'static ControlPlane {
    static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
    let start = async || {
        let mut options = Options::default();
        for scheduler in [GangScheduler::Volcano, GangScheduler::Coscheduling] {
            options.crds.extend(scheduler.crds().await.unwrap());
        }
        let cluster = ControlPlane::start(options).await.unwrap();
        for scheduler in [GangScheduler::Volcano, GangScheduler::Coscheduling] {
            scheduler.start(&cluster).await.unwrap();
        }
        cluster
    };
    SHARED.get_or_init(start).await
}

async fn native_cluster() -> &'static ControlPlane {
    static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
    let start = async || ControlPlane::start(Options::native_gang()).await.unwrap();
    SHARED.get_or_init(start).await
}

async fn next_native_cluster() -> &'static ControlPlane {
    static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
    let start = async || ControlPlane::start(Options::next_native_gang()).await.unwrap();
    SHARED.get_or_init(start).await
}

async fn places_all_or_nothing(namespace: &Namespace<'_>, gang: &str) {
    namespace.gpu_nodes(1, 2).await.unwrap();
    let (_operator, writes) = watched_operator(namespace);
    create(namespace, "first", gang, "", 2, 2).await;
    wait_for_pods(namespace, "first", 4).await;
    wait_for_words(namespace, "first", "WaitsForNodes", "0 of 4 pods have nodes").await;
    stays_unbound(namespace, "first").await;
    // The nodes come without a word to a scheduler that does not listen for them.
    namespace.gpu_nodes(1, 2).await.unwrap();
    wait_for_phase(namespace, "first", Phase::Running).await;

    create(namespace, "second", gang, "", 2, 2).await;
    wait_for_pods(namespace, "second", 4).await;
    stays_unbound(namespace, "second").await;
    // The first job stays, with its finished pod: it must not stand in the way.
    namespace.complete_pod("first-actor-0").await.unwrap();
    wait_for_phase(namespace, "first", Phase::Succeeded).await;
    wait_for_phase(namespace, "second", Phase::Running).await;

    namespace
        .fail_pod("second-rollout-0", &PodFailure::exit(1))
        .await
        .unwrap();
    wait_for_phase(namespace, "second", Phase::Restarting).await;
    let job = wait_for_phase(namespace, "second", Phase::Running).await;
    assert_eq!(job.status.unwrap().ready.as_deref(), Some("4/4"));
    let replaced = namespace.pods().get("second-rollout-0").await.unwrap();
    assert_eq!(replaced.annotations()[ppo_crds::pod::annotation::ATTEMPT], "2");
    a_second_look_writes_nothing(namespace, "second", &writes).await;
}

/// Three GPUs for one actor, one reference and four engines of which one is enough.
async fn places_the_floor_of_every_role(namespace: &Namespace<'_>, gang: &str) {
    namespace.gpu_nodes(1, 3).await.unwrap();
    let _operator = Operator::start(namespace);
    create(namespace, "elastic", gang, "", 4, 1).await;
    wait_for_phase(namespace, "elastic", Phase::Running).await;
    let mut placed = bound(&pods(namespace, "elastic").await);
    placed.sort();
    assert_eq!(placed.len(), 3, "{placed:?}");
    assert_eq!(placed[..2], ["elastic-actor-0", "elastic-reference-0"]);
    // The other engines join when there is room.
    namespace.gpu_nodes(1, 3).await.unwrap();
    ppo_tests::wait_for("all engines to be placed", ppo_tests::PATIENCE, async || {
        let placed = bound(&pods(namespace, "elastic").await);
        anyhow::ensure!(placed.len() == 6, "{placed:?}");
        Ok(())
    })
    .await
    .unwrap();
    leave(namespace, "elastic").await;
}

/// Ends a job while its nodes are there: to Volcano the group of pods whose nodes are gone waits for others, and the next test
/// shares its queue.
async fn leave(namespace: &Namespace<'_>, job: &str) {
    delete(namespace, job).await;
    wait_for_pods(namespace, job, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volcano_is_found_and_places_a_job_whole() {
    let namespace = cluster().await.namespace("volcano").await.unwrap();
    places_all_or_nothing(&namespace, "auto").await;
    let pod = namespace.pods().get("second-actor-0").await.unwrap();
    assert_eq!(pod.spec.unwrap().scheduler_name.as_deref(), Some("volcano"));
    leave(&namespace, "second").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volcano_places_the_floor_of_every_role() {
    let namespace = cluster().await.namespace("volcano-floor").await.unwrap();
    places_the_floor_of_every_role(&namespace, "volcano").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suspended_job_leaves_volcanos_queue_to_others_and_comes_back() {
    let namespace = cluster().await.namespace("volcano-suspended").await.unwrap();
    namespace.gpu_nodes(2, 2).await.unwrap();
    let _operator = Operator::start(&namespace);
    create(&namespace, "first", "volcano", "", 2, 2).await;
    wait_for_phase(&namespace, "first", Phase::Running).await;
    create(&namespace, "second", "volcano", "", 2, 2).await;
    wait_for_pods(&namespace, "second", 4).await;
    stays_unbound(&namespace, "second").await;
    merge(&namespace, "first", json!({"spec": {"runPolicy": {"suspend": true}}})).await;
    wait_for_phase(&namespace, "second", Phase::Running).await;
    merge(&namespace, "first", json!({"spec": {"runPolicy": {"suspend": false}}})).await;
    wait_for_pods(&namespace, "first", 4).await;
    stays_unbound(&namespace, "first").await;
    delete(&namespace, "second").await;
    wait_for_phase(&namespace, "first", Phase::Running).await;
    leave(&namespace, "first").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_volcano_does_not_have_is_asked_for_by_name() {
    let namespace = cluster().await.namespace("volcano-queue").await.unwrap();
    namespace.gpu_nodes(1, 8).await.unwrap();
    let _operator = Operator::start(&namespace);
    create(&namespace, "lost", "volcano", "nowhere", 2, 2).await;
    wait_for_words(&namespace, "lost", "SchedulerSilent", "is there a queue nowhere").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn coscheduling_places_a_job_whole_and_hears_of_new_nodes() {
    let namespace = cluster().await.namespace("coscheduling").await.unwrap();
    places_all_or_nothing(&namespace, "coscheduling").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn coscheduling_places_the_floor_of_every_role() {
    let namespace = cluster().await.namespace("coscheduling-floor").await.unwrap();
    places_the_floor_of_every_role(&namespace, "coscheduling").await;
}

async fn finds_the_native_gang(namespace: &Namespace<'_>, kind: &str) {
    places_all_or_nothing(namespace, "auto").await;
    let groups = namespace.kubectl(&["get", kind, "-o", "name"]).await.unwrap();
    assert!(
        groups.success().unwrap().contains("second-"),
        "the job made no PodGroup"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubernetes_own_gang_is_found_and_places_a_job_whole() {
    let namespace = native_cluster().await.namespace("native").await.unwrap();
    finds_the_native_gang(&namespace, "podgroups.v1alpha2.scheduling.k8s.io").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubernetes_own_gang_places_the_floor_of_every_role() {
    let namespace = native_cluster().await.namespace("native-floor").await.unwrap();
    places_the_floor_of_every_role(&namespace, "workload").await;
}

/// Four GPUs for six pods, of which two are given up while they wait.
async fn follows_a_lower_floor(namespace: &Namespace<'_>) {
    namespace.gpu_nodes(1, 4).await.unwrap();
    let _operator = Operator::start(namespace);
    create(namespace, "lower", "workload", "", 4, 4).await;
    wait_for_pods(namespace, "lower", 6).await;
    stays_unbound(namespace, "lower").await;
    let fewer = json!({"spec": {"roles": {"rollout": {"replicas": 2, "minReplicas": 2}}}});
    merge(namespace, "lower", fewer).await;
    let status = wait_for_phase(namespace, "lower", Phase::Running).await.status.unwrap();
    assert_eq!((status.ready.as_deref(), status.restarts), (Some("4/4"), 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubernetes_own_gang_that_waits_follows_a_lower_floor() {
    let namespace = native_cluster().await.namespace("native-lower").await.unwrap();
    follows_a_lower_floor(&namespace).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gang_of_the_next_kubernetes_is_found_and_places_a_job_whole() {
    let namespace = next_native_cluster().await.namespace("native-next").await.unwrap();
    finds_the_native_gang(&namespace, "podgroups.v1beta1.scheduling.k8s.io").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gang_of_the_next_kubernetes_places_the_floor_of_every_role() {
    let namespace = next_native_cluster()
        .await
        .namespace("native-next-floor")
        .await
        .unwrap();
    places_the_floor_of_every_role(&namespace, "workload").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gang_scheduler_that_is_missing_is_named_with_what_to_install() {
    let namespace = native_cluster().await.namespace("missing").await.unwrap();
    let _operator = Operator::start(&namespace);
    for (gang, install) in [
        ("volcano", "install Volcano"),
        ("coscheduling", "install scheduler-plugins"),
        ("kueue", "install Kueue"),
    ] {
        create(&namespace, gang, gang, "rl", 2, 2).await;
        wait_for_words(&namespace, gang, "GangSchedulerMissing", install).await;
        assert!(pods(&namespace, gang).await.is_empty());
    }
}
