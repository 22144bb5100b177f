//! How the operator stands many jobs: time until all pods exist and all jobs run, memory, CPU, requests. One JSON line per
//! setting on standard output; `make bench` puts them beside the peers.
//!
//! `cargo run --release -p ppo-tests --example operator_scale -- JOBS ENGINES [JOBS ENGINES ...]`

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt};
use ppo_crds::PpoJob;
use ppo_crds::status::Phase;
use ppo_tests::{AuditEvent, ControlPlane, Namespace, Options, wait_for};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

/// For everything to run.
const DEADLINE: Duration = Duration::from_secs(600);
/// For which the operator is watched at rest.
const REST: Duration = Duration::from_secs(60);
/// For which it is watched after a small change.
const AFTERMATH: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> Result<()> {
    let numbers: Vec<usize> = std::env::args()
        .skip(1)
        .map(|text| text.parse())
        .collect::<Result<_, _>>()?;
    anyhow::ensure!(
        !numbers.is_empty() && numbers.len().is_multiple_of(2),
        "give pairs: JOBS ENGINES"
    );
    for pair in numbers.chunks(2) {
        println!("{}", measure(pair[0], pair[1]).await?);
    }
    Ok(())
}

async fn measure(jobs: usize, engines: usize) -> Result<Value> {
    let cluster = ControlPlane::start(Options::audited()).await?;
    let namespace = cluster.namespace("scale").await?;
    let pods = engines + 1;
    // A fake node holds 100 pods of one GPU.
    namespace.gpu_nodes((jobs * pods).div_ceil(100), 100).await?;
    let operator = Operator::start(&cluster)?;
    operator.wait_until_ready().await?;
    let base = operator.usage()?;
    let began = Instant::now();
    create(&namespace, jobs, engines).await?;
    let all_pods = Box::pin(until_pods_exist(&namespace.client, &namespace.name, jobs * pods, began));
    let all_run = Box::pin(until_all_run(&namespace, jobs, began));
    let (pods_exist, running) = tokio::try_join!(all_pods, all_run)?;
    let busy = operator.usage()?;
    let (events, position) = cluster.audit_events(0)?;
    let requests = AuditEvent::count(&events, "ppo-operator");
    let by_kind: BTreeMap<String, usize> = requests
        .0
        .iter()
        .map(|((verb, resource), count)| (format!("{verb} {resource}"), *count))
        .collect();

    tokio::time::sleep(AFTERMATH).await;
    let (_, position) = cluster.audit_events(position)?;
    tokio::time::sleep(REST).await;
    let (events, position) = cluster.audit_events(position)?;
    let at_rest = besides_leases(&events);
    touch(&namespace).await?;
    tokio::time::sleep(AFTERMATH).await;
    let (events, position) = cluster.audit_events(position)?;
    let touched = besides_leases(&events);
    let api: Api<PpoJob> = namespace.api();
    api.delete("job-1", &DeleteParams::background()).await?;
    tokio::time::sleep(AFTERMATH).await;
    let (events, _) = cluster.audit_events(position)?;
    let deleted = besides_leases(&events);
    let total = jobs * pods;
    let per_pod = |value: f64| value / total as f64;
    Ok(json!({
        "jobs": jobs, "pods_per_job": pods,
        "seconds_until_pods_exist": pods_exist, "seconds_until_all_run": running,
        "pods_per_second": total as f64 / pods_exist,
        "base_mebibytes": base.resident / 1024.0, "mebibytes": busy.resident / 1024.0,
        "kibibytes_per_pod": per_pod(busy.resident - base.resident),
        "cpu_milliseconds_per_pod": per_pod((busy.cpu - base.cpu) * 1000.0),
        "writes_per_job": requests.writes() as f64 / jobs as f64, "requests": by_kind,
        "requests_at_rest_60_s": at_rest, "requests_after_a_touch": touched, "requests_after_a_deletion": deleted,
    }))
}

/// Requests of the operator but for its lease and the watches that are renewed.
fn besides_leases(events: &[AuditEvent]) -> usize {
    let counted = AuditEvent::count(events, "ppo-operator");
    let other = |verb: &str, resource: &str| verb != "watch" && resource != "leases";
    counted
        .0
        .iter()
        .filter(|((verb, resource), _)| other(verb, resource))
        .map(|(_, count)| count)
        .sum()
}

