//! The operator with the rights that the chart gives it and no others: a job lives its whole life, and nothing is forbidden.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, PostParams};
use ppo_crds::PpoJob;
use ppo_crds::status::Phase;
use ppo_operator::run::{LeaseOptions, Options as OperatorOptions};
use ppo_operator::settings::{PodSettings, Scrapers};
use ppo_tests::{ControlPlane, Namespace, Operator, Options, PATIENCE, wait_for};
use serde_json::json;

use crate::tools::chart;

/// A job of every role with pods, which deletes itself after its end.
fn job() -> PpoJob {
    serde_json::from_value(json!({
        "apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "metadata": {"name": "small"},
        "spec": {
            "model": {"policy": {"path": "/models/policy"}},
            "prompts": {"source": {"path": "/data/train.jsonl"}},
            "roles": {"reward": {"model": {"source": {"path": "/models/reward"}}}},
            "runPolicy": {"ttlSecondsAfterFinished": 0},
        },
    }))
    .unwrap()
}

async fn install(namespace: &Namespace<'_>, further: &[&str]) {
    let chart = chart().display().to_string();
    let fixed = [
        "install",
        "ppo-operator",
        &chart,
        "--namespace",
        &namespace.name,
        "--set",
        "crds.install=false",
    ];
    let installed = namespace.cluster.helm(&[&fixed, further].concat()).await;
    installed.unwrap().success().unwrap();
}

/// The operator, as the account that the chart has made.
async fn start(namespace: &Namespace<'_>, namespaces: Vec<String>) -> Operator {
    let kubeconfig = namespace.service_account_kubeconfig("ppo-operator").await.unwrap();
    let client = namespace.cluster.client_of(&kubeconfig).await.unwrap();
    let scrapers = Scrapers {
        namespaces: vec![namespace.name.clone()],
    };
    let options = OperatorOptions {
        namespaces,
        lease: Some(LeaseOptions {
            namespace: namespace.name.clone(),
            name: "ppo-operator".into(),
        }),
        pods: PodSettings {
            network_policies: Some(scrapers),
            ..PodSettings::default()
        },
        ..Operator::options(namespace)
    };
    Operator::start_with(client, options)
}

/// From its creation until it has deleted itself.
async fn live(namespace: &Namespace<'_>) {
    let jobs: Api<PpoJob> = namespace.api();
    jobs.create(&PostParams::default(), &job()).await.unwrap();
    wait_for("the job to run", PATIENCE, async || {
        let status = jobs.get("small").await?.status.unwrap_or_default();
        anyhow::ensure!(
            status.phase == Some(Phase::Running),
            "{}",
            serde_yaml::to_string(&status)?
        );
        Ok(())
    })
    .await
    .unwrap();
    namespace.complete_pod("small-actor-0").await.unwrap();
    wait_for("the job to delete itself", PATIENCE, async || {
        match jobs.get_opt("small").await? {
            Some(job) => anyhow::bail!("{}", serde_yaml::to_string(&job.status)?),
            None => Ok(()),
        }
    })
    .await
    .unwrap();
}

/// What the account asked for and was not allowed, and how much it asked for at all.
async fn forbidden(namespace: &Namespace<'_>) -> (Vec<String>, usize) {
    // The log is written a moment after the answer: what was asked for before the mark is there once the mark is.
    let mark = "the-end";
    namespace.api::<ConfigMap>().get_opt(mark).await.unwrap();
    let events = wait_for("the mark in the audit log", PATIENCE, async || {
        let (events, _) = namespace.cluster.audit_events(0)?;
        let path = format!("/namespaces/{}/configmaps/{mark}", namespace.name);
        let is_there = events.iter().any(|event| event.request_uri.ends_with(&path));
        anyhow::ensure!(is_there, "{} events", events.len());
        Ok(events)
    });
    let mut events = events.await.unwrap();
    let account = format!("system:serviceaccount:{}:ppo-operator", namespace.name);
    events.retain(|event| event.user.username == account);
    let denied = events
        .iter()
        .filter(|event| event.response_status.as_ref().is_some_and(|status| status.code == 403));
    let words = denied.map(|event| format!("{} {}", event.verb, event.request_uri));
    (words.collect(), events.len())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_charts_rights_a_job_lives_its_life_and_nothing_is_forbidden() {
    let cluster = ControlPlane::start(Options::audited()).await.unwrap();
    for listed in [false, true] {
        let namespace = cluster.namespace("rights").await.unwrap();
        namespace.gpu_nodes(1, 8).await.unwrap();
        let watched = format!("watchNamespaces={{{}}}", namespace.name);
        let further = ["--set", watched.as_str()];
        install(&namespace, if listed { &further } else { &[] }).await;
        let namespaces = if listed {
            vec![namespace.name.clone()]
        } else {
            Vec::new()
        };
        let operator = start(&namespace, namespaces).await;
        live(&namespace).await;
        operator.stop().await.unwrap();
        let (forbidden, asked) = forbidden(&namespace).await;
        assert!(asked > 20, "{asked} requests: it was not this account that worked");
        assert!(forbidden.is_empty(), "listed namespaces: {listed}: {forbidden:#?}");
    }
}
