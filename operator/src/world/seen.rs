//! Objects as they are read from a watch: fields that the operator never uses are skipped while reading, above all `managedFields`,
//! which is a third of every object.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::Resource;
use kube::api::{ApiResource, DynamicObject};
use kube::core::{DynamicResourceScope, TypeMeta};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A pod, as far as a [`PodView`](super::PodView) shows it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SeenPod {
    /// Who it is.
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    /// Where it is.
    pub spec: SeenPodSpec,
    /// How it is.
    pub status: PodStatus,
}

/// The part of a pod's spec that is not ours.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SeenPodSpec {
    /// Its node, once it has one.
    pub node_name: Option<String>,
    /// The nodes it may run on, by their labels.
    pub node_selector: BTreeMap<String, String>,
    /// Who is asked for a node.
    pub scheduler_name: Option<String>,
}

/// Any other object of a job.
#[derive(Clone, Debug, Deserialize)]
pub struct SeenObject {
    #[serde(flatten)]
    types: Option<TypeMeta>,
    #[serde(default, deserialize_with = "metadata")]
    metadata: ObjectMeta,
    #[serde(flatten)]
    data: Value,
}

impl From<SeenObject> for DynamicObject {
    fn from(seen: SeenObject) -> Self {
        Self {
            types: seen.types,
            metadata: seen.metadata,
            data: seen.data,
        }
    }
}

/// What is read of an object's metadata.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<OwnerReference>>,
    finalizers: Option<Vec<String>>,
}

fn metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let read = Metadata::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: read.name,
        namespace: read.namespace,
        uid: read.uid,
        resource_version: read.resource_version,
        generation: read.generation,
        creation_timestamp: read.creation_timestamp,
        deletion_timestamp: read.deletion_timestamp,
        deletion_grace_period_seconds: read.deletion_grace_period_seconds,
        labels: read.labels,
        annotations: read.annotations,
        owner_references: read.owner_references,
        finalizers: read.finalizers,
        ..ObjectMeta::default()
    })
}

impl Resource for SeenPod {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        Pod::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        Pod::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        Pod::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        Pod::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl Resource for SeenObject {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        DynamicObject::kind(resource)
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        DynamicObject::group(resource)
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        DynamicObject::version(resource)
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        DynamicObject::plural(resource)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_read_is_what_stands_there_but_for_managed_fields() {
        let object = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {
                "name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7", "generation": 2,
                "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"l": "1"}, "annotations": {"a": "2"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "o", "uid": "v", "controller": true}],
                "finalizers": ["f"],
            },
            "spec": {"ports": [1]},
        });
        let whole: DynamicObject = serde_json::from_value(object.clone()).unwrap();
        let mut noisy = object;
        noisy["metadata"]["managedFields"] =
            json!([{"manager": "m", "operation": "Apply", "fieldsV1": {"f:spec": {}}}]);
        let seen: SeenObject = serde_json::from_value(noisy).unwrap();
        assert_eq!(DynamicObject::from(seen), whole);
    }
}