struct Operator {
    process: Child,
    address: String,
}

/// Kibibytes resident and seconds of CPU.
struct Usage {
    resident: f64,
    cpu: f64,
}

impl Operator {
    fn start(cluster: &ControlPlane) -> Result<Self> {
        let program = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/release/ppo-operator");
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let address = format!("127.0.0.1:{port}");
        let process = Command::new(&program)
            .args(["run", "--http-address", &address])
            .env("KUBECONFIG", cluster.kubeconfig())
            .env("RUST_LOG", "warn")
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| {
                format!(
                    "{} does not start: cargo build --release -p ppo-operator",
                    program.display()
                )
            })?;
        Ok(Self { process, address })
    }

    async fn wait_until_ready(&self) -> Result<()> {
        let url = format!("http://{}/metrics", self.address);
        wait_for("the operator to lead with complete caches", DEADLINE, async || {
            let text = Command::new("curl").args(["-sf", &url]).output().await?.stdout;
            let text = String::from_utf8_lossy(&text).into_owned();
            anyhow::ensure!(text.contains("ppo_operator_is_leader 1"), "not yet");
            Ok(())
        })
        .await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        Ok(())
    }

    fn usage(&self) -> Result<Usage> {
        let pid = self.process.id().context("the operator has ended")?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .context("no VmRSS")?;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        // Fields 14 and 15 (utime, stime) in hundredths, counted after the parenthesised name.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks: f64 = [11, 12]
            .iter()
            .filter_map(|at| fields.get(*at)?.parse::<f64>().ok())
            .sum();
        Ok(Usage {
            resident: line.split_whitespace().next().unwrap_or_default().parse()?,
            cpu: ticks / 100.0,
        })
    }
}

async fn create(namespace: &Namespace<'_>, jobs: usize, engines: usize) -> Result<()> {
    let api: Api<PpoJob> = namespace.api();
    stream::iter(0..jobs)
        .map(|index| {
            let api = api.clone();
            async move {
                let job: PpoJob = serde_json::from_value(json!({
                    "metadata": {"name": format!("job-{index}")},
                    "spec": {
                        "model": {"policy": {"path": "/models/policy"}},
                        "prompts": {"source": {"path": "/data/train.jsonl"}},
                        "algorithm": {"kl": {"coef": 0}},
                        "batch": {"rolloutBatchSize": engines},
                        "roles": {"rollout": {"replicas": engines}, "reward": {"rules": [{"json": {}}]}},
                        "scheduling": {"gang": "none"},
                    },
                }))?;
                api.create(&PostParams::default(), &job).await?;
                anyhow::Ok(())
            }
        })
        .buffer_unordered(16)
        .try_collect()
        .await
}

async fn until_pods_exist(client: &Client, namespace: &str, count: usize, began: Instant) -> Result<f64> {
    let pods: Api<PartialObjectMeta<Pod>> = Api::namespaced(client.clone(), namespace);
    wait_for("all pods to exist", DEADLINE, async || {
        let listed = pods.list(&ListParams::default().match_any()).await?.items.len();
        anyhow::ensure!(listed >= count, "{listed} of {count}");
        Ok(began.elapsed().as_secs_f64())
    })
    .await
}

async fn until_all_run(namespace: &Namespace<'_>, count: usize, began: Instant) -> Result<f64> {
    let jobs: Api<PpoJob> = namespace.api();
    wait_for("all jobs to run", DEADLINE, async || {
        let listed = jobs.list(&ListParams::default().match_any()).await?.items;
        let running = |job: &&PpoJob| {
            job.status
                .as_ref()
                .is_some_and(|status| status.phase == Some(Phase::Running))
        };
        let running = listed.iter().filter(running).count();
        anyhow::ensure!(
            running >= count,
            "{running} of {count}; one: {:?}",
            listed.first().map(|job| job.name_any())
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
        Ok(began.elapsed().as_secs_f64())
    })
    .await
}

async fn touch(namespace: &Namespace<'_>) -> Result<()> {
    let jobs: Api<PpoJob> = namespace.api();
    let patch = json!({"metadata": {"annotations": {"note": "touched"}}});
    jobs.patch("job-0", &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    Ok(())
}
