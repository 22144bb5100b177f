//! The harness itself: what it starts is a Kubernetes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::path::Path;

use anyhow::ensure;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{DeleteParams, ListParams, PostParams};
use ppo_tests::{AuditEvent, Component, ControlPlane, Namespace, Options, PATIENCE, PodFailure, wait_for};
use serde_json::{Value, from_value, json};

fn gpu_pod(name: &str, gpus: u32) -> Pod {
    let gpus = gpus.to_string();
    from_value(json!({
        "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "worker", "image": "worker:test",
            "resources": {"limits": {"nvidia.com/gpu": gpus}}}]},
    }))
    .unwrap()
}

async fn create_pod(namespace: &Namespace<'_>, name: &str, gpus: u32) {
    namespace
        .pods()
        .create(&PostParams::default(), &gpu_pod(name, gpus))
        .await
        .unwrap();
}

async fn status(namespace: &Namespace<'_>, pod: &str) -> Value {
    serde_json::to_value(namespace.pods().get(pod).await.unwrap().status).unwrap()
}

#[tokio::test]
async fn a_pod_that_finds_its_gpus_becomes_ready() {
    let cluster = ControlPlane::shared().await.unwrap();
    let namespace = cluster.namespace("ready").await.unwrap();
    let nodes = namespace.gpu_nodes(1, 8).await.unwrap();
    create_pod(&namespace, "fits", 8).await;
    let pod = namespace.wait_until_ready("fits").await.unwrap();
    assert_eq!(pod.spec.unwrap().node_name, nodes.first().cloned());
    assert_eq!(pod.status.unwrap().phase.unwrap(), "Running");
}

