//! The user's pod templates: what is kept of them, and what becomes of one that makes no pod.

use kube::Api;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use ppo_crds::PpoJob;
use ppo_crds::status::Phase;
use serde_json::{Value, json};

use crate::job::{Stage, condition, variable};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_users_template_is_patched_and_never_replaced() {
    let template = json!({
        "metadata": {"labels": {"team": "rl"}, "annotations": {"note": "mine"}},
        "spec": {
            "nodeSelector": {"kubernetes.io/os": "linux"},
            "terminationGracePeriodSeconds": 7,
            "securityContext": {"runAsUser": 1234},
            "containers": [
                {"name": "worker", "image": "mine:1", "env": [{"name": "MINE", "value": "1"}, {"name": "PPO_ATTEMPT", "value": "9"}],
                 "resources": {"requests": {"cpu": "2"}}},
                {"name": "sidecar", "image": "side:1"},
            ],
        },
    });
    let stage = Stage::running("mine", json!({"spec": {"roles": {"actor": {"template": template}}}})).await;
    let pod = stage.pod("actor-0").await;
    let labels = pod.metadata.labels.clone().unwrap();
    assert_eq!(
        (labels["team"].as_str(), labels["ppojob.dev/role"].as_str()),
        ("rl", "actor")
    );
    assert_eq!(
        (variable(&pod, "MINE").unwrap(), variable(&pod, "PPO_ATTEMPT").unwrap()),
        ("1".into(), "1".into())
    );
    // It says where that is too short for what it has to do.
    assert_eq!(variable(&pod, "PPO_GRACE_SECONDS").as_deref(), Some("7"));
    let spec = pod.spec.unwrap();
    assert_eq!(spec.termination_grace_period_seconds, Some(7));
    assert_eq!(spec.automount_service_account_token, Some(false));
    let security = spec.security_context.unwrap();
    assert_eq!(
        (security.run_as_user, security.run_as_non_root),
        (Some(1234), Some(true))
    );
    let worker = spec
        .containers
        .iter()
        .find(|container| container.name == "worker")
        .unwrap();
    assert_eq!(worker.image.as_deref(), Some("mine:1"));
    let resources = worker.resources.as_ref().unwrap();
    assert_eq!(resources.requests.as_ref().unwrap()["cpu"].0, "2");
    assert_eq!(resources.limits.as_ref().unwrap()["nvidia.com/gpu"].0, "1");
    assert_eq!(
        worker.security_context.as_ref().unwrap().read_only_root_filesystem,
        Some(true)
    );
    assert_eq!(spec.containers.len(), 2);
}

/// A job whose reference's container has these fields.
fn reference(mut worker: Value) -> Value {
    worker["name"] = json!("worker");
    json!({"spec": {"roles": {"reference": {"template": {"spec": {"containers": [worker]}}}}}})
}

/// The job ends with the API server's `words` on the reference's pod.
async fn check_that_it_is_refused(name: &'static str, worker: Value, words: &str) {
    let stage = Stage::applied(name, reference(worker)).await;
    let status = stage.phase(Phase::Failed).await;
    let (_, reason, message) = condition(&status, "Failed");
    assert_eq!(reason, "Refused");
    let pod = stage.pod_name("reference-0");
    assert!(message.contains(&pod) && message.contains(words), "{message}");
    let (_, reason, _) = condition(&status, "RolesReady");
    assert_eq!(
        (reason.as_str(), status.ready.as_deref()),
        ("NoPodsWanted", Some("0/4"))
    );
    stage.has_pods(&[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_template_that_makes_no_valid_pod_ends_the_job_with_the_api_servers_words() {
    check_that_it_is_refused("wrong", json!({"imagePullPolicy": "Sometimes"}), "Sometimes").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_template_whose_pod_the_api_server_cannot_read_ends_the_job_with_its_words() {
    // A quantity by its form, which `plan` looks at, too large for Kubernetes.
    let memory = json!({"resources": {"requests": {"memory": "1e99999999999999999999"}}});
    check_that_it_is_refused("unread", memory, "quantity's suffix").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_has_run_waits_for_a_wrong_template_to_be_put_right() {
    let stage = Stage::running("mended", json!({})).await;
    stage.patch(json!({"spec": {"runPolicy": {"suspend": true}}})).await;
    stage.phase(Phase::Suspended).await;
    stage.has_pods(&[]).await;
    let resumed = |pull_policy: &str| {
        let mut job = reference(json!({"imagePullPolicy": pull_policy}));
        job["spec"]["runPolicy"] = json!({"suspend": false});
        job
    };
    stage.patch(resumed("Sometimes")).await;
    stage.waits_saying("Sometimes").await;
    stage.patch(resumed("Always")).await;
    stage.phase(Phase::Running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_job_whose_template_cannot_be_read_is_told_of_once_and_goes_on_when_it_is_put_right() {
    let stage = Stage::running("unreadable", json!({})).await;
    let (client, resource) = (stage.namespace.client.clone(), ApiResource::erase::<PpoJob>(&()));
    let jobs: Api<DynamicObject> = Api::namespaced_with(client, &stage.namespace.name, &resource);
    let with = async |value: Value| {
        let patch = Patch::Merge(reference(json!({"env": [{"name": "A", "value": value}]})));
        jobs.patch(stage.name, &PatchParams::default(), &patch).await.unwrap();
    };
    with(json!(8)).await;
    stage
        .tells("spec.containers[0].env[0].value: invalid type: integer `8`")
        .await;
    let operator = stage.operator.as_ref().unwrap();
    let events = async || {
        let metrics = operator.metrics().await.unwrap();
        let written = "ppo_operator_writes_total{kind=\"Event\",verb=\"create\"} ";
        metrics
            .lines()
            .find_map(|line| Some(line.strip_prefix(written)?.to_owned()))
    };
    let told = events().await;
    assert!(told.is_some());
    // The job is looked at whenever its actor was asked for a report.
    let actor = stage.actor().await;
    for _ in 0..2 {
        actor.is_heard().await.unwrap();
    }
    assert_eq!(events().await, told);
    with(json!("8")).await;
    stage.looked_at().await;
}
