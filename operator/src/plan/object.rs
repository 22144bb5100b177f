//! An object of a job, as it is sent.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::api::DynamicObject;
use ppo_crds::pod::label;
use serde::Serialize;

use crate::job::Job;
use crate::world::Kind;

/// Metadata of an object of the job.
pub fn metadata(job: &Job, name: &str) -> ObjectMeta {
    let labels = [
        (label::NAME, label::NAME_VALUE),
        (label::MANAGED_BY, label::MANAGED_BY_VALUE),
        (label::JOB, job.key.name.as_str()),
    ];
    ObjectMeta {
        name: Some(name.into()),
        namespace: Some(job.key.namespace.clone()),
        labels: Some(labels.map(|(key, value)| (key.to_string(), value.to_string())).into()),
        owner_references: Some(vec![job.owner_reference()]),
        ..ObjectMeta::default()
    }
}

/// An object without its type, ready to be sent.
pub fn untyped<K>(kind: Kind, object: &K) -> DynamicObject
where
    K: Resource<DynamicType = ()> + Serialize,
{
    let mut data = serde_json::to_value(object).unwrap_or_default();
    if let Some(fields) = data.as_object_mut() {
        for known in ["apiVersion", "kind", "metadata"] {
            fields.remove(known);
        }
    }
    let mut untyped = DynamicObject::new("", &kind.resource()).data(data);
    untyped.metadata = object.meta().clone();
    untyped
}
