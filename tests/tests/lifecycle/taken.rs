//! Names that somebody else's objects have, and pods that the cluster denies: reported, waited for, never touched.

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Pod, Secret};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Resource, ResourceExt};
use ppo_crds::status::Phase;
use ppo_tests::PodFailure;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, from_value, json};

use crate::job::Stage;

/// Somebody else's pod.
fn pod(name: &str) -> Pod {
    let spec = json!({"containers": [{"name": "c", "image": "somebody:1"}]});
    from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_of_somebody_else_is_never_touched_and_the_job_waits_for_its_name() {
    let stage = Stage::applied("taken", json!({"spec": {"runPolicy": {"suspend": true}}})).await;
    stage.phase(Phase::Suspended).await;
    let pods = stage.namespace.pods();
    let foreign = pods
        .create(&PostParams::default(), &pod("taken-actor-0"))
        .await
        .unwrap();
    stage.patch(json!({"spec": {"runPolicy": {"suspend": false}}})).await;
    stage
        .has_pods(&["actor-0", "reference-0", "rollout-0", "rollout-1"])
        .await;
    stage.tells("taken-actor-0 belongs to nobody").await;
    assert_eq!(stage.uid("actor-0").await, foreign.metadata.uid.unwrap());
    pods.delete("taken-actor-0", &DeleteParams::default()).await.unwrap();
    stage.phase(Phase::Running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_has_lost_its_labels_is_told_of_and_the_job_goes_on_when_they_are_back() {
    let stage = Stage::running("unlabelled", json!({})).await;
    let uid = stage.uid("reference-0").await;
    label(&stage, "reference-0", Value::Null).await;
    let words = "Pod unlabelled-reference-0 is the job's own and has lost labels by which the operator knows it \
                 (ppojob.dev/job=unlabelled)";
    stage.tells(words).await;
    stage.waits_saying(words).await;
    label(&stage, "reference-0", json!("unlabelled")).await;
    stage
        .status("all pods ready", |status| status.ready.as_deref() == Some("4/4"))
        .await;
    assert_eq!(stage.uid("reference-0").await, uid);
}

/// Sets the label that names a pod's job; null takes it away.
async fn label(stage: &Stage<'_>, short: &str, job: Value) {
    let patch = Patch::Merge(json!({"metadata": {"labels": {"ppojob.dev/job": job}}}));
    let pods = stage.namespace.pods();
    pods.patch(&stage.pod_name(short), &PatchParams::default(), &patch)
        .await
        .unwrap();
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
    let object: K = from_value(object).unwrap();
    let object = objects.create(&Default::default(), &object).await.unwrap();
    stage.patch(json!({"spec": {"runPolicy": {"suspend": false}}})).await;
    let words = format!("{} {} belongs to nobody", K::kind(&()), object.name_any());
    stage.tells(&words).await;
    assert_eq!(objects.get(&object.name_any()).await.unwrap(), object);
    objects.delete(&object.name_any(), &Default::default()).await.unwrap();
    stage.phase(Phase::Running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_refusal_is_told_in_its_own_words() {
    let stage = Stage::applied("told", json!({"spec": {"runPolicy": {"suspend": true}}})).await;
    stage.phase(Phase::Suspended).await;
    let policy = json!({"metadata": {"name": "told"}, "spec": {"podSelector": {}, "policyTypes": ["Egress"]}});
    let policies: Api<NetworkPolicy> = stage.namespace.api();
    let policy = from_value(policy).unwrap();
    policies.create(&PostParams::default(), &policy).await.unwrap();
    let pods = stage.namespace.pods();
    pods.create(&PostParams::default(), &pod("told-actor-0")).await.unwrap();
    stage.patch(json!({"spec": {"runPolicy": {"suspend": false}}})).await;
    stage.tells("NetworkPolicy told belongs to nobody").await;
    policies.delete("told", &Default::default()).await.unwrap();
    stage.tells("Pod told-actor-0 belongs to nobody").await;
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
    stage
        .tells(
            "PodDisruptionBudget unguarded-actor belongs to nobody; the job does not wait for it, but a drain may evict its actor",
        )
        .await;
    let failed = stage.uid("rollout-1").await;
    stage.fail("rollout-1", &PodFailure::exit(1)).await;
    stage.replaced("rollout-1", &failed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_of_the_cluster_that_denies_pods_holds_a_job_up_and_does_not_end_it() {
    let stage = Stage::applied("denied", json!({"spec": {"runPolicy": {"suspend": true}}})).await;
    stage.phase(Phase::Suspended).await;
    let bindings = deny_pods(&stage).await;
    stage.patch(json!({"spec": {"runPolicy": {"suspend": false}}})).await;
    stage.tells("denied request: no pods today").await;
    stage.waits_saying("no pods today").await;
    bindings
        .delete(&stage.namespace.name, &DeleteParams::default())
        .await
        .unwrap();
    stage.phase(Phase::Running).await;
}

/// Has the API server deny every new pod of the stage's namespace, by a policy and a binding of that name, which go with it.
async fn deny_pods(stage: &Stage<'_>) -> Api<ValidatingAdmissionPolicyBinding> {
    let (name, client) = (&stage.namespace.name, &stage.namespace.client);
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let uid = namespaces.get(name).await.unwrap().metadata.uid;
    let owner = json!({"apiVersion": "v1", "kind": "Namespace", "name": name, "uid": uid});
    let metadata = json!({"name": name, "ownerReferences": [owner]});
    let policy = json!({
        "metadata": metadata,
        "spec": {
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}},
                "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            },
            "validations": [{"expression": "false", "message": "no pods today"}],
        },
    });
    let binding = json!({"metadata": metadata, "spec": {"policyName": name, "validationActions": ["Deny"]}});
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    let (policy, binding) = (from_value(policy).unwrap(), from_value(binding).unwrap());
    policies.create(&PostParams::default(), &policy).await.unwrap();
    bindings.create(&PostParams::default(), &binding).await.unwrap();
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    stage
        .wait("the policy to be in force", async || {
            let answer = stage.namespace.pods().create(&dry_run, &pod("probe")).await;
            anyhow::ensure!(answer.is_err(), "pods are taken");
            Ok(())
        })
        .await;
    bindings
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_of_somebody_else_is_used_and_asked_for_once_and_told_of_where_it_is_too_small() {
    let claim = json!({"spec": {"checkpoint": {"volumeClaim": {"storage": "10Gi"}}, "runPolicy": {"suspend": true}}});
    let stage = Stage::applied("claimed", claim).await;
    stage.phase(Phase::Suspended).await;
    let claims: Api<PersistentVolumeClaim> = stage.namespace.api();
    let foreign = json!({
        "metadata": {"name": "claimed-checkpoints"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    let foreign = from_value(foreign).unwrap();
    let foreign = claims.create(&PostParams::default(), &foreign).await.unwrap();
    stage.patch(json!({"spec": {"runPolicy": {"suspend": false}}})).await;
    stage
        .tells(
            "PersistentVolumeClaim claimed-checkpoints is there already and is not the operator's: the job uses it as it is; its 1Gi are \
             less than the 10Gi of spec.checkpoint.volumeClaim.storage",
        )
        .await;
    stage
        .has_pods(&["actor-0", "reference-0", "rollout-0", "rollout-1"])
        .await;
    let volumes = stage.pod("actor-0").await.spec.unwrap().volumes.unwrap();
    let mut used = volumes
        .iter()
        .filter_map(|volume| volume.persistent_volume_claim.as_ref());
    assert!(
        used.any(|claim| claim.claim_name == "claimed-checkpoints"),
        "{volumes:?}"
    );
    // Longer than what was made is expected (`expected.rs`).
    tokio::time::sleep(std::time::Duration::from_secs(16)).await;
    // What the first look leads to is done before the second.
    for _ in 0..2 {
        stage.looked_at_anew().await;
    }
    let metrics = stage.operator.as_ref().unwrap().metrics().await.unwrap();
    let asked = "ppo_operator_writes_total{kind=\"PersistentVolumeClaim\",verb=\"create\"} 1\n";
    assert!(metrics.contains(asked), "{metrics}");
    let now = claims.get("claimed-checkpoints").await.unwrap().metadata;
    let then = foreign.metadata;
    assert_eq!((now.uid, now.labels), (then.uid, then.labels));
    // Taken away while the job is suspended it is the job's to make.
    stage.patch(json!({"spec": {"runPolicy": {"suspend": true}}})).await;
    stage.phase(Phase::Suspended).await;
    stage.has_pods(&[]).await;
    claims
        .delete("claimed-checkpoints", &DeleteParams::default())
        .await
        .unwrap();
    stage
        .wait("the claim to be gone", async || {
            anyhow::ensure!(claims.get_opt("claimed-checkpoints").await?.is_none(), "it is there");
            Ok(())
        })
        .await;
    stage.patch(json!({"spec": {"runPolicy": {"suspend": false}}})).await;
    stage
        .wait("a claim of the operator's", async || {
            let claim = claims.get("claimed-checkpoints").await?;
            anyhow::ensure!(claim.labels().contains_key("ppojob.dev/job"), "{:?}", claim.labels());
            Ok(())
        })
        .await;
}
