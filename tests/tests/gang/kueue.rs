//! Kueue: no pod before its quota, quota back after.

use std::collections::BTreeMap;

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use ppo_crds::PpoJob;
use ppo_crds::spec::Gang;
use ppo_crds::status::Phase;
use ppo_tests::{ControlPlane, GangScheduler, NODE_LABEL, Namespace, Operator, Options, PATIENCE, wait_for};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::world::{
    a_second_look_writes_nothing, create, delete, merge, pods, wait_for_phase, wait_for_pods, wait_for_words,
    watched_operator,
};

async fn cluster() -> &'static ControlPlane {
    static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
    let start = async || {
        let crds = GangScheduler::Kueue.crds().await.unwrap();
        let options = Options {
            crds,
            ..Options::default()
        };
        let cluster = ControlPlane::start(options).await.unwrap();
        GangScheduler::Kueue.start(&cluster).await.unwrap();
        cluster
    };
    SHARED.get_or_init(start).await
}

fn resource(kind: &str) -> ApiResource {
    let plural = match kind {
        "Topology" => "topologies".into(),
        _ => format!("{}s", kind.to_lowercase()),
    };
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("kueue.x-k8s.io", "v1beta2", kind), &plural)
}

/// Makes an object of Kueue's; its webhooks may need a moment.
async fn make(client: &Client, namespace: Option<&str>, kind: &str, name: &str, spec: Value) {
    let resource = resource(kind);
    let api: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let object = DynamicObject::new(name, &resource).data(json!({"spec": spec}));
    wait_for(&format!("{kind} {name} to be accepted"), PATIENCE, async || {
        Ok(api.create(&PostParams::default(), &object).await?)
    })
    .await
    .unwrap();
}

/// The queue `rl` for a namespace, with quota for so many GPUs of the namespace's own nodes.
async fn queue(namespace: &Namespace<'_>, gpus: u32, topology: Option<&str>) {
    let (client, name) = (&namespace.client, namespace.name.as_str());
    let mut flavor = json!({"nodeLabels": {NODE_LABEL: name}});
    if let Some(level) = topology {
        make(
            client,
            None,
            "Topology",
            name,
            json!({"levels": [{"nodeLabel": level}]}),
        )
        .await;
        flavor["topologyName"] = json!(name);
    }
    make(client, None, "ResourceFlavor", name, flavor).await;
    make(
        client,
        None,
        "ClusterQueue",
        name,
        json!({"namespaceSelector": {}, "resourceGroups": groups(name, gpus)}),
    )
    .await;
    make(client, Some(name), "LocalQueue", "rl", json!({"clusterQueue": name})).await;
}

fn groups(flavor: &str, gpus: u32) -> Value {
    let resources = json!([{"name": "nvidia.com/gpu", "nominalQuota": gpus.to_string()}]);
    json!([{"coveredResources": ["nvidia.com/gpu"], "flavors": [{"name": flavor, "resources": resources}]}])
}

async fn change_queue(namespace: &Namespace<'_>, spec: Value) {
    let api: Api<DynamicObject> = Api::all_with(namespace.client.clone(), &resource("ClusterQueue"));
    let patch = Patch::Merge(json!({"spec": spec}));
    api.patch(&namespace.name, &PatchParams::default(), &patch)
        .await
        .unwrap();
}

async fn workload(namespace: &Namespace<'_>, job: &str) -> Result<DynamicObject> {
    let api: Api<DynamicObject> =
        Api::namespaced_with(namespace.client.clone(), &namespace.name, &resource("Workload"));
    let all = api.list(&Default::default()).await?;
    let found = all
        .into_iter()
        .find(|workload| workload.name_any().starts_with(&format!("{job}-")));
    found.ok_or_else(|| anyhow::anyhow!("{job} has no Workload"))
}

