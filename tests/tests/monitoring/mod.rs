//! Dashboards and alerts as Grafana and Prometheus read them.

#![allow(dead_code, reason = "each test file uses its part")]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|found| found == ending));
    paths.sort();
    paths
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

/// Every dashboard with the file it stands in.
pub fn dashboards() -> Vec<(String, Value)> {
    let read = |path: &PathBuf| serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let paths = files("configs/grafana", "json");
    assert!(paths.len() >= 4, "{paths:?}");
    paths.iter().map(|path| (name(path), read(path))).collect()
}

/// Every alert with the file it stands in.
pub fn alerts() -> Vec<(String, Value)> {
    let mut alerts = Vec::new();
    for path in files("configs/prometheus", "yaml") {
        let rules: Value = serde_yaml::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        for group in list(&rules, "/groups") {
            alerts.extend(list(group, "/rules").iter().map(|rule| (name(&path), rule.clone())));
        }
    }
    assert!(alerts.len() >= 15, "{}", alerts.len());
    alerts
}

/// The lists of what our binaries export.
pub fn metric_lists() -> Vec<String> {
    let paths = files("configs/prometheus", "md");
    assert_eq!(paths.len(), 2, "{paths:?}");
    paths.iter().map(|path| fs::read_to_string(path).unwrap()).collect()
}

pub fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value
        .pointer(pointer)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

pub fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// The panels that show something.
pub fn panels(dashboard: &Value) -> Vec<&Value> {
    let panels: Vec<&Value> = list(dashboard, "/panels")
        .iter()
        .filter(|panel| panel["type"] != "row")
        .collect();
    assert!(panels.len() >= 10, "{}", dashboard["title"]);
    panels
}

/// The variables of a dashboard that Prometheus is asked for: their name, and the selector and label of their query.
pub fn asked_variables(dashboard: &Value) -> Vec<(&str, &str, &str)> {
    let variables = list(dashboard, "/templating/list").iter();
    let asked = variables.filter(|variable| variable["type"] == "query");
    asked
        .map(|variable| {
            let query = variable.pointer("/query/query").and_then(Value::as_str).unwrap();
            let inside = query
                .strip_prefix("label_values(")
                .and_then(|rest| rest.strip_suffix(')'))
                .unwrap();
            let (selector, label) = inside.rsplit_once(", ").unwrap();
            (text(variable, "name"), selector, label)
        })
        .collect()
}

/// An expression with its variables replaced.
pub fn filled(expression: &str, values: &[(&str, &str)]) -> String {
    let replace = |text: String, (variable, value): &(&str, &str)| text.replace(&format!("${variable}"), value);
    let filled = values.iter().fold(expression.to_owned(), replace);
    assert!(!filled.contains('$'), "a variable that is not defined: {filled}");
    filled
}
