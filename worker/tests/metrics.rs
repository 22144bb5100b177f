//! The list of metrics that dashboards and alerts may name: up to date with what the worker really exports.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use ppo_worker::engine::Stats;
use ppo_worker::telemetry::{EvaluationReport, Exposition, Metric, SetReport, Stage, StepReport};

/// `/metrics` of a run in which every number has a value.
fn exposition() -> String {
    let exposition = Exposition::new("run").unwrap();
    let mut step = StepReport {
        step: 1,
        ..StepReport::default()
    };
    for metric in Metric::ALL {
        step.set(*metric, 1.0);
    }
    step.extra = BTreeMap::from([("reward/rule".to_owned(), 1.0), ("latency".to_owned(), 1.0)]);
    step.stages = Stage::ALL.map(|stage| (stage, Duration::from_secs(1))).to_vec();
    exposition.step(&step).unwrap();
    exposition.evaluation(&evaluation()).unwrap();
    exposition.engine("", &Stats::default()).unwrap();
    exposition.requests("policy").unwrap();
    exposition.text().unwrap()
}

/// With several samples a prompt, and a test set.
fn evaluation() -> EvaluationReport {
    let of_set = SetReport {
        pass_at_n: Some(1.0),
        ..SetReport::default()
    };
    EvaluationReport {
        step: 1,
        prompts: 1,
        n_samples_per_prompt: 2,
        score: 1.0,
        pass_rate: 1.0,
        pass_at_n: Some(1.0),
        response_length: 1.0,
        seconds: 1.0,
        sets: BTreeMap::from([("set".to_owned(), of_set)]),
    }
}

/// Names of the labels of a sample line; a histogram's own `le` is not one of them.
fn labels(line: &str) -> BTreeSet<&str> {
    let inside = line.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    let pairs = inside.map(|(inside, _)| inside.split(',')).into_iter().flatten();
    pairs
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, _)| name)
        .filter(|name| *name != "le")
        .collect()
}

fn table() -> String {
    let text = exposition();
    let mut help = BTreeMap::new();
    let mut kinds = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, words)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            help.insert(name, words);
        }
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            kinds.insert(name, kind);
        }
    }
    let mut table = "# Metrics of a job's pods\n\n\
        Generated from worker/src/telemetry by `make crds`. Do not edit. The chart's PodMonitor adds the labels `namespace`, `job`, `role`,\n\
        `index`, `pod` and `container`.\n\n"
        .to_owned();
    let stages = Stage::ALL.map(|stage| format!("`{}`", stage.name()));
    table += &format!("The label `stage` is one of {}.\n\n", stages.join(", "));
    table += "| metric | type | labels | |\n|---|---|---|---|\n";
    for (name, kind) in kinds {
        let own = |line: &&str| {
            let rest = line.strip_prefix(name).unwrap_or("x");
            rest.starts_with(['{', ' ']) || kind == "histogram" && rest.starts_with("_sum")
        };
        let labels: BTreeSet<&str> = text.lines().filter(own).flat_map(labels).collect();
        let labels: Vec<&str> = labels.into_iter().collect();
        table += &format!("| {name} | {kind} | {} | {} |\n", labels.join(", "), help[name]);
    }
    table
}

#[test]
fn the_list_of_metrics_is_what_the_worker_exports() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/prometheus/worker-metrics.md");
    let exported = table();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, &exported).unwrap();
    }
    let listed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        listed == exported,
        "configs/prometheus/worker-metrics.md is stale: run `make crds`, and see that dashboards and alerts still name what is there"
    );
}
