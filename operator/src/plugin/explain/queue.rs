//! Waiting for quota.

use kube::ResourceExt as _;
use kube::api::DynamicObject;
use ppo_crds::status::Phase;

use super::evidence::one_line;
use super::{Cause, Evidence, Finding};
use crate::plugin::gang::{condition, is_of, text};

/// Why Kueue has not admitted the job's Workload; or that the operator says it is queued.
pub fn findings(evidence: &Evidence) -> Vec<Finding> {
    let workloads = evidence
        .gang
        .iter()
        .filter(|object| is_of(object, "kueue.x-k8s.io", "Workload"));
    let found: Vec<Finding> = workloads.filter_map(workload).collect();
    if !found.is_empty() || evidence.phase() != Some(Phase::Queued) {
        return found;
    }
    let condition = evidence.condition("GangScheduled", "False");
    if let Some(missing) = condition.filter(|condition| condition.reason == "GangSchedulerMissing") {
        let what = format!("The job's gang scheduler is missing: {}.", one_line(&missing.message));
        return vec![Finding::blocking(Cause::Gang, what, INSTALL)];
    }
    let queue = &evidence.job.spec.scheduling.queue;
    let words = condition.map(|condition| one_line(&condition.message));
    let what = match words.filter(|words| !words.is_empty()) {
        Some(words) => format!("The job waits in queue {queue:?}: {words}."),
        None => format!("The job waits in queue {queue:?}."),
    };
    vec![Finding::blocking(Cause::Queued, what, WAIT)]
}

const INSTALL: &str = "install it, or set spec.scheduling.gang to auto or to one that the cluster has";

const WAIT: &str = "wait until others end, ask for fewer GPUs or engines, or have the queue's quota raised (`kubectl get clusterqueues -o wide`)";

fn workload(workload: &DynamicObject) -> Option<Finding> {
    let queue = text(workload, "/spec/queueName");
    let name = workload.name_any();
    let blocking = |what: String, fix: &str| Some(Finding::blocking(Cause::Queued, what, fix));
    if condition(workload, "Finished", "True").is_some() {
        return None;
    }
    if workload
        .data
        .pointer("/spec/active")
        .and_then(serde_json::Value::as_bool)
        == Some(false)
    {
        return blocking(
            format!(
                "Kueue's Workload {name} is deactivated (spec.active: false), so queue {queue:?} does not admit it."
            ),
            &format!(
                "set it active again: `kubectl patch workloads.kueue.x-k8s.io {name} --type merge -p '{{\"spec\":{{\"active\":true}}}}'`"
            ),
        );
    }
    if let Some((reason, message)) = condition(workload, "Evicted", "True") {
        return blocking(
            format!("Kueue evicted the job ({reason}): {}.", one_line(message)),
            match reason {
                "Preempted" => {
                    "wait: it is admitted again when quota is free; a higher scheduling.priorityClassName keeps it from being preempted"
                }
                "ClusterQueueStopped" | "LocalQueueStopped" => {
                    "whoever stopped the queue can start it again (stopPolicy: None)"
                }
                "PodsReadyTimeout" => {
                    "its pods were not ready in the time that Kueue gives them: see why below, or raise waitForPodsReady.timeout in Kueue's configuration"
                }
                _ => WAIT,
            },
        );
    }
    if condition(workload, "Admitted", "True").is_some() {
        return None;
    }
    if let Some((reason, message)) = condition(workload, "QuotaReserved", "False") {
        let fix = match reason {
            "Inadmissible" => {
                "name a LocalQueue of this namespace in spec.scheduling.queue (`kubectl get localqueues`), whose ClusterQueue covers every resource that the pods ask for"
            }
            _ => WAIT,
        };
        return blocking(
            format!("Queue {queue:?} has not admitted the job: {}.", one_line(message)),
            fix,
        );
    }
    if condition(workload, "QuotaReserved", "True").is_some() {
        return blocking(
            format!("Queue {queue:?} has reserved quota; an admission check of its ClusterQueue is not passed yet."),
            &format!(
                "see the check's own state: `kubectl get workloads.kueue.x-k8s.io {name} -o yaml`, status.admissionChecks"
            ),
        );
    }
    blocking(
        format!("Kueue has not looked at Workload {name} in queue {queue:?} yet."),
        "is Kueue running? `kubectl get pods -n kueue-system`",
    )
}
