//! What pods say of themselves.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt as _;
use ppo_crds::PpoJob;
use ppo_crds::pod::label;
use ppo_crds::spec::Role;

/// Selector of a job's pods.
pub fn selector(job: &str) -> String {
    format!("{}={},{}={job}", label::NAME, label::NAME_VALUE, label::JOB)
}

/// Whether the pod is the job's own, whatever its labels say.
pub fn is_of(pod: &Pod, job: &PpoJob) -> bool {
    let mut owners = pod.owner_references().iter();
    owners.any(|owner| owner.controller == Some(true) && Some(&owner.uid) == job.metadata.uid.as_ref())
}

/// The role by label.
pub fn role(pod: &Pod) -> Option<Role> {
    let name = pod.labels().get(label::ROLE)?;
    Role::ALL.into_iter().find(|role| role.name() == name)
}

/// The index by label.
pub fn index(pod: &Pod) -> Option<u32> {
    pod.labels().get(label::INDEX)?.parse().ok()
}

/// Order in which pods are shown: by role, then index.
pub fn order(pod: &Pod) -> (Option<Role>, Option<u32>, String) {
    (role(pod), index(pod), pod.name_any())
}

/// `<role>-<index>`: how a pod is called within its job.
pub fn short_name(pod: &Pod) -> String {
    match (role(pod), index(pod)) {
        (Some(role), Some(index)) => format!("{}-{index}", role.name()),
        _ => pod.name_any(),
    }
}

/// Statuses of init and other containers, in the order in which they start.
pub fn containers(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let init = status
        .and_then(|status| status.init_container_statuses.as_ref())
        .into_iter()
        .flatten();
    init.chain(
        status
            .and_then(|status| status.container_statuses.as_ref())
            .into_iter()
            .flatten(),
    )
}

/// Running, Pending and so on; empty when not known.
pub fn phase(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

/// Message of the pod's condition when it has this status, with its reason first.
pub fn condition<'a>(pod: &'a Pod, kind: &str, status: &str) -> Option<(&'a str, &'a str)> {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref())
        .into_iter()
        .flatten();
    let found = conditions
        .into_iter()
        .find(|condition| condition.type_ == kind && condition.status == status)?;
    Some((
        found.reason.as_deref().unwrap_or_default(),
        found.message.as_deref().unwrap_or_default(),
    ))
}

/// Whether the pod passed its readiness probes.
pub fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready", "True").is_some()
}

/// The node, where it has one.
pub fn node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref())
}

/// Whom it asks for a node.
pub fn scheduler(pod: &Pod) -> &str {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.scheduler_name.as_deref())
        .unwrap_or("default-scheduler")
}

/// How much of an extended resource, such as `nvidia.com/gpu`, its containers ask for together; None where none does. Of these a request
/// and its limit are the same whole number.
pub fn asked_for(pod: &Pod, resource: &str) -> Option<u64> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let each = containers.filter_map(|container| {
        let resources = container.resources.as_ref()?;
        let mut given = [&resources.limits, &resources.requests].into_iter().flatten();
        given.find_map(|given| given.get(resource)?.0.parse::<u64>().ok())
    });
    each.reduce(u64::saturating_add)
}
