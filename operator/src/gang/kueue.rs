//! Kueue, by owning a Workload with one podSet per role: pods exist while it is admitted. What Kueue's own job framework does
//! (`pkg/controller/jobframework`), for which it has no interface but Go. Seen with Kueue 0.16.1.

mod admission;
pub mod admission_checks;
mod conditions;
mod lookups;
mod refusal;
mod topology;
mod upkeep;
mod workload;

use kube::ResourceExt;
use kube::api::DynamicObject;
use ppo_crds::spec::Role;
use serde_json::{Value, json};

pub use admission::{admission, unanswered};
pub use lookups::{Flavors, Lookups, look_up};
pub use upkeep::upkeep;
pub use workload::repair;

use super::Admission;
use crate::job::Job;
use crate::snapshot::Snapshot;

/// Marks a pod so that Kueue's topology accounting does not count it beside its Workload.
const UNCONSTRAINED: &str = "kueue.x-k8s.io/podset-unconstrained-topology";

/// Sends a pod to the nodes that its role was given.
pub fn join(pod: &mut DynamicObject, job: &Job, role: Role, index: u32, seen: &Snapshot) {
    if !pod.annotations().keys().any(|key| is_topology(key)) {
        pod.annotations_mut().insert(UNCONSTRAINED.into(), "true".into());
    }
    let class = workload::observed(job, &seen.children).map(|workload| &workload.data["spec"]["priorityClassRef"]);
    if class.is_some_and(|class| class["kind"] == "WorkloadPriorityClass")
        && let Some(spec) = pod.data["spec"].as_object_mut()
    {
        // A class of Kueue's alone: Kubernetes would refuse the pod.
        spec.remove("priorityClassName");
    }
    let Admission::Admitted(places) = &seen.admission else {
        return;
    };
    let Some(place) = places.get(&role) else { return };
    let chosen = usize::try_from(index).ok().and_then(|index| place.nodes.get(index));
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

fn is_topology(annotation: &str) -> bool {
    annotation.starts_with("kueue.x-k8s.io/podset-") && annotation.ends_with("-topology")
}
