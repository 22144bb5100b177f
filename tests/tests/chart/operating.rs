//! The operator with the rights that the chart gives it and no others: jobs with a gang and without live their whole lives, and nothing is
//! forbidden.

use std::collections::BTreeSet;
use std::fs;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, PostParams};
use ppo_crds::PpoJob;
use ppo_crds::status::Phase;
use ppo_operator::run::{LeaseOptions, Options as OperatorOptions};
use ppo_operator::settings::{PodSettings, Scrapers};
use ppo_tests::{
    AuditEvent, ControlPlane, GangScheduler, NODE_LABEL, Namespace, Operator, Options, PATIENCE, wait_for,
};
use serde_json::{Value, json};

use crate::tools::chart;

/// What jobs ask for here: no gang, Kubernetes' own, Kueue's.
const GANGS: [&str; 3] = ["none", "workload", "kueue"];

/// What the operator does for gangs alone.
const DEEDS: [&str; 6] = [
    "create podgroups",
    "patch workloads",
    "patch workloads/status",
    "get resourceflavors",
    "get workloadpriorityclasses",
    "list priorityclasses",
];

/// The queue of each namespace.
const QUEUE: &str = "rl";

/// A cluster that has all of that.
async fn cluster() -> ControlPlane {
    let options = Options {
        audit: true,
        crds: GangScheduler::Kueue.crds().await.unwrap(),
        ..Options::native_gang()
    };
    let cluster = ControlPlane::start(options).await.unwrap();
    GangScheduler::Kueue.start(&cluster).await.unwrap();
    cluster
}

fn of_kueue(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

/// Gives a namespace its queue, with quota for its nodes.
async fn queue(namespace: &Namespace<'_>) {
    let name = namespace.name.as_str();
    let quota = json!([{"name": "nvidia.com/gpu", "nominalQuota": "16"}]);
    let groups = json!([{"coveredResources": ["nvidia.com/gpu"], "flavors": [{"name": name, "resources": quota}]}]);
    let items = [
        of_kueue("ResourceFlavor", name, json!({"nodeLabels": {NODE_LABEL: name}})),
        of_kueue(
            "ClusterQueue",
            name,
            json!({"namespaceSelector": {}, "resourceGroups": groups}),
        ),
        of_kueue("LocalQueue", QUEUE, json!({"clusterQueue": name})),
    ];
    let file = tempfile::NamedTempFile::with_suffix(".json").unwrap();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    fs::write(file.path(), list.to_string()).unwrap();
    let path = file.path().display().to_string();
    // Kueue's webhooks may need a moment.
    wait_for("the queue to be taken", PATIENCE, async || {
        namespace.kubectl(&["apply", "--filename", &path]).await?.success()
    })
    .await
    .unwrap();
}

/// A job of every role with pods, called as its gang, which deletes itself after its end.
fn job(gang: &str) -> PpoJob {
    serde_json::from_value(json!({
        "apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "metadata": {"name": gang},
        "spec": {
            "model": {"policy": {"path": "/models/policy"}},
            "prompts": {"source": {"path": "/data/train.jsonl"}},
            "roles": {"reward": {"model": {"source": {"path": "/models/reward"}}}},
            "runPolicy": {"ttlSecondsAfterFinished": 0},
            "scheduling": {"gang": gang, "queue": if gang == "kueue" { QUEUE } else { "" }},
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

/// A job of that gang, from its creation until it has deleted itself.
async fn live(namespace: &Namespace<'_>, gang: &str) {
    let jobs: Api<PpoJob> = namespace.api();
    jobs.create(&PostParams::default(), &job(gang)).await.unwrap();
    // A scheduler that gave a gang up on its first try looks at it again after a pause of its own.
    wait_for(&format!("job {gang} to run"), 2 * PATIENCE, async || {
        let status = jobs.get(gang).await?.status.unwrap_or_default();
        anyhow::ensure!(
            status.phase == Some(Phase::Running),
            "{}",
            serde_yaml::to_string(&status)?
        );
        Ok(())
    })
    .await
    .unwrap();
    namespace.complete_pod(&format!("{gang}-actor-0")).await.unwrap();
    wait_for(&format!("job {gang} to delete itself"), PATIENCE, async || {
        match jobs.get_opt(gang).await? {
            Some(job) => anyhow::bail!("{}", serde_yaml::to_string(&job.status)?),
            None => Ok(()),
        }
    })
    .await
    .unwrap();
}

/// What the account asked for.
async fn asked(namespace: &Namespace<'_>) -> Vec<AuditEvent> {
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
    events
}

/// What of that it was not allowed.
fn forbidden(asked: &[AuditEvent]) -> Vec<String> {
    let denied = asked
        .iter()
        .filter(|event| event.response_status.as_ref().is_some_and(|status| status.code == 403));
    let words = denied.map(|event| format!("{} {}", event.verb, event.request_uri));
    words.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_charts_rights_jobs_live_their_lives_whatever_their_gang_and_nothing_is_forbidden() {
    let cluster = cluster().await;
    for listed in [false, true] {
        let namespace = cluster.namespace("rights").await.unwrap();
        namespace.gpu_nodes(2, 8).await.unwrap();
        queue(&namespace).await;
        let watched = format!("watchNamespaces={{{}}}", namespace.name);
        let further = ["--set", watched.as_str()];
        install(&namespace, if listed { &further } else { &[] }).await;
        let namespaces = if listed {
            vec![namespace.name.clone()]
        } else {
            Vec::new()
        };
        let operator = start(&namespace, namespaces).await;
        for gang in GANGS {
            live(&namespace, gang).await;
        }
        operator.stop().await.unwrap();
        let asked = asked(&namespace).await;
        let forbidden = forbidden(&asked);
        assert!(forbidden.is_empty(), "listed namespaces: {listed}: {forbidden:#?}");
        let done = asked.iter().map(|event| format!("{} {}", event.verb, event.resource()));
        let done: BTreeSet<String> = done.collect();
        for deed in DEEDS {
            assert!(
                done.contains(deed),
                "listed namespaces: {listed}: {deed} is not in {done:#?}"
            );
        }
    }
}
