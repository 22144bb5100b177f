//! What our binaries export, and what an expression in PromQL asks for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde::Deserialize;

use crate::evaluation::known_values;
use crate::monitoring::{alerts, metric_lists};
use crate::tools::{repository, run};

/// Labels that Prometheus adds to what it scrapes, by the chart's ServiceMonitor and PodMonitor.
const SCRAPED: [&str; 8] = [
    "namespace",
    "pod",
    "container",
    "instance",
    "job",
    "role",
    "index",
    "le",
];

/// A metric as the lists in `configs/prometheus` have it.
pub struct Exported {
    pub kind: String,
    pub labels: BTreeSet<String>,
}

/// By name, every metric of operator and worker.
pub fn exported() -> BTreeMap<String, Exported> {
    let mut all = BTreeMap::new();
    for list in metric_lists() {
        for row in list
            .lines()
            .filter(|line| line.starts_with("| ppo") || line.starts_with("| vllm:"))
        {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let labels = cells[3]
                .split(", ")
                .filter(|label| !label.is_empty())
                .map(str::to_owned)
                .collect();
            let kind = cells[2].to_owned();
            assert!(
                all.insert(cells[1].to_owned(), Exported { kind, labels }).is_none(),
                "{row} is listed twice"
            );
        }
    }
    all
}

/// What `promql-selectors` of `tests/cluster/chart-tools` says of an expression.
#[derive(Deserialize)]
struct Asked {
    #[serde(default)]
    error: String,
    selectors: Vec<Selector>,
    grouping: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Selector {
    metric: String,
    labels: BTreeMap<String, Vec<String>>,
}

/// Every expression (with where it stands) parses and asks for metrics and labels that exist; returns the metrics.
pub fn check(expressions: &[(String, String)]) -> BTreeSet<String> {
    let exported = exported();
    let lines: Vec<String> = expressions
        .iter()
        .map(|(_, text)| serde_json::to_string(text).unwrap())
        .collect();
    let answers = run("promql-selectors", &[], &(lines.join("\n") + "\n")).unless_it_failed();
    let answers: Vec<Asked> = answers
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(answers.len(), expressions.len());

    let mut named = BTreeSet::new();
    for ((place, text), asked) in expressions.iter().zip(answers) {
        assert!(asked.error.is_empty(), "{place}: {}\n{text}", asked.error);
        assert!(!asked.selectors.is_empty(), "{place} asks for no metric\n{text}");
        let mut offered: BTreeSet<&str> = SCRAPED.into();
        for selector in asked.selectors.iter().filter(|selector| !is_alert(selector)) {
            let (name, metric) = find(&exported, &selector.metric)
                .unwrap_or_else(|| panic!("{place}: nothing exports {:?}\n{text}", selector.metric));
            let has = |label: &str| SCRAPED.contains(&label) || metric.labels.contains(label);
            for (label, wanted) in &selector.labels {
                assert!(has(label), "{place}: {name} has no label {label}\n{text}");
                let known = known_values(label);
                let unknown = wanted.iter().find(|value| !known.is_empty() && !known.contains(value));
                assert_eq!(unknown, None, "{place}: {label} is never that\n{text}");
            }
            offered.extend(metric.labels.iter().map(String::as_str));
            named.insert(name.to_owned());
        }
        for label in &asked.grouping {
            assert!(
                offered.contains(label.as_str()),
                "{place}: no metric here has the label {label}\n{text}"
            );
        }
    }
    named
}

/// Whether a selector asks Prometheus itself for an alert of ours: one that looks at whether it fires.
fn is_alert(selector: &Selector) -> bool {
    let named = selector.labels.get("alertname").into_iter().flatten();
    let is_ours = |name: &String| alerts().iter().any(|(_, alert)| alert["alert"] == **name);
    selector.metric == "ALERTS" && named.clone().count() == 1 && named.clone().all(is_ours)
}

/// The exported metric that a series of that name belongs to: a histogram has three.
fn find<'a>(exported: &'a BTreeMap<String, Exported>, series: &'a str) -> Option<(&'a str, &'a Exported)> {
    let histogram = ["_bucket", "_sum", "_count"]
        .into_iter()
        .find_map(|end| series.strip_suffix(end));
    let histogram = histogram.filter(|name| exported.get(*name).is_some_and(|metric| metric.kind == "histogram"));
    let (name, metric) = exported.get_key_value(histogram.unwrap_or(series))?;
    // A histogram's bare name is no series.
    (histogram.is_some() || metric.kind != "histogram").then_some((name.as_str(), metric))
}

#[test]
#[should_panic(expected = "nothing exports \"ppo_rewards\"")]
fn a_metric_that_nobody_exports_is_seen() {
    check(&[("here".into(), "avg by (job) (ppo_rewards)".into())]);
}

#[test]
#[should_panic(expected = "nothing exports \"ALERTS\"")]
fn an_alert_that_is_none_of_ours_is_seen() {
    check(&[("here".into(), "ALERTS{alertname=\"PpoJobKlRunsAway\"}".into())]);
}

#[test]
#[should_panic(expected = "ppojob_phase has no label stage")]
fn a_label_that_a_metric_has_not_is_seen() {
    check(&[("here".into(), "ppojob_phase{stage=\"generate\"}".into())]);
}

#[test]
#[should_panic(expected = "stage is never that")]
fn a_stage_that_no_step_has_is_seen() {
    check(&[("here".into(), "ppo_stage_seconds_sum{stage=~\"generate|train\"}".into())]);
}

#[test]
#[should_panic(expected = "no metric here has the label phase")]
fn a_grouping_by_a_label_that_is_not_there_is_seen() {
    check(&[("here".into(), "sum by (phase) (ppo_stage_seconds_sum)".into())]);
}

#[test]
#[should_panic(expected = "here: ")]
fn an_expression_that_does_not_parse_is_seen() {
    check(&[("here".into(), "sum by (job (ppo_reward)".into())]);
}

const HEAD: &str = "\
# Metrics of the operator

Generated from `operator/src/metrics.rs`: `UPDATE_EXPECT=1 cargo test -p ppo-tests --test chart` writes this file.

`ppo_operator_*` are of the operator itself; the chart's ServiceMonitor adds the labels `namespace`, `pod` and `container`. `ppojob_*` are of one job,
carry its `namespace` and `job`, and vanish with it.

| metric | type | labels | |
|---|---|---|---|
";

#[test]
fn the_list_of_the_operators_metrics_is_what_it_exports() {
    let mut wanted = HEAD.to_owned();
    for metric in ppo_operator::metrics::Metrics::new().unwrap().described() {
        let labels = metric.labels.join(", ");
        wanted += &format!("| {} | {} | {labels} | {}. |\n", metric.name, metric.kind, metric.help);
    }
    let path = repository().join("configs/prometheus/operator-metrics.md");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(&path, &wanted).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap();
    assert_eq!(found, wanted, "run `make crds`");
}
