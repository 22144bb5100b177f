//! Volcano: one PodGroup with a floor per role (`minTaskMember`). Seen with Volcano 1.14.1.

use std::collections::BTreeMap;

use kube::ResourceExt;
use kube::api::DynamicObject;
use ppo_crds::spec::Role;
use serde_json::json;

use super::members;
use crate::job::Job;
use crate::plan::metadata;
use crate::settings::PodSettings;
use crate::world::Kind;

const SCHEDULER: &str = "volcano";
const GROUP_ANNOTATION: &str = "scheduling.k8s.io/group-name";
const TASK_ANNOTATION: &str = "volcano.sh/task-spec";

/// The gang.
pub fn pod_group(job: &Job, settings: &PodSettings) -> DynamicObject {
    let floors: BTreeMap<&str, u32> = job.roles.iter().map(|role| (role.role.name(), role.floor)).collect();
    let scheduling = &job.spec.scheduling;
    let mut spec = json!({
        // Below the sum of the floors Volcano ignores minTaskMember.
        "minMember": members::floor(job),
        "minTaskMember": floors,
        "minResources": members::min_resources(job, &settings.gpu_resource),
        "queue": if scheduling.queue.is_empty() { "default" } else { &scheduling.queue },
    });
    if !scheduling.priority_class_name.is_empty() {
        spec["priorityClassName"] = json!(scheduling.priority_class_name);
    }
    let mut group = DynamicObject::new("", &Kind::VolcanoPodGroup.resource()).data(json!({"spec": spec}));
    group.metadata = metadata(job, &members::name(job));
    group
}

/// Makes a pod a member of its role.
pub fn join(pod: &mut DynamicObject, job: &Job, role: Role) {
    let annotations = pod.annotations_mut();
    annotations.insert(GROUP_ANNOTATION.into(), members::name(job));
    annotations.insert(TASK_ANNOTATION.into(), role.name().into());
    pod.data["spec"]["schedulerName"] = json!(SCHEDULER);
}
