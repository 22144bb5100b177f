//! Pods that are ending: their successors need the names, and a suspended job's GPUs are not free.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;

use super::evidence::Evidence;
use super::finding::{Cause, Finding};
use crate::plugin::{age, pods};

/// Seconds after its grace period in which a pod is really gone.
const FAREWELL: i64 = 30;

/// Pods that should be gone, and those that may still take their time while the job waits for their names.
pub fn findings(evidence: &Evidence, now: Timestamp) -> Vec<Finding> {
    // `deletionTimestamp` is when the grace period ends, not when it began.
    let going = evidence
        .pods
        .iter()
        .filter_map(|pod| Some((pod, pod.metadata.deletion_timestamp.as_ref()?.0)));
    going
        .filter_map(|(pod, deadline)| {
            let finding = match age::seconds_since(deadline, now) > FAREWELL {
                true => Some(late(pod, deadline, now)),
                false => is_awaited(evidence, pod).then(|| in_time(pod, deadline, now)),
            };
            Some(finding?.of_pod(&pod.name_any()))
        })
        .collect()
}

/// Whether another pod is to have its name. One that was scaled away, or is of a suspended job, has no successor.
fn is_awaited(evidence: &Evidence, pod: &Pod) -> bool {
    let (Some(role), Some(index)) = (pods::role(pod), pods::index(pod)) else {
        return false;
    };
    let mut roles = evidence.job.status.iter().flat_map(|status| &status.roles);
    let wanted = roles.any(|known| known.name == role && index < known.desired);
    wanted && !evidence.job.spec.run_policy.suspend
}

fn in_time(pod: &Pod, deadline: Timestamp, now: Timestamp) -> Finding {
    let left = deadline.as_second().saturating_sub(now.as_second());
    let then = finalizers(pod).map_or_else(String::new, |held| format!(" Beyond that {held}."));
    Finding::note(
        Cause::Terminating,
        format!(
            "The pod is ending{}, has until {deadline} for that ({} more), and its successor needs its name.{then}",
            since(pod, deadline, now),
            age::human(left)
        ),
        "wait until then: it saves its state, and its successor comes by itself",
    )
}

fn late(pod: &Pod, deadline: Timestamp, now: Timestamp) -> Finding {
    let held = finalizers(pod);
    // The kubelet's part is done where all containers have ended.
    let of_node = (held.is_none() || !has_stopped(pod)).then(|| match pods::node(pod) {
        Some(node) => format!("its node {node} does not confirm that it stopped"),
        None => "nothing confirms that it stopped".into(),
    });
    let fixes = [
        of_node.as_ref().map(|_| of_kubelet(pod)),
        held.as_ref().map(|_| HELD.to_owned()),
    ];
    let holds: Vec<String> = of_node.into_iter().chain(held).collect();
    Finding::blocking(
        Cause::Terminating,
        format!(
            "The pod is ending{} and should have been gone {} ago, but {}.",
            since(pod, deadline, now),
            age::since(deadline, now),
            holds.join(", and ")
        ),
        fixes.into_iter().flatten().collect::<Vec<String>>().join("; "),
    )
}

const HELD: &str = "the controller that set the finalizer must take it away: is it running?";

/// A pod that was deleted by force may still run where nobody sees it: only the operator may know that its attempt is old.
fn of_kubelet(pod: &Pod) -> String {
    let node = pods::node(pod).unwrap_or("NODE");
    format!(
        "`kubectl describe node {node}`: of a node that is gone or not ready the operator removes the pod by itself, so when the machine \
         is off for good, delete the Node, or taint it with node.kubernetes.io/out-of-service; where the node is ready, its kubelet or \
         container runtime hangs. Do not delete the pod by force: its processes may still run, and hold the GPUs"
    )
}

/// Since when it is ending, where the API server says how long its grace is.
fn since(pod: &Pod, deadline: Timestamp, now: Timestamp) -> String {
    let grace = pod
        .metadata
        .deletion_grace_period_seconds
        .map(SignedDuration::from_secs);
    let began = grace.and_then(|grace| deadline.checked_sub(grace).ok());
    began.map_or_else(String::new, |began| format!(" since {}", age::since(began, now)))
}

/// What holds the object when all processes have ended.
fn finalizers(pod: &Pod) -> Option<String> {
    match pod.finalizers() {
        [] => None,
        [one] => Some(format!("the finalizer {one} holds it")),
        several => Some(format!("the finalizers {} hold it", several.join(", "))),
    }
}

fn has_stopped(pod: &Pod) -> bool {
    let ended = |status: &ContainerStatus| status.state.as_ref().is_some_and(|state| state.terminated.is_some());
    let known = pods::containers(pod).next().is_some();
    matches!(pods::phase(pod), "Succeeded" | "Failed") || known && pods::containers(pod).all(ended)
}
