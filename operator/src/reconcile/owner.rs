//! Whose an object is.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use kube::api::DynamicObject;

use crate::job::Job;
use crate::world::Kind;

/// Whether an object is this job's: one of an earlier job of the name may not be gone yet. A claim of checkpoints outlives its job.
pub(super) fn is_of(job: &Job, kind: Kind, object: &DynamicObject) -> bool {
    kind == Kind::PersistentVolumeClaim || controller(object).is_some_and(|owner| owner.uid == job.uid)
}

/// Who looks after an object.
pub(super) fn controller(object: &impl Resource) -> Option<&OwnerReference> {
    let mut owners = object.meta().owner_references.iter().flatten();
    owners.find(|owner| owner.controller == Some(true))
}
