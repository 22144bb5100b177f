//! One operator acts; another takes over; none acts on a CRD that is not its own.

use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{Patch, PatchParams};
use ppo_crds::status::Phase;
use ppo_operator::run::LeaseOptions;
use ppo_tests::{ControlPlane, Operator, Options as Cluster};
use serde_json::json;

use crate::job::{Stage, manifest};

fn elected(stage: &Stage<'_>, identity: &str) -> Operator {
    let mut options = Operator::options(&stage.namespace);
    options.identity = identity.into();
    options.lease = Some(LeaseOptions {
        namespace: stage.namespace.name.clone(),
        name: "ppo-operator".into(),
    });
    Operator::start_with(stage.namespace.client.clone(), options)
}

async fn lease(stage: &Stage<'_>) -> anyhow::Result<LeaseSpec> {
    let lease = stage.namespace.api::<Lease>().get("ppo-operator").await?;
    lease.spec.context("the Lease says nothing")
}

/// Whether an operator says that it leads.
async fn leads(operator: &Operator) -> anyhow::Result<bool> {
    let metrics = operator.metrics().await?;
    let says = |value: u8| metrics.contains(&format!("\nppo_operator_is_leader{{lease=\"ppo-operator\"}} {value}\n"));
    anyhow::ensure!(says(0) || says(1), "{metrics}");
    Ok(says(1))
}

async fn holder(stage: &Stage<'_>) -> anyhow::Result<String> {
    Ok(lease(stage).await?.holder_identity.unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_stops_hands_over_at_once_and_one_that_dies_is_replaced() {
    let mut stage = Stage::applied("lead", json!({"spec": {"runPolicy": {"suspend": true}}})).await;
    stage.operator.take().unwrap().stop().await.unwrap();
    let first = elected(&stage, "first");
    stage
        .wait("the first to lead", async || {
            anyhow::ensure!(holder(&stage).await? == "first");
            Ok(())
        })
        .await;
    let second = elected(&stage, "second");
    stage.wait("the second to answer", async || leads(&second).await).await;
    // One that waits looks at the Lease every 3 s.
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert_eq!(holder(&stage).await.unwrap(), "first");
    assert_eq!(
        (leads(&first).await.unwrap(), leads(&second).await.unwrap()),
        (true, false)
    );
    first.stop().await.unwrap();
    // It has let go of the Lease itself, which would be believed for 15 s.
    assert_ne!(holder(&stage).await.unwrap(), "first");
    stage
        .wait("the second to lead", async || {
            anyhow::ensure!(holder(&stage).await? == "second");
            Ok(())
        })
        .await;
    let _third = elected(&stage, "third");
    second.kill().await;
    assert_eq!(holder(&stage).await.unwrap(), "second", "nobody lets go for the dead");
    stage.patch(json!({"spec": {"runPolicy": {"suspend": false}}})).await;
    stage.phase(Phase::Running).await;
    let lease = lease(&stage).await.unwrap();
    assert_eq!(
        (lease.holder_identity.as_deref(), lease.lease_transitions),
        (Some("third"), Some(2))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_touches_nothing_while_the_crd_is_not_its_own() {
    let cluster = ControlPlane::start(Cluster::default()).await.unwrap();
    let namespace = cluster.namespace("skew").await.unwrap();
    namespace.gpu_nodes(1, 8).await.unwrap();
    let crds: Api<CustomResourceDefinition> = Api::all(namespace.client.clone());
    let set = async |fingerprint: &str| {
        let patch = json!({"metadata": {"annotations": {ppo_crds::CONTRACT_ANNOTATION: fingerprint}}});
        crds.patch("ppojobs.ppojob.dev", &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .unwrap();
    };
    set("0123456789abcdef").await;
    let stage = Stage {
        jobs: namespace.api(),
        operator: Some(Operator::start(&namespace)),
        name: "skew",
        namespace,
    };
    stage
        .jobs
        .create(&Default::default(), &manifest("skew", json!({})))
        .await
        .unwrap();
    stage.operator.as_ref().unwrap().has_looked().await.unwrap();
    assert!(stage.jobs.get("skew").await.unwrap().status.is_none());
    assert!(stage.pods().await.is_empty());
    let operator = stage.operator.as_ref().unwrap();
    let ready = async || {
        let answer = reqwest::get(format!("http://{}/readyz", operator.address)).await?;
        anyhow::Ok((answer.status().as_u16(), answer.text().await?))
    };
    let matches = async |value: u8| {
        let metrics = operator.metrics().await.unwrap();
        metrics.contains(&format!("\nppo_operator_crd_matches {value}\n"))
    };
    let (code, why) = ready().await.unwrap();
    assert!(
        code == 503 && why.contains("has schema 0123456789abcdef"),
        "{code} {why}"
    );
    assert!(matches(0).await);
    set(&ppo_crds::contract().unwrap()).await;
    stage.phase(Phase::Running).await;
    stage
        .wait("the operator to be ready", async || {
            let (code, why) = ready().await?;
            anyhow::ensure!(code == 200, "{code} {why}");
            Ok(())
        })
        .await;
    assert!(matches(1).await);
}
