//! The dashboards before a Prometheus that has scraped a whole installation: every panel shows something.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Value, json};

use crate::dashboards::filled;
use crate::metrics::{Exported, exported};
use crate::monitoring::{dashboards, list, panels, text};
use crate::tools::{repository, run};

/// The stages that the worker says it has.
fn stages() -> Vec<String> {
    let listed = fs::read_to_string(repository().join("configs/prometheus/worker-metrics.md")).unwrap();
    let line = listed
        .lines()
        .find_map(|line| line.strip_prefix("The label `stage` is one of "))
        .unwrap()
        .to_owned();
    line.trim_end_matches('.')
        .split(", ")
        .map(|stage| stage.trim_matches('`').to_owned())
        .collect()
}

/// The phases that the definition knows.
fn phases() -> Vec<String> {
    let crd = serde_json::to_value(ppo_crds::crd().unwrap()).unwrap();
    let path = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/phase/enum";
    let phases = crd.pointer(path).and_then(Value::as_array).unwrap();
    phases.iter().map(|phase| phase.as_str().unwrap().to_owned()).collect()
}

/// What a label can be, where our code says so; empty where anything goes.
pub fn known_values(label: &str) -> Vec<String> {
    let words = |words: &str| words.split(' ').map(str::to_owned).collect();
    match label {
        "stage" => stages(),
        "phase" => phases(),
        "role" => words("rollout actor reference reward"),
        "state" => words("desired ready"),
        "result" => words("ok error"),
        _ => Vec::new(),
    }
}

/// What a label is in the made-up series.
fn values(label: &str) -> Vec<String> {
    let words = |words: &str| words.split(' ').map(str::to_owned).collect();
    match label {
        "pod" => words("one two"),
        "le" => words("0.1 1 10 100 +Inf"),
        _ if known_values(label).is_empty() => words("some"),
        _ => known_values(label),
    }
}

/// Every combination of the labels' values.
fn combinations(labels: &[&str]) -> Vec<BTreeMap<String, String>> {
    let mut all = vec![BTreeMap::new()];
    for label in labels {
        let with = |value: &String| {
            let add = |one: &BTreeMap<String, String>| {
                let mut one = one.clone();
                one.insert((*label).to_owned(), value.clone());
                one
            };
            all.iter().map(add).collect::<Vec<_>>()
        };
        all = values(label).iter().flat_map(with).collect();
    }
    all
}

/// The series of a metric, as a scrape of two pods gives them. Gauges rest, the others rise.
fn series(name: &str, metric: &Exported) -> Vec<Value> {
    let mut labels: Vec<&str> = metric.labels.iter().map(String::as_str).collect();
    labels.extend(
        ["namespace", "pod"]
            .iter()
            .filter(|label| !metric.labels.contains(**label)),
    );
    if !name.starts_with("ppo_operator_") && !metric.labels.contains("job") {
        labels.push("job");
    }
    let rise = if metric.kind == "gauge" { 0 } else { 1 };
    let parts: &[&str] = if metric.kind == "histogram" {
        &["_bucket", "_sum", "_count"]
    } else {
        &[""]
    };
    let mut found = Vec::new();
    for part in parts {
        let mut labels = labels.clone();
        labels.extend((*part == "_bucket").then_some("le"));
        for mut one in combinations(&labels) {
            one.insert("__name__".to_owned(), format!("{name}{part}"));
            // Whose pods they are the chart's monitor adds.
            if name.starts_with("vllm:") {
                one.insert("role".to_owned(), "rollout".to_owned());
            }
            found.push(json!({"labels": one, "rise": rise}));
        }
    }
    found
}

/// What each expression comes to over the series: the error, or the number of samples.
fn evaluated(series: &[Value], expressions: &[String]) -> Vec<Value> {
    let mut input = vec![serde_json::to_string(series).unwrap()];
    input.extend(expressions.iter().map(|one| serde_json::to_string(one).unwrap()));
    let answers = run("promql-evaluate", &[], &(input.join("\n") + "\n")).unless_it_failed();
    let answers: Vec<Value> = answers
        .lines()
        .map(|answer| serde_json::from_str(answer).unwrap())
        .collect();
    assert_eq!(answers.len(), expressions.len());
    answers
}

