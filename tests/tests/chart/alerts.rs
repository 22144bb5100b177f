//! The alerts are sound, have cases, and reach a cluster whole.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::metrics::check;
use crate::monitoring::{alerts, list, text};
use crate::rendered::{objects, only, template};
use crate::tools::{files, repository, run};

fn folder() -> PathBuf {
    repository().join("configs/prometheus")
}

fn paths(folder: PathBuf) -> Vec<String> {
    files(&folder, "yaml")
        .iter()
        .map(|path| path.display().to_string())
        .collect()
}

fn names(alerts: &[(String, Value)]) -> BTreeSet<String> {
    alerts
        .iter()
        .map(|(_, alert)| alert["alert"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn promtool_takes_the_rules_and_their_cases_hold() {
    let rules = paths(folder());
    let mut args = vec!["check", "rules", "--lint-fatal"];
    args.extend(rules.iter().map(String::as_str));
    run("promtool", &args, "").unless_it_failed();

    let cases = paths(folder().join("tests"));
    let mut args = vec!["test", "rules"];
    args.extend(cases.iter().map(String::as_str));
    run("promtool", &args, "").unless_it_failed();
}

/// The alerts that a test expects to fire at some time.
fn fired(test: &Value) -> Vec<String> {
    let told = list(test, "/alert_rule_test").iter();
    let told = told.filter(|case| !list(case, "/exp_alerts").is_empty());
    let asked = list(test, "/promql_expr_test").iter();
    let samples = asked.flat_map(|case| list(case, "/exp_samples"));
    let firing = samples.filter_map(|sample| {
        let labels = text(sample, "labels").strip_prefix("ALERTS{")?;
        let (_, rest) = labels.split_once("alertname=\"")?;
        labels
            .contains("alertstate=\"firing\"")
            .then(|| rest.split('"').next())?
    });
    told.map(|case| text(case, "alertname"))
        .chain(firing)
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_alert_has_a_case_in_which_it_fires() {
    let mut fires = BTreeSet::new();
    for path in paths(folder().join("tests")) {
        let cases: Value = serde_yaml::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        list(&cases, "/tests").iter().for_each(|test| fires.extend(fired(test)));
    }
    for alert in names(&alerts()) {
        assert!(
            fires.contains(&alert),
            "no case in configs/prometheus/tests expects {alert}"
        );
    }
}

#[test]
fn every_alert_asks_for_metrics_and_labels_that_exist() {
    let place = |file: &String, alert: &Value| format!("{file}, {}", alert["alert"]);
    let expressions: Vec<(String, String)> = alerts()
        .iter()
        .map(|(file, alert)| (place(file, alert), alert["expr"].as_str().unwrap().to_owned()))
        .collect();
    check(&expressions);
}

#[test]
fn every_alert_says_how_bad_it_is_what_is_wrong_and_what_to_do() {
    for (file, alert) in alerts() {
        let at = |pointer: &str| alert.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        assert!(at("/alert").starts_with("Ppo"), "{file}: {alert}");
        assert!(
            ["info", "warning", "critical"].contains(&at("/labels/severity")),
            "{file}: {alert}"
        );
        let (summary, description) = (at("/annotations/summary"), at("/annotations/description"));
        assert!(summary.len() > 20 && description.len() > 60, "{file}: {alert}");
        let place = summary.contains("$labels.namespace");
        assert!(place, "{file}: the summary of {} does not say where", at("/alert"));
    }
}

#[test]
fn every_alert_leads_to_a_section_of_the_docs_that_says_what_to_do() {
    for (file, alert) in alerts() {
        let link = alert.pointer("/annotations/runbook_url").and_then(Value::as_str);
        let (page, anchor) = link.unwrap_or_default().split_once('#').unwrap_or_default();
        assert!(page.starts_with("docs/"), "{file}: {alert}");
        let page = fs::read_to_string(repository().join(page)).unwrap();
        // The anchor of a heading that is one word.
        let leads_there = |section: &&str| {
            let heading = section.lines().next().unwrap_or_default();
            heading.to_lowercase() == anchor && alert["alert"] == heading
        };
        let section = page.split("\n### ").find(leads_there);
        let section = section.unwrap_or_else(|| panic!("{file}: {link:?} names no section"));
        for part in ["\n* Means: ", "\n* Look at: ", "\n* Do: ", "`kubectl ppo "] {
            assert!(section.contains(part), "{part:?} is not in {section}");
        }
    }
}

#[test]
fn the_chart_puts_before_runbooks_where_the_repository_is_read() {
    let base = "https://git.example.com/ml/ppo-operator/";
    let set = format!("monitoring.rules.runbookBase={base}");
    let rendered = objects(&template(&["--set", "monitoring.rules.enabled=true", "--set", &set]));
    let rule = only(&rendered, "PrometheusRule");
    let groups = rule["spec"]["groups"].as_array().unwrap().iter();
    let rules: Vec<&Value> = groups.flat_map(|group| group["rules"].as_array().unwrap()).collect();
    assert_eq!(rules.len(), alerts().len());
    for alert in rules {
        let link = alert["annotations"]["runbook_url"].as_str().unwrap();
        let rest = link.strip_prefix(base).unwrap_or_else(|| panic!("{link}"));
        assert!(rest.starts_with("docs/"), "{link}");
    }
}

#[test]
fn only_alerts_that_there_are_can_be_turned_off() {
    let schema = fs::read_to_string(repository().join("charts/ppo-operator/values.schema.json")).unwrap();
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let known = schema.pointer("/properties/monitoring/properties/rules/properties/disabled/items/enum");
    let known: Vec<&str> = known
        .unwrap()
        .as_array()
        .unwrap()
        .iter()
        .flat_map(Value::as_str)
        .collect();
    assert_eq!(known, names(&alerts()).iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn the_chart_gives_prometheus_every_alert_but_those_turned_off() {
    let flags = [
        "--set",
        "monitoring.rules.enabled=true",
        "--set",
        "monitoring.rules.disabled={PpoJobFailed}",
        "--set",
        "monitoring.rules.alertLabels.team=ml",
    ];
    let rendered = objects(&template(&flags));
    let rule = only(&rendered, "PrometheusRule");
    let groups = rule["spec"]["groups"].as_array().unwrap();
    let rendered: Vec<&Value> = groups
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap())
        .collect();

    let ours = alerts();
    let mut wanted = names(&ours);
    assert!(wanted.remove("PpoJobFailed"));
    let found = rendered.iter().map(|alert| alert["alert"].as_str().unwrap().to_owned());
    assert_eq!(found.collect::<BTreeSet<_>>(), wanted);
    for alert in rendered {
        let (_, original) = ours
            .iter()
            .find(|(_, original)| original["alert"] == alert["alert"])
            .unwrap();
        let mut original = original.clone();
        original["labels"]["team"] = "ml".into();
        assert_eq!(alert, &original);
    }
}
