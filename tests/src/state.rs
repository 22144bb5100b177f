//! What the jobs of a namespace are and have, without what differs between any two lives: identities, versions and times.

use std::collections::BTreeMap;

use anyhow::Result;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::Namespace;

/// Objects by kind and name; the job with its status.
pub type State = BTreeMap<String, Value>;

/// Kinds that a job has objects of.
const KINDS: [(&str, &str, &str); 7] = [
    ("", "v1", "Pod"),
    ("", "v1", "ConfigMap"),
    ("", "v1", "Secret"),
    ("", "v1", "Service"),
    ("", "v1", "PersistentVolumeClaim"),
    ("networking.k8s.io", "v1", "NetworkPolicy"),
    ("policy", "v1", "PodDisruptionBudget"),
];

/// Set anew by every server, process or second.
const VARYING: [&str; 12] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "managedFields",
    "lastTransitionTime",
    "activeSince",
    "activeSeconds",
    "startTime",
    "completionTime",
    "lastRestartTime",
    "clusterIP",
    "clusterIPs",
];

/// What is there now.
///
/// # Errors
/// When the API server does not answer.
pub async fn state(namespace: &Namespace<'_>) -> Result<State> {
    let mut state = State::new();
    for (group, version, kind) in KINDS {
        for object in list(namespace, group, version, kind).await? {
            let mut kept = json!({"metadata": object.metadata, "data": object.data});
            // The status of pods and services is others' business, and a token is random.
            remove(&mut kept["data"], "status");
            if kind == "Secret" {
                remove(&mut kept["data"], "data");
            }
            state.insert(format!("{kind} {}", object.name_any()), masked(kept, &namespace.name));
        }
    }
    for job in list(namespace, "ppojob.dev", "v1alpha1", "PpoJob").await? {
        state.insert(format!("PpoJob {}", job.name_any()), masked(job.data, &namespace.name));
    }
    // Every namespace has them.
    state.retain(|name, _| !name.starts_with("ConfigMap kube-root-ca"));
    Ok(state)
}

async fn list(namespace: &Namespace<'_>, group: &str, version: &str, kind: &str) -> Result<Vec<DynamicObject>> {
    let resource = match kind {
        "NetworkPolicy" => {
            ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), "networkpolicies")
        }
        _ => ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind)),
    };
    let api: Api<DynamicObject> = Api::namespaced_with(namespace.client.clone(), &namespace.name, &resource);
    Ok(api.list(&Default::default()).await?.items)
}

fn masked(mut value: Value, namespace: &str) -> Value {
    mask(&mut value, namespace);
    value
}

fn mask(value: &mut Value, namespace: &str) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| !VARYING.contains(&name.as_str()));
            fields.values_mut().for_each(|value| mask(value, namespace));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| mask(item, namespace)),
        Value::String(text) => *text = text.replace(namespace, "(namespace)"),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn remove(value: &mut Value, field: &str) {
    if let Some(fields) = value.as_object_mut() {
        fields.remove(field);
    }
}
