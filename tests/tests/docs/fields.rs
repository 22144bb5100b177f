//! Fields of the manifest, values of the chart, metrics and alerts that are named are known.

use serde_json::Value;

use crate::page::{Page, repository};

/// Whether `path` leads through a schema; `*` is any field.
fn leads(schema: &Value, path: &[&str]) -> bool {
    let Some((name, rest)) = path.split_first() else {
        return true;
    };
    let schema = schema.get("items").unwrap_or(schema);
    let fields = schema.get("properties").and_then(Value::as_object);
    let mut fields = fields.into_iter().flatten();
    match *name {
        "*" => fields.any(|(_, inner)| leads(inner, rest)),
        name => fields.any(|(known, inner)| known == name && leads(inner, rest)),
    }
}

fn is_path(text: &str) -> bool {
    !text.is_empty()
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '.' || c == '*')
        && !text.starts_with('.')
}

#[test]
fn every_field_and_value_that_is_named_is_known() {
    let spec = ppo_crds::spec_schema();
    let values = std::fs::read_to_string(repository().join("charts/ppo-operator/values.schema.json")).unwrap();
    let values: Value = serde_json::from_str(&values).unwrap();
    let mut seen = 0;
    for page in Page::all() {
        // The migration page names other projects' settings in its first column; its fields are tested where they are written.
        for code in page.spans().into_iter().filter(|_| page.name != "docs/migration.md") {
            let field = code.text.split(": ").next().unwrap();
            let path: Vec<&str> = field.strip_prefix("spec.").unwrap_or(field).split('.').collect();
            let is_file = ["safetensors", "json", "jsonl", "yaml", "py", "md"].contains(path.last().unwrap());
            let starts = leads(spec, &path[..1]) || leads(&values, &path[..1]);
            if !is_path(field) || path.len() < 2 || is_file || !starts {
                continue;
            }
            seen += 1;
            assert!(
                leads(spec, &path) || leads(&values, &path),
                "{}: {field} is no field",
                code.place
            );
        }
    }
    assert!(seen > 60, "only {seen} fields were found on the pages");
}

#[test]
fn every_yaml_block_is_a_part_of_a_manifest() {
    let mut seen = 0;
    for page in Page::all() {
        for code in page.blocks("yaml") {
            let block: Value =
                serde_yaml::from_str(&code.text).unwrap_or_else(|error| panic!("{}: {error}", code.place));
            // Prometheus' own words: tests/tests/real_cluster/prometheus gives them to one. A NetworkPolicy is read where the operator makes its own.
            if block.get("scrape_configs").is_some() || block["kind"] == "NetworkPolicy" {
                continue;
            }
            let (block, schema) = match (block.get("spec"), block.get("reward")) {
                (Some(spec), _) => (spec.clone(), ppo_crds::spec_schema().clone()),
                (_, Some(reward)) => {
                    let schema = ppo_crds::spec_schema()
                        .pointer("/properties/roles/properties/reward")
                        .unwrap();
                    (reward.clone(), schema.clone())
                }
                (None, None) => panic!("{}: neither a spec nor a reward", code.place),
            };
            known(&block, &schema, &code.place);
            seen += 1;
        }
    }
    assert!(seen > 5, "only {seen} blocks were found");
}

fn known(value: &Value, schema: &Value, place: &str) {
    // A pod template: Kubernetes says what is in it.
    if schema["x-kubernetes-preserve-unknown-fields"] == true {
        return;
    }
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let inner = schema.get("properties").and_then(|fields| fields.get(name));
                known(
                    value,
                    inner.unwrap_or_else(|| panic!("{place}: no field {name}")),
                    &format!("{place} {name}"),
                );
            }
        }
        Value::Array(items) => items.iter().for_each(|item| known(item, &schema["items"], place)),
        _ => {}
    }
}

#[test]
fn every_metric_and_alert_that_is_named_is_exported() {
    let read = |name: &str| std::fs::read_to_string(repository().join("configs/prometheus").join(name)).unwrap();
    let metrics = read("worker-metrics.md") + &read("operator-metrics.md");
    let alerts = read("jobs.yaml") + &read("engines.yaml") + &read("operator.yaml");
    let monitoring = Page::read("docs/monitoring.md").text;
    for page in Page::all() {
        for code in page.spans() {
            // The migration page names verl's settings, which begin alike.
            if code.text.starts_with("ppo_") && page.name != "docs/migration.md" {
                assert!(
                    metrics.contains(&format!("| {} |", code.text)),
                    "{}: no metric {}",
                    code.place,
                    code.text
                );
            }
        }
    }
    for alert in alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(
            monitoring.contains(alert),
            "docs/monitoring.md does not say what to do about {alert}"
        );
    }
    let named = monitoring.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| {
        ["PpoJob", "PpoEngine", "PpoOperator"].iter().any(|start| {
            word.strip_prefix(start)
                .is_some_and(|rest| !rest.is_empty() && rest != "s")
        })
    });
    for word in named {
        assert!(
            alerts.contains(&format!("alert: {word}\n")),
            "docs/monitoring.md: no alert {word}"
        );
    }
}
