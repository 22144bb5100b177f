//! Defaults: what the API server fills in, and what the worker fills in without one, are the same.

use ppo_crds::PpoJob;
use ppo_tests::ControlPlane;
use serde_json::Value;

use crate::manifest::{get, host};
use crate::schema::nodes_of_the_spec;
use crate::server::create_all;

#[tokio::test]
async fn every_default_is_read_back_and_is_the_one_of_our_own_types() {
    let cluster = ControlPlane::shared().await.unwrap();
    let namespace = cluster.namespace("defaults").await.unwrap();
    let mut nodes = nodes_of_the_spec();
    nodes.retain(|(_, node)| node.get("default").is_some());
    assert!(nodes.len() > 80, "{}", nodes.len());
    let manifests: Vec<Value> = nodes.iter().map(|(path, _)| host(path)).collect();
    let answers = create_all(&namespace, manifests.clone()).await;
    for (((path, node), manifest), answer) in nodes.into_iter().zip(manifests).zip(answers) {
        // The least manifest has a reward rule: the default, none, is no reward at all.
        if path == "spec.roles.reward.rules" {
            continue;
        }
        assert_eq!(get(&manifest, &path), None, "{path} is given: its default is not seen");
        let filled = answer.unwrap_or_else(|refused| panic!("{path}: {manifest}: {refused:?}"));
        contains(&path, get(&filled, &path), &node["default"]);
        let own = serde_json::to_value(serde_json::from_value::<PpoJob>(manifest).unwrap()).unwrap();
        // Empty lists are not written by our types.
        if node["default"] != serde_json::json!([]) || get(&own, &path).is_some() {
            contains(&path, get(&own, &path), &node["default"]);
        }
    }
}

/// A block's default is completed by those of its fields.
fn contains(path: &str, found: Option<&Value>, default: &Value) {
    let found = found.unwrap_or_else(|| panic!("{path} has no value; its default is {default}"));
    match default {
        Value::Object(fields) => {
            for (name, value) in fields {
                contains(&format!("{path}.{name}"), found.get(name), value);
            }
        }
        Value::Number(default) => assert_eq!(found.as_f64(), default.as_f64(), "{path}"),
        default => assert_eq!(found, default, "{path}"),
    }
}
