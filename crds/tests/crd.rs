//! The generated CRD: up to date, structural, and a manual.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::path::Path;

use serde_json::{Value, json};

#[test]
fn the_committed_crd_is_the_generated_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("ppojob.yaml");
    let generated = ppo_crds::crd_yaml().unwrap();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, &generated).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == generated,
        "crds/ppojob.yaml is stale: run UPDATE_EXPECT=1 cargo test -p ppo-crds"
    );
}

fn schema() -> Value {
    let crd = serde_json::to_value(ppo_crds::crd().unwrap()).unwrap();
    crd.pointer("/spec/versions/0/schema/openAPIV3Schema").unwrap().clone()
}

/// Calls `visit` for every node of a schema with its path.
fn walk(schema: &Value, path: &str, visit: &mut dyn FnMut(&str, &Value)) {
    visit(path, schema);
    for (name, inner) in schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        walk(inner, &format!("{path}.{name}"), visit);
    }
    for (key, suffix) in [("items", "[]"), ("additionalProperties", "{}")] {
        if let Some(inner) = schema.get(key) {
            walk(inner, &format!("{path}{suffix}"), visit);
        }
    }
}

#[test]
fn every_field_is_described() {
    walk(&schema(), "ppojob", &mut |path, node| {
        let described = node
            .get("description")
            .and_then(Value::as_str)
            .is_some_and(|text| text.len() >= 12);
        assert!(
            described || path.ends_with("[]") || path == "ppojob.metadata",
            "{path} has no description"
        );
    });
}

#[test]
fn every_field_of_the_spec_that_may_be_left_out_names_its_default() {
    let schema = ppo_crds::spec_schema();
    walk(schema, "spec", &mut |path, node| {
        let required: Vec<&str> = node
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        for (name, field) in node.get("properties").and_then(Value::as_object).into_iter().flatten() {
            let text = field["description"].as_str().unwrap().to_lowercase();
            // Blocks say it field by field; of alternatives exactly one is given.
            let block = field["type"] == "object"
                || field["type"] == "array" && field.get("items").is_some_and(|items| items["type"] == "object");
            let alternative = ["path", "paths", "pvc", "hub", "fixed", "adaptive"].contains(&name.as_str());
            assert!(
                required.contains(&name.as_str()) || block || alternative || text.contains("default"),
                "{path}.{name}: {text}"
            );
        }
    });
}

#[test]
fn the_schema_is_structural_and_names_no_format_unknown_to_kubernetes() {
    walk(&schema(), "ppojob", &mut |path, node| {
        let node = node.as_object().unwrap();
        for forbidden in ["$ref", "oneOf", "anyOf", "allOf", "not", "nullable", "definitions"] {
            assert!(!node.contains_key(forbidden), "{path} has {forbidden}");
        }
        assert!(node.contains_key("type"), "{path} has no type");
        if let Some(format) = node.get("format").and_then(Value::as_str) {
            assert!(
                ["int32", "int64", "double", "date-time"].contains(&format),
                "{path} has format {format}"
            );
        }
    });
}

#[test]
fn inside_lists_the_api_server_fills_nothing_in() {
    walk(&schema(), "ppojob", &mut |path, node| {
        assert!(!path.contains("[]") || node.get("default").is_none(), "{path}: {node}");
    });
}

#[test]
fn everything_in_the_spec_has_a_limit_so_that_rules_stay_cheap() {
    walk(ppo_crds::spec_schema(), "spec", &mut |path, node| {
        let limits: &[&str] = match node["type"].as_str() {
            Some("integer" | "number") => &["minimum", "maximum"],
            Some("string") if node.get("enum").is_none() => &["maxLength"],
            Some("array") => &["maxItems"],
            _ => &[],
        };
        for limit in limits {
            assert!(node.get(limit).is_some(), "{path} has no {limit}");
        }
        if node["format"] == "int32" {
            assert!(
                node["maximum"].as_f64().unwrap() <= f64::from(i32::MAX),
                "{path} does not fit int32"
            );
        }
    });
}

#[test]
fn pod_templates_are_kept_as_they_are_written() {
    let schema = ppo_crds::spec_schema();
    for role in ["actor", "reference", "rollout"] {
        let template = schema
            .pointer(&format!("/properties/roles/properties/{role}/properties/template"))
            .unwrap();
        assert_eq!(template["x-kubernetes-preserve-unknown-fields"], json!(true));
        assert!(template.get("properties").is_none());
    }
}

#[test]
fn only_policy_prompts_and_reward_are_required() {
    let schema = ppo_crds::spec_schema();
    let required = |pointer: &str| schema.pointer(pointer).unwrap()["required"].clone();
    assert_eq!(required(""), json!(["model", "prompts", "roles"]));
    assert_eq!(required("/properties/model"), json!(["policy"]));
    assert_eq!(required("/properties/prompts"), json!(["source"]));
    assert_eq!(required("/properties/roles"), json!(["reward"]));
}

#[test]
fn kubectl_get_shows_state_step_reward_kl_ready_restarts_age() {
    let crd = serde_json::to_value(ppo_crds::crd().unwrap()).unwrap();
    let version = crd.pointer("/spec/versions/0").unwrap();
    let columns = version["additionalPrinterColumns"].as_array().unwrap();
    let names = |wide: bool| -> Vec<&str> {
        let shown = columns.iter().filter(|column| (column["priority"] == 1) == wide);
        shown.map(|column| column["name"].as_str().unwrap()).collect()
    };
    assert_eq!(
        names(false),
        ["State", "Step", "Reward", "KL", "Ready", "Restarts", "Age"]
    );
    assert_eq!(names(true), ["Queue", "Gang", "ETA", "Failure"], "with -o wide");
    assert_eq!(
        version["subresources"]["scale"]["specReplicasPath"],
        ".spec.roles.rollout.replicas"
    );
    for path in columns
        .iter()
        .map(|column| column["jsonPath"].as_str().unwrap())
        .filter(|path| !path.starts_with(".metadata"))
    {
        // What stands in brackets chooses an entry of a list.
        let pointer = path.split('[').next().unwrap().replace('.', "/properties/");
        assert!(schema().pointer(&pointer).is_some(), "{path} is not in the schema");
    }
}

#[test]
fn a_number_with_an_exponent_has_a_point_too() {
    // Readers of YAML 1.1, as Python's, take `1e-6` for a text.
    let text = ppo_crds::crd_yaml().unwrap();
    let numbers = text
        .lines()
        .filter_map(|line| line.trim().split_once(": ")?.1.parse::<f64>().ok().map(|_| line));
    let with_exponent: Vec<&str> = numbers
        .filter(|line| line.trim().split_once(": ").unwrap().1.contains('e'))
        .collect();
    assert!(with_exponent.len() > 3, "{with_exponent:?}");
    for line in with_exponent {
        assert!(line.contains('.'), "{line}");
    }
    let read: Value = serde_yaml::from_str(&text).unwrap();
    assert_eq!(read, serde_json::to_value(ppo_crds::crd().unwrap()).unwrap());
}

#[test]
fn the_definition_is_small_enough_for_a_client_side_apply() {
    // kubectl keeps the applied object in an annotation, and annotations end at 256 KiB.
    assert!(serde_json::to_string(&ppo_crds::crd().unwrap()).unwrap().len() < 200_000);
}
