//! The definition's schema, node by node.

use serde_json::Value;

/// Every node with its path: `spec.roles.reward.rules[].length`; the root's is empty.
pub fn nodes() -> Vec<(String, Value)> {
    let crd = serde_json::to_value(ppo_crds::crd().unwrap()).unwrap();
    let root = crd.pointer("/spec/versions/0/schema/openAPIV3Schema").unwrap();
    let mut found = Vec::new();
    walk(root, String::new(), &mut found);
    found
}

/// Those of the spec, itself included.
pub fn nodes_of_the_spec() -> Vec<(String, Value)> {
    let mut nodes = nodes();
    nodes.retain(|(path, _)| path == "spec" || path.starts_with("spec."));
    nodes
}

fn walk(node: &Value, path: String, found: &mut Vec<(String, Value)>) {
    let properties = node.get("properties").and_then(Value::as_object);
    for (name, inner) in properties.into_iter().flatten() {
        let inside = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        walk(inner, inside, found);
    }
    if let Some(items) = node.get("items") {
        walk(items, format!("{path}[]"), found);
    }
    found.push((path, node.clone()));
}
