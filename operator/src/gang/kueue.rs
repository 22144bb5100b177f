//! Kueue, by owning a Workload with one podSet per role: pods exist while it is admitted. What Kueue's own job framework does
//! (`pkg/controller/jobframework`), for which it has no interface but Go. Seen with Kueue 0.16.1.

pub(super) mod admission;
pub mod admission_checks;
mod conditions;
pub(crate) mod lookups;
mod refusal;
mod requests;
mod topology;
mod upkeep;
mod workload;

use std::collections::BTreeMap;

use kube::ResourceExt;
use kube::api::DynamicObject;
use ppo_crds::spec::Role;
use serde_json::{Value, json};

pub use admission::admission;
pub use lookups::Lookups;
pub use requests::{Flavors, look_up};
pub use upkeep::upkeep;
pub use workload::repair;

use super::admission::{Admission, Place};
use super::members;
use crate::job::Job;
use crate::snapshot::Snapshot;
use crate::world::HOSTNAME;

/// Marks a pod so that Kueue's topology accounting does not count it beside its Workload.
const UNCONSTRAINED: &str = "kueue.x-k8s.io/podset-unconstrained-topology";

/// Names a pod's Workload.
const WORKLOAD: &str = "kueue.x-k8s.io/workload";

/// Sends a pod to the nodes that its role was given.
pub fn join(pod: &mut DynamicObject, job: &Job, role: Role, index: u32, seen: &Snapshot) {
    if !pod.annotations().keys().any(|key| is_topology(key)) {
        pod.annotations_mut().insert(UNCONSTRAINED.into(), "true".into());
    }
    let class = workload::observed(job, &seen.children).map(|workload| &workload.data["spec"]["priorityClassRef"]);
    // Of a job that names none the template's own stays.
    let asked = !job.spec.scheduling.priority_class_name.is_empty();
    if class.is_some_and(|class| asked && class["kind"] == "WorkloadPriorityClass")
        && let Some(spec) = pod.data["spec"].as_object_mut()
    {
        // A class of Kueue's alone: Kubernetes would refuse the pod.
        spec.remove("priorityClassName");
    }
    let Admission::Admitted(places) = &seen.admission else {
        return;
    };
    let Some(place) = places.get(&role) else { return };
    if !place.nodes.is_empty() {
        // By it Kueue finds the pods on a node that is not ready: while they run there it chooses no other node for them.
        pod.annotations_mut().insert(WORKLOAD.into(), members::name(job));
    }
    let chosen = chosen(place, job, role, index, seen);
    for (key, value) in place.node_selector.iter().chain(chosen.into_iter().flatten()) {
        pod.data["spec"]["nodeSelector"][key] = json!(value);
    }
    pod.labels_mut().extend(place.labels.clone());
    pod.annotations_mut().extend(place.annotations.clone());
    let tolerations = &mut pod.data["spec"]["tolerations"];
    match tolerations {
        Value::Array(known) => known.extend(place.tolerations.clone()),
        other if !place.tolerations.is_empty() => *other = json!(place.tolerations),
        _ => {}
    }
}

/// The node for one pod, of those that Kueue chose for its role. It keeps them in order of their names, also when it puts another in the place
/// of a lost one, so that a pod's node may stand elsewhere by then: what other pods hold is theirs, and the rest is for those without, in
/// their order.
fn chosen<'a>(
    place: &'a Place,
    job: &Job,
    role: Role,
    index: u32,
    seen: &Snapshot,
) -> Option<&'a BTreeMap<String, String>> {
    let mut free: Vec<_> = place.nodes.iter().collect();
    let mut without = Vec::new();
    for (other, _) in (0..).zip(&place.nodes) {
        let pod = seen.pod(job, role, other).filter(|pod| pod.deleting_since.is_none());
        let held = pod.and_then(|pod| pod.pinned_to.as_ref());
        match held.and_then(|name| free.iter().position(|node| node.get(HOSTNAME) == Some(name))) {
            Some(at) => drop(free.remove(at)),
            None => without.push(other),
        }
    }
    let turn = without.iter().position(|other| *other == index)?;
    free.get(turn).copied()
}

fn is_topology(annotation: &str) -> bool {
    annotation.starts_with("kueue.x-k8s.io/podset-") && annotation.ends_with("-topology")
}

#[cfg(test)]
mod tests;
