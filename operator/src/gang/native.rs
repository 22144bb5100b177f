//! Kubernetes' own gang scheduling (KEP-4671): one PodGroup for all roles, since PodGroups do not gang with each other.
//! Seen with 1.36's v1alpha2; 1.37 serves v1beta1.

use kube::api::DynamicObject;
use serde_json::json;

use super::members;
use crate::job::Job;
use crate::plan::metadata;
use crate::world::Kind;

/// The gang.
pub fn pod_group(kind: Kind, job: &Job) -> DynamicObject {
    let spec = json!({"schedulingPolicy": {"gang": {"minCount": members::floor(job)}}});
    let mut group = DynamicObject::new("", &kind.resource()).data(json!({"spec": spec}));
    group.metadata = metadata(job, &members::name(job));
    group
}

/// Makes a pod a member. The field is immutable, and newer than the typed Pod of this client.
pub fn join(pod: &mut DynamicObject, job: &Job) {
    pod.data["spec"]["schedulingGroup"] = json!({"podGroupName": members::name(job)});
}
