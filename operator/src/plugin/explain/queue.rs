//! Waiting for quota.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use ppo_crds::status::Phase;

use super::evidence::{Evidence, one_line};
use super::finding::{Cause, Finding};
use crate::condition::kind;
use crate::gang::{admission_checks, stuck};
use crate::plugin::gang::{condition, is_of, text};

/// Why Kueue has not admitted the job's Workload; or that the operator says it is queued.
pub fn findings(evidence: &Evidence) -> Vec<Finding> {
    let is_queued = evidence.phase() == Some(Phase::Queued);
    let condition = evidence.condition(kind::GANG_SCHEDULED, "False").filter(|_| is_queued);
    if let Some(missing) = condition.and_then(missing) {
        return vec![missing];
    }
    let workloads = evidence
        .gang
        .iter()
        .filter(|object| is_of(object, "kueue.x-k8s.io", "Workload"));
    let found: Vec<Finding> = workloads.filter_map(|object| workload(evidence, object)).collect();
    if !found.is_empty() || !is_queued {
        return found;
    }
    let queue = &evidence.job.spec.scheduling.queue;
    let words = condition.map(|condition| one_line(&condition.message));
    let what = match words.filter(|words| !words.is_empty()) {
        Some(words) => format!("The job waits in queue {queue:?}: {words}."),
        None => format!("The job waits in queue {queue:?}."),
    };
    let fix = match condition.map(|condition| condition.reason.as_str()) {
        Some(stuck::DEACTIVATED | stuck::WORKLOAD_FINISHED | "AdmissionCheck") => REFUSED,
        _ => WAIT,
    };
    vec![Finding::blocking(Cause::Queued, what, fix)]
}

/// What the job asks for and the cluster does not have. Until that is there no Workload of the job counts.
fn missing(condition: &Condition) -> Option<Finding> {
    let (cause, what, fix) = match condition.reason.as_str() {
        stuck::GANG_SCHEDULER_MISSING => (Cause::Gang, "The job's gang scheduler is missing", INSTALL),
        stuck::QUEUE_MISSING => (Cause::Queued, "The job names no queue", NAME_A_QUEUE),
        stuck::PRIORITY_CLASS_MISSING => (Cause::Queued, "The job's priority class is missing", MAKE_THE_CLASS),
        _ => return None,
    };
    let words = one_line(&condition.message);
    Some(Finding::blocking(cause, format!("{what}: {words}."), fix))
}

const INSTALL: &str = "install it, or set spec.scheduling.gang to auto or to one that the cluster has";

const NAME_A_QUEUE: &str = "suspend the job, set spec.scheduling.queue to a LocalQueue of this namespace (`kubectl get localqueues`), and resume it";

const MAKE_THE_CLASS: &str = "create the class, or correct spec.scheduling.priorityClassName, which may change at any time; the job is queued by itself then";

const WAIT: &str = "wait until others end, ask for fewer GPUs or engines, or have the queue's quota raised (`kubectl get clusterqueues -o wide`)";

const REFUSED: &str = "put right what is named, or ask whoever looks after the queue: `kubectl describe workloads.kueue.x-k8s.io` has all of it";

fn workload(evidence: &Evidence, workload: &DynamicObject) -> Option<Finding> {
    let queue = text(workload, "/spec/queueName");
    let name = workload.name_any();
    let blocking = |what: String, fix: &str| Some(Finding::blocking(Cause::Queued, what, fix));
    if let Some((reason, message)) = condition(workload, "Finished", "True") {
        // That of a job which runs on, or has ended itself, is no wait.
        if evidence.phase() != Some(Phase::Queued) {
            return None;
        }
        return blocking(
            format!(
                "Kueue's Workload {name} is finished ({reason}){}, so queue {queue:?} does not admit it any more.",
                said(message)
            ),
            &format!("delete it, and the operator makes another: `kubectl delete workloads.kueue.x-k8s.io {name}`"),
        );
    }
    if workload
        .data
        .pointer("/spec/active")
        .and_then(serde_json::Value::as_bool)
        == Some(false)
    {
        let why = deactivation(evidence, workload);
        let first = match why.is_some() {
            true => "put right what it says, then ",
            false => "",
        };
        return blocking(
            format!(
                "Kueue's Workload {name} is deactivated (spec.active: false), so queue {queue:?} does not admit it{}.",
                said(&why.unwrap_or_default())
            ),
            &format!("{first}{}", activate(&name)),
        );
    }
    if let Some((reason, message)) = condition(workload, "Evicted", "True") {
        let message = one_line(message);
        // What Kueue says of it since.
        let since = condition(workload, "QuotaReserved", "False").map(|(_, now)| one_line(now));
        let since = since.filter(|now| !now.is_empty() && *now != message);
        let since = since.map_or_else(String::new, |now| format!(" Queue {queue:?} says now: {now}."));
        return blocking(
            format!("Kueue evicted the job ({reason}): {message}.{since}"),
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
                "AdmissionCheck" => {
                    "wait: the admission check asked for another try, and Kueue queues the job again by itself"
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
        return Some(held_by_checks(workload, &queue));
    }
    blocking(
        format!("Kueue has not looked at Workload {name} in queue {queue:?} yet."),
        "is Kueue running? `kubectl get pods -n kueue-system`",
    )
}

fn held_by_checks(workload: &DynamicObject, queue: &str) -> Finding {
    let name = workload.name_any();
    let checks = admission_checks::unpassed(workload);
    let what = checks.unwrap_or_else(|| "an admission check of its ClusterQueue is not passed yet".into());
    let state = format!(
        "see the check's own state: `kubectl get workloads.kueue.x-k8s.io {name} -o yaml`, status.admissionChecks"
    );
    let fix = match admission_checks::is_rejected(workload) {
        true => format!(
            "put right what the check objects to; Kueue deactivates the Workload for it, so then {}",
            activate(&name)
        ),
        false => state,
    };
    Finding::blocking(
        Cause::Queued,
        format!("Queue {queue:?} has reserved quota; {what}."),
        fix,
    )
}

/// Why Kueue itself made a Workload inactive: the words of a check that rejected it are in an event alone, the check is reset.
fn deactivation(evidence: &Evidence, workload: &DynamicObject) -> Option<String> {
    let event = evidence.latest("Workload", &workload.name_any(), &["AdmissionCheckRejected"]);
    let rejected = event.and_then(|event| event.message.as_deref());
    let evicted = condition(workload, "Evicted", "True").filter(|(reason, _)| reason.starts_with("Deactivated"));
    let (reason, message) = evicted?;
    let words = match rejected.filter(|_| reason.ends_with("AdmissionCheck")) {
        Some(rejected) => one_line(rejected),
        None => one_line(message),
    };
    (!words.is_empty()).then_some(words)
}

fn activate(name: &str) -> String {
    format!(
        "set it active again: `kubectl patch workloads.kueue.x-k8s.io {name} --type merge -p '{{\"spec\":{{\"active\":true}}}}'`"
    )
}

/// A message to stand behind what it is of.
fn said(message: &str) -> String {
    match one_line(message) {
        words if words.is_empty() => words,
        words => format!(": {words}"),
    }
}