async fn wait_for_condition(namespace: &Namespace<'_>, job: &str, kind: &str, reason: &str) {
    wait_for(
        &format!("{job}'s Workload to be {kind} ({reason})"),
        PATIENCE,
        async || {
            let workload = workload(namespace, job).await?;
            let conditions = workload.data["status"]["conditions"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            let holds = |condition: &Value| {
                condition["type"] == kind && condition["status"] == "True" && condition["reason"] == reason
            };
            anyhow::ensure!(conditions.iter().any(holds), "{conditions:?}");
            Ok(())
        },
    )
    .await
    .unwrap();
}

async fn wait_until_quota_is_free(namespace: &Namespace<'_>, job: &str) {
    wait_for(&format!("{job} to give its quota back"), PATIENCE, async || {
        let status = workload(namespace, job).await?.data["status"].clone();
        anyhow::ensure!(status["admission"].is_null(), "{status}");
        Ok(())
    })
    .await
    .unwrap();
}

fn selector(pod: &Pod) -> BTreeMap<String, String> {
    pod.spec.clone().unwrap().node_selector.unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_exist_once_the_quota_is_there_and_the_next_job_follows_the_end() {
    let namespace = cluster().await.namespace("kueue").await.unwrap();
    namespace.gpu_nodes(1, 8).await.unwrap();
    queue(&namespace, 2, None).await;
    let (_operator, writes) = watched_operator(&namespace);
    create(&namespace, "first", "auto", "rl", 2, 2).await;
    wait_for_words(&namespace, "first", "Pending", "insufficient").await;
    wait_for_phase(&namespace, "first", Phase::Queued).await;
    assert!(pods(&namespace, "first").await.is_empty());

    change_queue(&namespace, json!({"resourceGroups": groups(&namespace.name, 4)})).await;
    wait_for_phase(&namespace, "first", Phase::Running).await;
    wait_for_condition(&namespace, "first", "PodsReady", "Started").await;
    for pod in wait_for_pods(&namespace, "first", 4).await {
        assert_eq!(
            selector(&pod).get(NODE_LABEL),
            Some(&namespace.name),
            "{}",
            pod.name_any()
        );
    }
    a_second_look_writes_nothing(&namespace, "first", &writes).await;

    create(&namespace, "second", "kueue", "rl", 2, 2).await;
    wait_for_words(&namespace, "second", "Pending", "insufficient").await;
    assert!(pods(&namespace, "second").await.is_empty());
    namespace.complete_pod("first-actor-0").await.unwrap();
    wait_for_phase(&namespace, "first", Phase::Succeeded).await;
    wait_for_condition(&namespace, "first", "Finished", "Succeeded").await;
    wait_for_phase(&namespace, "second", Phase::Running).await;
    delete(&namespace, "second").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_evicted_job_gives_its_quota_back_and_comes_back_as_a_new_attempt() {
    let namespace = cluster().await.namespace("kueue-evicted").await.unwrap();
    namespace.gpu_nodes(1, 8).await.unwrap();
    queue(&namespace, 4, None).await;
    let _operator = Operator::start(&namespace);
    create(&namespace, "job", "kueue", "rl", 2, 2).await;
    let job = wait_for_phase(&namespace, "job", Phase::Running).await;
    assert_eq!(job.status.unwrap().attempt, 1);

    change_queue(&namespace, json!({"stopPolicy": "HoldAndDrain"})).await;
    wait_for_phase(&namespace, "job", Phase::Queued).await;
    wait_for_pods(&namespace, "job", 0).await;
    wait_until_quota_is_free(&namespace, "job").await;

    change_queue(&namespace, json!({"stopPolicy": "None"})).await;
    let job = wait_for_phase(&namespace, "job", Phase::Running).await;
    let status = job.status.unwrap();
    assert_eq!((status.attempt, status.restarts), (2, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suspended_job_gives_its_quota_to_others() {
    let namespace = cluster().await.namespace("kueue-suspended").await.unwrap();
    namespace.gpu_nodes(1, 8).await.unwrap();
    queue(&namespace, 4, None).await;
    let _operator = Operator::start(&namespace);
    create(&namespace, "first", "kueue", "rl", 2, 2).await;
    wait_for_phase(&namespace, "first", Phase::Running).await;
    create(&namespace, "second", "kueue", "rl", 2, 2).await;
    wait_for_phase(&namespace, "second", Phase::Queued).await;

    merge(&namespace, "first", json!({"spec": {"runPolicy": {"suspend": true}}})).await;
    wait_for_phase(&namespace, "second", Phase::Running).await;
    wait_for_phase(&namespace, "first", Phase::Suspended).await;
    merge(&namespace, "first", json!({"spec": {"runPolicy": {"suspend": false}}})).await;
    wait_for_phase(&namespace, "first", Phase::Queued).await;
    delete(&namespace, "second").await;
    wait_for_phase(&namespace, "first", Phase::Running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_leaves_its_queue_only_while_it_is_suspended_and_leaves_no_quota_behind() {
    let namespace = cluster().await.namespace("kueue-left").await.unwrap();
    namespace.gpu_nodes(1, 8).await.unwrap();
    queue(&namespace, 4, None).await;
    let _operator = Operator::start(&namespace);
    create(&namespace, "job", "kueue", "rl", 2, 2).await;
    wait_for_phase(&namespace, "job", Phase::Running).await;
    let leave = json!({"spec": {"scheduling": {"gang": "none", "queue": ""}}});
    let jobs = namespace.api::<PpoJob>();
    let refused = jobs
        .patch("job", &PatchParams::default(), &Patch::Merge(&leave))
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("suspend it first"), "{refused}");

    merge(&namespace, "job", json!({"spec": {"runPolicy": {"suspend": true}}})).await;
    wait_for_phase(&namespace, "job", Phase::Suspended).await;
    merge(&namespace, "job", leave).await;
    wait_for("the Workload to go", PATIENCE, async || {
        anyhow::ensure!(workload(&namespace, "job").await.is_err());
        Ok(())
    })
    .await
    .unwrap();
    merge(&namespace, "job", json!({"spec": {"runPolicy": {"suspend": false}}})).await;
    let status = wait_for_phase(&namespace, "job", Phase::Running).await.status.unwrap();
    assert_eq!((status.gang, status.attempt), (Some(Gang::None), 2));
    assert!(workload(&namespace, "job").await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fewer_engines_run_where_the_quota_is_for_fewer() {
    let namespace = cluster().await.namespace("kueue-fewer").await.unwrap();
    namespace.gpu_nodes(1, 8).await.unwrap();
    queue(&namespace, 4, None).await;
    let _operator = Operator::start(&namespace);
    create(&namespace, "job", "kueue", "rl", 4, 1).await;
    wait_for_phase(&namespace, "job", Phase::Running).await;
    let mut names: Vec<String> = pods(&namespace, "job")
        .await
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["job-actor-0", "job-reference-0", "job-rollout-0", "job-rollout-1"]
    );

    // An engine that is scaled away leaves its quota to others.
    merge(
        &namespace,
        "job",
        json!({"spec": {"roles": {"rollout": {"replicas": 1}}}}),
    )
    .await;
    wait_for("the engine's quota to be given back", PATIENCE, async || {
        let status = workload(&namespace, "job").await?.data["status"].clone();
        anyhow::ensure!(
            status["reclaimablePods"] == json!([{"name": "rollout", "count": 3}]),
            "{status}"
        );
        let queues: Api<DynamicObject> = Api::all_with(namespace.client.clone(), &resource("ClusterQueue"));
        let usage = queues.get(&namespace.name).await?.data["status"]["flavorsUsage"].clone();
        anyhow::ensure!(usage[0]["resources"][0]["total"] == "3", "{usage}");
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(wait_for_pods(&namespace, "job", 3).await.len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_go_to_the_nodes_that_kueue_chose() {
    let namespace = cluster().await.namespace("kueue-topology").await.unwrap();
    let nodes = namespace.gpu_nodes(1, 2).await.unwrap();
    queue(&namespace, 8, Some("kubernetes.io/hostname")).await;
    let _operator = Operator::start(&namespace);
    create(&namespace, "job", "kueue", "rl", 2, 2).await;
    wait_for_phase(&namespace, "job", Phase::Queued).await;
    assert!(
        pods(&namespace, "job").await.is_empty(),
        "placed on {nodes:?}, which are too small"
    );
    namespace.gpu_nodes(1, 2).await.unwrap();
    wait_for_phase(&namespace, "job", Phase::Running).await;
    let mut per_node: BTreeMap<String, u32> = BTreeMap::new();
    for pod in pods(&namespace, "job").await {
        let chosen = selector(&pod).get("kubernetes.io/hostname").cloned();
        assert_eq!(chosen.as_deref(), pod.spec.as_ref().unwrap().node_name.as_deref());
        *per_node.entry(chosen.unwrap()).or_default() += 1;
    }
    assert_eq!(per_node.into_values().collect::<Vec<_>>(), [2, 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_without_a_queue_and_one_whose_queue_is_absent_say_so() {
    let namespace = cluster().await.namespace("kueue-queueless").await.unwrap();
    let _operator = Operator::start(&namespace);
    create(&namespace, "queueless", "kueue", "", 2, 2).await;
    wait_for_words(&namespace, "queueless", "QueueMissing", "scheduling.queue").await;
    create(&namespace, "astray", "kueue", "absent", 2, 2).await;
    wait_for_words(&namespace, "astray", "Inadmissible", "absent").await;
}
