//! Who is scraped, under which labels.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Result, ensure};
use ppo_tests::Prometheus;
use serde_json::{Value, json};

use crate::job::{Job, NAME};
use crate::monitoring::{list, text};
use crate::worker::repository;
use crate::world::OPERATOR_NAMESPACE;

/// The scrapes of docs/monitoring.md.
const DOCUMENTED: [&str; 2] = ["ppo-jobs", "ppo-operator"];

/// A pod's port that is scraped.
pub struct Target {
    pub namespace: String,
    pub pod: String,
    pub port: u16,
}

type Labels = BTreeMap<String, String>;

fn labels(words: &[(&str, &str)]) -> Labels {
    words
        .iter()
        .map(|(label, value)| ((*label).to_owned(), (*value).to_owned()))
        .collect()
}

/// What dashboards and alerts select a job's pods by.
fn of_job(namespace: &str, role: &str, index: &str) -> Labels {
    let pod = format!("{NAME}-{role}-{index}");
    labels(&[
        ("namespace", namespace),
        ("job", NAME),
        ("role", role),
        ("index", index),
        ("pod", &pod),
        ("instance", &pod),
        ("container", "worker"),
    ])
}

/// The labels among those.
fn chosen(target: &Value) -> Labels {
    let wanted = ["namespace", "job", "role", "index", "pod", "instance", "container"];
    let found = wanted
        .iter()
        .filter_map(|label| Some((*label, target["labels"][label].as_str()?)));
    labels(&found.collect::<Vec<_>>())
}

/// What docs/monitoring.md gives to whoever has no prometheus-operator; what it scrapes is not kept here.
pub fn documented() -> Value {
    let page = fs::read_to_string(repository().join("docs/monitoring.md")).unwrap();
    let (_, section) = page.split_once("### Without prometheus-operator").unwrap();
    let (_, block) = section.split_once("```yaml\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let mut configuration: Value = serde_yaml::from_str(block).unwrap();
    let scrapes = configuration["scrape_configs"].as_array_mut().unwrap();
    assert_eq!(scrapes.len(), DOCUMENTED.len());
    for scrape in scrapes {
        scrape["scrape_interval"] = json!("1s");
        scrape["metric_relabel_configs"] = json!([{"action": "drop"}]);
    }
    configuration["scrape_configs"].take()
}

/// Exactly the pods of the job, each under its labels, and both replicas of the operator are up: by the chart's monitors and by
/// the page for those who have none.
pub async fn check(prometheus: &Prometheus<'_>, job: &Job<'_>) -> Vec<Target> {
    let namespace = job.namespace.name.as_str();
    let pods = [
        ("actor", "0"),
        ("reference", "0"),
        ("reward", "0"),
        ("rollout", "0"),
        ("rollout", "1"),
    ];
    let wanted: BTreeSet<Labels> = pods.map(|(role, index)| of_job(namespace, role, index)).into();
    job.wait("its pods and the operator to be scraped", async || {
        let data = prometheus.get("api/v1/targets", &[("state", "active")]).await?;
        let all = list(&data, "/activeTargets").iter();
        let ours = all.filter(|target| [namespace, OPERATOR_NAMESPACE].contains(&text(&target["labels"], "namespace")));
        let is_documented = |target: &&Value| DOCUMENTED.contains(&text(target, "scrapePool"));
        let (documented, monitored): (Vec<&Value>, Vec<&Value>) = ours.partition(is_documented);
        for targets in [&documented, &monitored] {
            for target in targets {
                ensure!(target["health"] == "up", "{target:#}");
            }
            let (of_job, of_operator): (Vec<&Value>, Vec<&Value>) = targets
                .iter()
                .partition(|target| target["labels"]["namespace"] == namespace);
            ensure!(of_job.len() == wanted.len(), "{of_job:#?}");
            let found: BTreeSet<Labels> = of_job.into_iter().map(chosen).collect();
            ensure!(found == wanted, "{found:#?}");
            let replicas: BTreeSet<&str> = of_operator
                .iter()
                .map(|target| text(&target["labels"], "pod"))
                .collect();
            ensure!(replicas.len() == 2 && of_operator.len() == 2, "{of_operator:#?}");
        }
        monitored.into_iter().map(read).collect()
    })
    .await
}

fn read(target: &Value) -> Result<Target> {
    let address = text(&target["discoveredLabels"], "__address__");
    let (_, port) = address.rsplit_once(':').unwrap_or_default();
    Ok(Target {
        namespace: text(&target["labels"], "namespace").to_owned(),
        pod: text(&target["labels"], "pod").to_owned(),
        port: port.parse()?,
    })
}
