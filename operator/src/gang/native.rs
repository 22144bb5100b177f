//! Kubernetes' own gang scheduling (KEP-4671): one PodGroup for all roles, since PodGroups do not gang with each other.
//! Seen with 1.36's v1alpha2; 1.37 serves v1beta1.

use std::sync::Arc;

use kube::api::DynamicObject;
use serde_json::json;

use super::members;
use super::upkeep::Upkeep;
use crate::job::Job;
use crate::ledger::Ledger;
use crate::lifecycle::decision::{Decision, Intent};
use crate::plan::action::Action;
use crate::plan::object::metadata;
use crate::snapshot::Snapshot;
use crate::world::{Kind, PodView};

/// The gang.
pub fn pod_group(kind: Kind, job: &Job, seen: &Snapshot) -> DynamicObject {
    let mut spec = json!({"schedulingPolicy": {"gang": {"minCount": members::floor(job)}}});
    // Where Kubernetes preempts for whole gangs, the group's priority counts and not its pods'. Nobody may change it later: what a group
    // that is there has, be it nothing, stays.
    let class = match seen.object(kind, &members::name(job)) {
        Some(group) => group.data["spec"]["priorityClassName"].clone(),
        None => json!(job.spec.scheduling.priority_class_name),
    };
    if class.as_str().is_some_and(|name| !name.is_empty()) {
        spec["priorityClassName"] = class;
    }
    let mut group = DynamicObject::new("", &kind.resource()).data(json!({"spec": spec}));
    group.metadata = metadata(job, &members::name(job));
    group
}

/// The group, when its floor is not the job's any more. 1.36 lets nobody change it (`validation` of `scheduling.k8s.io`: the policy is
/// immutable), and holds every pod of it back until it has so many.
fn of_another_floor<'a>(job: &Job, seen: &'a Snapshot) -> Option<&'a Arc<DynamicObject>> {
    let group = seen.object(Kind::NativePodGroupAlpha, &members::name(job))?;
    let floor = &group.data["spec"]["schedulingPolicy"]["gang"]["minCount"];
    (*floor != json!(members::floor(job))).then_some(group)
}

fn is_current(ledger: &Ledger, pod: &PodView) -> bool {
    pod.attempt == ledger.attempt_of(pod.role, pod.index)
}

/// The same, while none of the pods that the job should have has a node: such a group goes, and another comes for other pods.
pub fn outdated<'a>(job: &Job, ledger: &Ledger, seen: &'a Snapshot) -> Option<&'a Arc<DynamicObject>> {
    let placed = seen.pods(job).any(|pod| pod.node.is_some() && is_current(ledger, pod));
    of_another_floor(job, seen).filter(|_| !placed)
}

/// Whether pods wait in a group of another floor, which will never let them go.
pub fn holds_back(job: &Job, ledger: &Ledger, seen: &Snapshot) -> bool {
    outdated(job, ledger, seen).is_some() && seen.pods(job).any(|pod| is_current(ledger, pod))
}

/// Takes the group away that nobody wants, or that has another floor and cannot change, once its pods are gone. A suspended job's is made
/// anew when it is resumed: only so can its priority be another.
pub fn upkeep(kind: Kind, job: &Job, decision: &Decision, seen: &Snapshot) -> Upkeep {
    let group = match decision.intent {
        Intent::Run | Intent::Queue(_) if kind == Kind::NativePodGroupAlpha => outdated(job, &decision.ledger, seen),
        Intent::Run | Intent::Queue(_) => None,
        _ => seen.object(kind, &members::name(job)),
    };
    let gone = !seen.pods(job).any(|pod| pod.alive);
    let removal = group.filter(|_| gone).and_then(|group| Action::removal(kind, group));
    Upkeep {
        actions: removal.into_iter().collect(),
        wake: None,
    }
}

/// Whether a new pod is a member: one that comes back to a gang that was placed with another floor is placed alone.
pub fn takes(job: &Job, seen: &Snapshot) -> bool {
    of_another_floor(job, seen).is_none()
}

/// Makes a pod a member. The field is immutable, and newer than the typed Pod of this client.
pub fn join(pod: &mut DynamicObject, job: &Job) {
    pod.data["spec"]["schedulingGroup"] = json!({"podGroupName": members::name(job)});
}

#[cfg(test)]
mod tests;