#[test]
fn every_panel_shows_something_of_a_job_that_runs() {
    let series: Vec<Value> = exported()
        .iter()
        .flat_map(|(name, metric)| series(name, metric))
        .collect();
    let mut expressions = Vec::new();
    let mut places = Vec::new();
    for (file, dashboard) in dashboards() {
        for panel in panels(&dashboard) {
            for target in list(panel, "/targets") {
                places.push(format!("{file}, panel {}: {}", panel["title"], text(target, "expr")));
                expressions.push(filled(text(target, "expr"), &dashboard));
            }
        }
    }
    for (place, answer) in places.iter().zip(evaluated(&series, &expressions)) {
        assert!(answer["error"].is_null() && answer["samples"] != 0, "{place}: {answer}");
    }
}

#[test]
fn the_reference_of_a_job_without_reference_pods_is_work_of_its_actor() {
    let dashboards = dashboards();
    let (_, dashboard) = dashboards.iter().find(|(file, _)| file == "gpu-time.json").unwrap();
    let panels = panels(dashboard);
    let busy = panels.iter().find(|panel| panel["title"] == "Busy share of each role");
    let targets = list(busy.unwrap(), "/targets");
    let share = |role: &str| {
        let target = targets.iter().find(|target| target["legendFormat"] == role).unwrap();
        filled(text(target, "expr"), dashboard)
    };
    // Under way for half of each minute, and for a quarter.
    let stages = [("reference", 30), ("update_actor", 15)].map(|(stage, rise)| {
        let labels = json!({"__name__": "ppo_stage_seconds_sum", "namespace": "some", "job": "some", "stage": stage});
        json!({"labels": labels, "rise": rise})
    });
    let pods = json!({"rise": 0, "labels": {"__name__": "ppojob_role_pods", "namespace": "some", "job": "some",
        "role": "reference", "state": "desired"}});
    let (actor, reference) = (share("actor"), share("reference"));
    let without = [format!("({actor}) > 0.7"), reference.clone()];
    let with = [format!("({actor}) < 0.3"), format!("({reference}) > 0.4")];
    let samples = |series: &[Value], expressions: &[String]| {
        let counted = |answer: &Value| {
            assert!(answer["error"].is_null(), "{answer}");
            answer["samples"].clone()
        };
        evaluated(series, expressions).iter().map(counted).collect::<Vec<_>>()
    };
    assert_eq!(samples(&stages, &without), [1, 0]);
    let stages_and_pods = [stages.as_slice(), &[pods]].concat();
    assert_eq!(samples(&stages_and_pods, &with), [1, 1]);
}

#[test]
fn a_panel_that_has_words_for_nothing_shows_them_where_nothing_happens() {
    // Counters rest: an operator without jobs, a job before its first step. 0 / 0 would be shown as NaN.
    let mut resting: Vec<Value> = exported()
        .iter()
        .flat_map(|(name, metric)| series(name, metric))
        .collect();
    for one in &mut resting {
        one["rise"] = json!(0);
    }
    let (mut places, mut expressions) = (Vec::new(), Vec::new());
    for (file, dashboard) in dashboards() {
        for panel in panels(&dashboard) {
            let words = panel.pointer("/fieldConfig/defaults/noValue");
            for target in list(panel, "/targets").iter().filter(|_| words.is_some()) {
                places.push(format!("{file}, panel {}", panel["title"]));
                expressions.push(filled(text(target, "expr"), &dashboard));
            }
        }
    }
    assert!(!places.is_empty());
    for (place, answer) in places.iter().zip(evaluated(&resting, &expressions)) {
        assert!(answer["error"].is_null() && answer["samples"] == 0, "{place}: {answer}");
    }
}