#[tokio::test]
async fn a_pod_that_finds_none_says_why() {
    let cluster = ControlPlane::shared().await.unwrap();
    let namespace = cluster.namespace("why").await.unwrap();
    namespace.gpu_nodes(1, 4).await.unwrap();
    create_pod(&namespace, "large", 8).await;
    wait_for("the scheduler's reason", PATIENCE, async || {
        let status = status(&namespace, "large").await;
        anyhow::ensure!(status.to_string().contains("Insufficient nvidia.com/gpu"), "{status}");
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_test_sees_nothing_of_another_tests_nodes() {
    let cluster = ControlPlane::shared().await.unwrap();
    let rich = cluster.namespace("rich").await.unwrap();
    rich.gpu_nodes(2, 8).await.unwrap();
    let poor = cluster.namespace("poor").await.unwrap();
    create_pod(&poor, "homeless", 1).await;
    wait_for("the scheduler's refusal", PATIENCE, async || {
        let status = status(&poor, "homeless").await;
        anyhow::ensure!(
            status.to_string().contains("didn't match Pod's node affinity/selector"),
            "{status}"
        );
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn pods_fail_as_a_kubelet_would_report_it() {
    let cluster = ControlPlane::shared().await.unwrap();
    let namespace = cluster.namespace("fails").await.unwrap();
    namespace.gpu_nodes(1, 8).await.unwrap();
    for (name, failure, expected) in [
        (
            "code",
            PodFailure::exit(3).saying("Diverged"),
            [r#""exitCode":3"#, "Diverged"],
        ),
        (
            "memory",
            PodFailure::out_of_memory(),
            ["OOMKilled", r#""exitCode":137"#],
        ),
        (
            "evicted",
            PodFailure::evicted(),
            [r#""reason":"Evicted""#, "TerminationByKubelet"],
        ),
        (
            "preempted",
            PodFailure::preempted(),
            ["DisruptionTarget", "PreemptionByScheduler"],
        ),
    ] {
        create_pod(&namespace, name, 1).await;
        namespace.wait_until_ready(name).await.unwrap();
        namespace.fail_pod(name, &failure).await.unwrap();
        let status = status(&namespace, name).await;
        assert_eq!(status["phase"], "Failed");
        for words in expected {
            assert!(status.to_string().contains(words), "{words} is not in {status}");
        }
    }
    create_pod(&namespace, "good", 1).await;
    namespace.wait_until_ready("good").await.unwrap();
    namespace.complete_pod("good").await.unwrap();
    assert_eq!(status(&namespace, "good").await["phase"], "Succeeded");
}

#[tokio::test]
async fn a_pod_that_is_held_stays_terminating_until_it_is_released() {
    let cluster = ControlPlane::shared().await.unwrap();
    let namespace = cluster.namespace("held").await.unwrap();
    namespace.gpu_nodes(1, 8).await.unwrap();
    for name in ["held", "free"] {
        create_pod(&namespace, name, 1).await;
        namespace.wait_until_ready(name).await.unwrap();
    }
    namespace.hold_stop("held").await.unwrap();
    for name in ["held", "free"] {
        namespace.pods().delete(name, &DeleteParams::default()).await.unwrap();
    }
    let gone = |name: &'static str| {
        let pods = namespace.pods();
        async move {
            let gone = async || match pods.get_opt(name).await? {
                None => Ok(()),
                Some(pod) => anyhow::bail!("deleted at {:?}", pod.metadata.deletion_timestamp),
            };
            wait_for(&format!("pod {name} to be gone"), PATIENCE, gone)
                .await
                .unwrap();
        }
    };
    gone("free").await;
    let held = namespace.pods().get("held").await.unwrap();
    assert!(held.metadata.deletion_timestamp.is_some());
    namespace.release_stop("held").await.unwrap();
    gone("held").await;
}

#[tokio::test]
async fn what_an_owner_leaves_behind_is_collected() {
    let cluster = ControlPlane::shared().await.unwrap();
    let namespace = cluster.namespace("owner").await.unwrap();
    let maps = namespace.api::<ConfigMap>();
    let make = |name: &str, owners: Value| {
        from_value::<ConfigMap>(json!({"metadata": {"name": name, "ownerReferences": owners}})).unwrap()
    };
    let owner = maps
        .create(&PostParams::default(), &make("owner", json!([])))
        .await
        .unwrap();
    let reference = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.metadata.uid}]);
    maps.create(&PostParams::default(), &make("owned", reference))
        .await
        .unwrap();
    maps.delete("owner", &DeleteParams::default()).await.unwrap();
    wait_for("the owned object to go", PATIENCE, async || {
        anyhow::ensure!(maps.get_opt("owned").await?.is_none(), "it is there");
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_service_account_may_do_what_its_role_says_and_nothing_else() {
    let cluster = ControlPlane::shared().await.unwrap();
    let namespace = cluster.namespace("rights").await.unwrap();
    let role: Role = from_value(json!({"metadata": {"name": "reader"},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]}))
    .unwrap();
    let binding: RoleBinding = from_value(json!({"metadata": {"name": "reader"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace.name}]}))
    .unwrap();
    namespace.api().create(&PostParams::default(), &role).await.unwrap();
    namespace.api().create(&PostParams::default(), &binding).await.unwrap();

    let kubeconfig = namespace.service_account_kubeconfig("default").await.unwrap();
    let client = cluster.client_of(&kubeconfig).await.unwrap();
    let maps = kube::Api::<ConfigMap>::namespaced(client.clone(), &namespace.name);
    wait_for("the API server to know the role", PATIENCE, async || {
        Ok(maps.list(&ListParams::default()).await?)
    })
    .await
    .unwrap();
    let secrets = kube::Api::<Secret>::namespaced(client, &namespace.name);
    let refused = secrets.list(&ListParams::default()).await.unwrap_err();
    assert!(refused.to_string().contains("forbidden"), "{refused}");
}

#[tokio::test]
async fn the_audit_log_counts_requests_by_client_and_verb() {
    let cluster = ControlPlane::start(Options::audited()).await.unwrap();
    let namespace = cluster.namespace("audit").await.unwrap();
    let (_, mark) = cluster.audit_events(0).unwrap();
    let map: ConfigMap = from_value(json!({"metadata": {"name": "counted"}})).unwrap();
    namespace
        .api::<ConfigMap>()
        .create(&PostParams::default(), &map)
        .await
        .unwrap();
    namespace
        .kubectl(&["get", "configmap", "counted"])
        .await
        .unwrap()
        .success()
        .unwrap();
    // The server writes a request down after it has answered, and the controllers of a new namespace make maps of their own, some as admin.
    let key = |verb: &str| (verb.to_owned(), "configmaps".to_owned());
    let (ours, all) = wait_for("the audit log to tell of both requests", PATIENCE, async || {
        let (mut events, _) = cluster.audit_events(mark)?;
        events.retain(|event| event.user.username == "admin" && !event.user_agent.starts_with("kube-"));
        let all = AuditEvent::count(&events, "");
        ensure!(
            ["get", "create"].iter().all(|verb| all.0.contains_key(&key(verb))),
            "{all}"
        );
        Ok((AuditEvent::count(&events, "kubectl/"), all))
    })
    .await
    .unwrap();
    assert_eq!((ours.0[&key("get")], ours.writes()), (1, 0), "{ours}");
    assert_eq!(all.0[&key("create")], 1, "{all}");
}

#[tokio::test]
async fn an_api_server_that_was_stopped_comes_back_with_what_it_held() {
    let cluster = ControlPlane::start(Options::default()).await.unwrap();
    let namespace = cluster.namespace("again").await.unwrap();
    let map: ConfigMap = from_value(json!({"metadata": {"name": "kept"}})).unwrap();
    namespace
        .api::<ConfigMap>()
        .create(&PostParams::default(), &map)
        .await
        .unwrap();
    cluster.stop(Component::ApiServer).await.unwrap();
    assert!(namespace.api::<ConfigMap>().get("kept").await.is_err());
    cluster.launch(Component::ApiServer).await.unwrap();
    wait_for("the object", PATIENCE, async || {
        Ok(namespace.api::<ConfigMap>().get("kept").await?)
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_component_that_ends_is_named_with_its_last_words() {
    let mut options = Options::default();
    options.flags.push((Component::ApiServer, "--no-such-flag".into()));
    let error = format!("{:#}", ControlPlane::start(options).await.unwrap_err());
    assert!(error.contains("kube-apiserver has ended with code 1"), "{error}");
    assert!(error.contains("unknown flag: --no-such-flag"), "{error}");
}

#[tokio::test]
async fn native_gang_scheduling_is_served_when_it_is_asked_for() {
    let cluster = ControlPlane::start(Options::native_gang()).await.unwrap();
    let served = cluster
        .kubectl(&["api-resources", "--api-group=scheduling.k8s.io"])
        .await
        .unwrap()
        .success()
        .unwrap();
    assert!(
        served.contains("scheduling.k8s.io/v1alpha2") && served.contains("PodGroup"),
        "{served}"
    );
}

/// How many processes work in a folder, which may be gone.
fn processes_in(folder: &Path) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap();
    // A process may end meanwhile, and a file there is none.
    let folders = processes.filter_map(|process| std::fs::read_link(process.ok()?.path().join("cwd")).ok());
    let name = folder.display().to_string();
    // The kernel marks the name of a folder that is gone.
    folders
        .filter(|cwd| cwd.to_string_lossy().trim_end_matches(" (deleted)") == name)
        .count()
}

#[tokio::test]
async fn nothing_is_left_of_a_control_plane_that_is_dropped() {
    let cluster = ControlPlane::start(Options::default()).await.unwrap();
    let folder = cluster.folder().unwrap().canonicalize().unwrap();
    let client = cluster.client().await.unwrap();
    client.apiserver_version().await.unwrap();
    assert_eq!(processes_in(&folder), 5, "all components");
    drop(cluster);
    assert_eq!(processes_in(&folder), 0);
    assert!(std::env::var_os("PPO_TEST_KEEP").is_some() || !folder.exists());
    assert!(client.apiserver_version().await.is_err());
}
