//! What a job is made of, and that it stays so.

use std::fmt::Debug;

use anyhow::Context;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Resource, ResourceExt};
use ppo_crds::RunConfig;
use ppo_crds::status::Phase;
use ppo_tests::PodFailure;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, from_value, json};

use crate::job::{Stage, condition, manifest, shares, variable};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pods_get_their_config_token_services_policy_and_budget() {
    let stage = Stage::running("parts", json!({})).await;
    let configs: Api<ConfigMap> = stage.namespace.api();
    let text = configs.get("parts-config").await.unwrap().data.unwrap()["run-config.json"].clone();
    let config: RunConfig = serde_json::from_str(&text).unwrap();
    assert_eq!((config.name.as_str(), config.batch.rollout_batch_size), ("parts", 32));

    let secrets: Api<Secret> = stage.namespace.api();
    let token = secrets.get("parts-token").await.unwrap().data.unwrap()["token"].clone();
    assert_eq!(token.0.len(), 64);

    let services: Api<Service> = stage.namespace.api();
    for role in ["rollout", "actor", "reference"] {
        let spec = services.get(&format!("parts-{role}")).await.unwrap().spec.unwrap();
        assert_eq!(spec.cluster_ip.as_deref(), Some("None"));
        assert_eq!(spec.publish_not_ready_addresses, Some(true));
    }
    let policies: Api<NetworkPolicy> = stage.namespace.api();
    let ingress = policies.get("parts").await.unwrap().spec.unwrap().ingress.unwrap();
    assert_eq!(ingress.len(), 1, "only the job's own pods: {ingress:?}");
    stage.has_budget(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_may_evict_no_rank_of_the_actor_though_there_are_fewer_engines() {
    let four = json!({"actor": {"nodes": 4, "template": shares()}, "rollout": {"replicas": 1}});
    let shared = json!({"path": "/shared/checkpoints"});
    let stage = Stage::running("drained", json!({"spec": {"roles": four, "checkpoint": shared}})).await;
    let budgets: Api<PodDisruptionBudget> = stage.namespace.api();
    let status = stage
        .wait("the budget's count of the ranks", async || {
            let status = budgets.get("drained-actor").await?.status.context("no status")?;
            anyhow::ensure!(status.current_healthy == 4, "{status:?}");
            Ok(status)
        })
        .await;
    assert_eq!((status.desired_healthy, status.disruptions_allowed), (4, 0));
}

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_template_that_makes_no_valid_pod_ends_the_job_with_the_api_servers_words() {
    let template = json!({"spec": {"containers": [{"name": "worker", "imagePullPolicy": "Sometimes"}]}});
    let stage = Stage::applied(
        "wrong",
        json!({"spec": {"roles": {"reference": {"template": template}}}}),
    )
    .await;
    let status = stage.phase(Phase::Failed).await;
    let (_, reason, message) = condition(&status, "Failed");
    assert_eq!(reason, "Refused");
    assert!(
        message.contains("wrong-reference-0") && message.contains("Sometimes"),
        "{message}"
    );
    stage.has_pods(&[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vllm_engine_listens_on_localhost_behind_its_door() {
    let stage = Stage::running(
        "door",
        json!({"spec": {"roles": {"rollout": {"engine": "vllm", "gpusPerReplica": 2, "kvCacheMebibytes": 1024}}}}),
    )
    .await;
    let pod = stage.pod("rollout-0").await;
    assert_eq!(variable(&pod, "PPO_VLLM").unwrap(), "127.0.0.1:8001");
    let containers = pod.spec.unwrap().containers;
    let vllm = containers.iter().find(|container| container.name == "vllm").unwrap();
    let flags = vllm.args.clone().unwrap();
    for flag in [
        "--host=127.0.0.1",
        "--tensor-parallel-size=2",
        "--logprobs-mode=processed_logprobs",
        "--model=/models/policy",
        "--kv-cache-memory-bytes=536870912",
    ] {
        assert!(flags.iter().any(|given| given == flag), "{flag} in {flags:?}");
    }
    assert!(vllm.ports.is_none());
    assert_eq!(
        vllm.resources.as_ref().unwrap().limits.as_ref().unwrap()["nvidia.com/gpu"].0,
        "2"
    );
    let door = containers.iter().find(|container| container.name == "worker").unwrap();
    assert!(
        door.resources
            .as_ref()
            .and_then(|resources| resources.limits.as_ref())
            .is_none()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_changed_or_deleted_by_hand_is_put_back() {
    let stage = Stage::running("drift", json!({})).await;
    let services: Api<Service> = stage.namespace.api();
    let wrong = json!({"spec": {"selector": {"ppojob.dev/role": "nobody"}}});
    services
        .patch("drift-rollout", &PatchParams::default(), &Patch::Merge(&wrong))
        .await
        .unwrap();
    let policies: Api<NetworkPolicy> = stage.namespace.api();
    policies.delete("drift", &DeleteParams::default()).await.unwrap();
    stage
        .wait("the selector to be put back", async || {
            let selector = services
                .get("drift-rollout")
                .await?
                .spec
                .and_then(|spec| spec.selector)
                .unwrap_or_default();
            anyhow::ensure!(selector["ppojob.dev/role"] == "rollout", "{selector:?}");
            policies.get("drift").await?;
            Ok(())
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_of_somebody_else_is_never_touched_and_the_job_waits_for_its_name() {
    let stage = Stage::applied("taken", json!({"spec": {"runPolicy": {"suspend": true}}})).await;
    stage.phase(Phase::Suspended).await;
    let foreign: Pod = serde_json::from_value(json!({
        "metadata": {"name": "taken-actor-0"},
        "spec": {"containers": [{"name": "c", "image": "somebody:1"}]},
    }))
    .unwrap();
    let foreign = stage
        .namespace
        .pods()
        .create(&Default::default(), &foreign)
        .await
        .unwrap();
    stage.patch(json!({"spec": {"runPolicy": {"suspend": false}}})).await;
    stage
        .has_pods(&["actor-0", "reference-0", "rollout-0", "rollout-1"])
        .await;
    assert_eq!(stage.uid("actor-0").await, foreign.metadata.uid.clone().unwrap());
    stage
        .wait("the event", async || {
            let events = stage
                .namespace
                .kubectl(&["get", "events", "-o", "jsonpath={.items[*].message}"])
                .await?;
            anyhow::ensure!(
                events.stdout.contains("taken-actor-0 belongs to nobody"),
                "{}",
                events.stdout
            );
            Ok(())
        })
        .await;
    stage
        .namespace
        .pods()
        .delete("taken-actor-0", &DeleteParams::default())
        .await
        .unwrap();
    stage.phase(Phase::Running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_refusal_is_told_in_its_own_words() {
    let stage = Stage::applied("told", json!({"spec": {"runPolicy": {"suspend": true}}})).await;
    stage.phase(Phase::Suspended).await;
    let policy = json!({"metadata": {"name": "told"}, "spec": {"podSelector": {}, "policyTypes": ["Egress"]}});
    let pod =
        json!({"metadata": {"name": "told-actor-0"}, "spec": {"containers": [{"name": "c", "image": "somebody:1"}]}});
    let policies: Api<NetworkPolicy> = stage.namespace.api();
    let policy = serde_json::from_value(policy).unwrap();
    policies.create(&Default::default(), &policy).await.unwrap();
    let pod = serde_json::from_value(pod).unwrap();
    stage.namespace.pods().create(&Default::default(), &pod).await.unwrap();
    stage.patch(json!({"spec": {"runPolicy": {"suspend": false}}})).await;
    says(&stage, "NetworkPolicy told belongs to nobody").await;
    policies.delete("told", &Default::default()).await.unwrap();
    says(&stage, "Pod told-actor-0 belongs to nobody").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_budget_that_cannot_be_made_is_told_of_and_no_pod_waits_for_it() {
    let stage = Stage::applied("unguarded", json!({"spec": {"runPolicy": {"suspend": true}}})).await;
    stage.phase(Phase::Suspended).await;
    let budgets: Api<PodDisruptionBudget> = stage.namespace.api();
    let foreign = json!({"metadata": {"name": "unguarded-actor"}, "spec": {"minAvailable": 0, "selector": {}}});
    let foreign = from_value(foreign).unwrap();
    budgets.create(&PostParams::default(), &foreign).await.unwrap();
    stage.patch(json!({"spec": {"runPolicy": {"suspend": false}}})).await;
    stage.phase(Phase::Running).await;
    says(&stage, "PodDisruptionBudget unguarded-actor belongs to nobody").await;
    let failed = stage.uid("rollout-1").await;
    let engine = stage.pod_name("rollout-1");
    stage.namespace.fail_pod(&engine, &PodFailure::exit(1)).await.unwrap();
    stage.replaced("rollout-1", &failed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_of_the_cluster_that_denies_pods_holds_a_job_up_and_does_not_end_it() {
    let stage = Stage::applied("denied", json!({"spec": {"runPolicy": {"suspend": true}}})).await;
    stage.phase(Phase::Suspended).await;
    let bindings = deny_pods(&stage).await;
    stage.patch(json!({"spec": {"runPolicy": {"suspend": false}}})).await;
    says(&stage, "denied request: no pods today").await;
    let waits = stage
        .status("the policy's words", |status| {
            let mut conditions = status.conditions.iter();
            conditions.any(|condition| condition.message.contains("no pods today"))
        })
        .await;
    assert_ne!(waits.phase, Some(Phase::Failed), "{waits:?}");
    bindings
        .delete(&stage.namespace.name, &DeleteParams::default())
        .await
        .unwrap();
    stage.phase(Phase::Running).await;
}

/// Has the API server deny every new pod of the stage's namespace, by a policy and a binding of that name.
async fn deny_pods(stage: &Stage<'_>) -> Api<ValidatingAdmissionPolicyBinding> {
    let name = &stage.namespace.name;
    let policy = json!({
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}},
                "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            },
            "validations": [{"expression": "false", "message": "no pods today"}],
        },
    });
    let binding = json!({"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}});
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(stage.namespace.client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(stage.namespace.client.clone());
    let (policy, binding) = (from_value(policy).unwrap(), from_value(binding).unwrap());
    policies.create(&PostParams::default(), &policy).await.unwrap();
    bindings.create(&PostParams::default(), &binding).await.unwrap();
    let pod = json!({"metadata": {"name": "probe"}, "spec": {"containers": [{"name": "c", "image": "somebody:1"}]}});
    let pod: Pod = from_value(pod).unwrap();
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    stage
        .wait("the policy to be in force", async || {
            let answer = stage.namespace.pods().create(&dry_run, &pod).await;
            anyhow::ensure!(answer.is_err(), "pods are taken");
            Ok(())
        })
        .await;
    bindings
}

/// Waits for an event of these words.
async fn says(stage: &Stage<'_>, words: &str) {
    stage
        .wait(&format!("an event {words:?}"), async || {
            let events = ["get", "events", "-o", "jsonpath={.items[*].message}"];
            let events = stage.namespace.kubectl(&events).await?;
            anyhow::ensure!(events.stdout.contains(words), "{}", events.stdout);
            Ok(())
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_of_somebody_else_is_used_and_asked_for_once() {
    let claim = json!({"spec": {"checkpoint": {"volumeClaim": {"storage": "10Gi"}}, "runPolicy": {"suspend": true}}});
    let stage = Stage::applied("claimed", claim).await;
    stage.phase(Phase::Suspended).await;
    let claims: Api<PersistentVolumeClaim> = stage.namespace.api();
    let foreign = json!({
        "metadata": {"name": "claimed-checkpoints"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    let foreign = serde_json::from_value(foreign).unwrap();
    claims.create(&Default::default(), &foreign).await.unwrap();
    stage.patch(json!({"spec": {"runPolicy": {"suspend": false}}})).await;
    says(&stage, "PersistentVolumeClaim claimed-checkpoints is there already").await;
    // Longer than what was made is expected (`expected.rs`).
    tokio::time::sleep(std::time::Duration::from_secs(16)).await;
    stage
        .patch(json!({"metadata": {"annotations": {"example.org/touched": "yes"}}}))
        .await;
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    let metrics = stage.operator.as_ref().unwrap().metrics().await.unwrap();
    let asked = "ppo_operator_writes_total{kind=\"PersistentVolumeClaim\",verb=\"create\"} 1\n";
    assert!(metrics.contains(asked), "{metrics}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nor_is_a_policy_of_somebody_else() {
    let policy = json!({"metadata": {"name": "policed"}, "spec": {"podSelector": {}, "policyTypes": ["Egress"]}});
    check_that_it_is_waited_for::<NetworkPolicy>("policed", policy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nor_is_a_secret_that_the_operator_may_not_even_read() {
    check_that_it_is_waited_for::<Secret>("secret", json!({"metadata": {"name": "secret-token"}})).await;
}

/// A job that finds an object of somebody else where one of its own should be says so, leaves it, and runs when it is gone.
async fn check_that_it_is_waited_for<K>(job: &'static str, object: Value)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Serialize
        + PartialEq,
{
    let stage = Stage::applied(job, json!({"spec": {"runPolicy": {"suspend": true}}})).await;
    stage.phase(Phase::Suspended).await;
    let objects: Api<K> = stage.namespace.api();
    let object: K = serde_json::from_value(object).unwrap();
    let object = objects.create(&Default::default(), &object).await.unwrap();
    stage.patch(json!({"spec": {"runPolicy": {"suspend": false}}})).await;
    let words = format!("{} {} belongs to nobody", K::kind(&()), object.name_any());
    stage
        .wait("the event", async || {
            let events = ["get", "events", "-o", "jsonpath={.items[*].message}"];
            let events = stage.namespace.kubectl(&events).await?;
            anyhow::ensure!(events.stdout.contains(&words), "{}", events.stdout);
            Ok(())
        })
        .await;
    assert_eq!(objects.get(&object.name_any()).await.unwrap(), object);
    objects.delete(&object.name_any(), &Default::default()).await.unwrap();
    stage.phase(Phase::Running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_job_takes_everything_with_it_but_its_checkpoints() {
    let claim = json!({"spec": {"checkpoint": {"volumeClaim": {"storage": "10Gi"}}}});
    let stage = Stage::applied("gone", claim).await;
    let claims: Api<PersistentVolumeClaim> = stage.namespace.api();
    stage
        .wait("the claim", async || Ok(claims.get("gone-checkpoints").await?))
        .await;
    stage.jobs.delete("gone", &DeleteParams::background()).await.unwrap();
    let services: Api<Service> = stage.namespace.api();
    stage
        .wait("garbage collection", async || {
            let left = services.list(&Default::default()).await?.items.len();
            anyhow::ensure!(left == 0 && stage.pods().await.is_empty(), "{left} services");
            Ok(())
        })
        .await;
    claims.get("gone-checkpoints").await.unwrap();
    // The next job of the name finds them.
    stage
        .jobs
        .create(&Default::default(), &manifest("gone", json!({})))
        .await
        .unwrap();
    stage.phase(Phase::Running).await;
}
