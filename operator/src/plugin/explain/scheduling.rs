//! Pods that do not exist, or have no node.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use ppo_crds::spec::Role;
use ppo_crds::status::Phase;

use super::evidence::{Evidence, one_line, time};
use super::finding::{Cause, Finding};
use super::{autoscaler, edited, remedy};
use crate::gang::ATTENTION_SECONDS;
use crate::plugin::{age, pods};
use crate::status::QUOTA_FOR_FEWER;
use crate::world::Kind;

/// Seconds in which an operator makes its pods.
const PODS_MADE_WITHIN: i64 = 30;
/// Seconds in which what is refused is tried again, and told again.
const REFUSED_AGAIN_WITHIN: i64 = 180;
/// On a pod that Kueue's own integration of pods queues (Kueue's pkg/constants/constants.go).
const QUEUED_BY_KUEUE: &str = "kueue.x-k8s.io/managed";
/// The queue that it waits in.
const QUEUE_OF_KUEUE: &str = "kueue.x-k8s.io/queue-name";

/// Pods that are missing, and pods without a node.
pub fn findings(evidence: &Evidence, now: Timestamp) -> Vec<Finding> {
    let mut findings: Vec<Finding> = missing(evidence, now).into_iter().collect();
    let waiting = evidence
        .living()
        .filter(|pod| pods::node(pod).is_none() && pods::phase(pod) != "Failed");
    let told = waiting.filter_map(|pod| {
        let finding = unscheduled(evidence, pod, now)?;
        Some((finding.of_pod(&pod.name_any()), autoscaler::word(evidence, pod)))
    });
    findings.extend(autoscaler::tell(told, now));
    findings
}

/// Roles with fewer pods than wanted. Not while old ones go: their successors have the same names.
fn missing(evidence: &Evidence, now: Timestamp) -> Option<Finding> {
    if evidence.living().count() < evidence.pods.len() || evidence.phase().is_none() {
        return None;
    }
    let status = evidence.status();
    let short: Vec<String> = status
        .roles
        .iter()
        .filter_map(|role| {
            let exist = evidence.of_role(role.name).count();
            let wanted = role.desired as usize;
            // Those that a queue has not admitted are not to exist.
            let admitted = role.reason != QUOTA_FOR_FEWER;
            (exist < wanted && admitted).then(|| format!("{} of {wanted} {} pods", wanted - exist, role.name.name()))
        })
        .collect();
    if short.is_empty() {
        return None;
    }
    if let Some(words) = refused(evidence, now).filter(|words| !is_of_budget(words)) {
        let fix = remedy::of_creation(words);
        return Some(Finding::blocking(
            Cause::PodsMissing,
            format!("{} cannot be created: {}.", short.join(", "), one_line(words)),
            role_of(words, evidence).map_or(fix.clone(), |role| edited::of_role(&fix, role)),
        ));
    }
    let since = status
        .active_since
        .as_ref()
        .or(evidence.job.metadata.creation_timestamp.as_ref())?
        .0;
    // Pods are made after the gang's object, and not at all when the scheduler asked for is missing.
    let waiting =
        matches!(evidence.phase(), Some(Phase::Restarting)) || evidence.condition("GangScheduled", "False").is_some();
    (age::seconds_since(since, now) > PODS_MADE_WITHIN && !waiting).then(|| {
        Finding::blocking(
            Cause::PodsMissing,
            format!("{} do not exist.", short.join(", ")),
            "look at the operator's log, which says what it tried: `kubectl logs -A -l app.kubernetes.io/name=ppo-operator`",
        )
    })
}

/// The role of the pod that is refused, by its name in the words.
fn role_of(words: &str, evidence: &Evidence) -> Option<Role> {
    let job = evidence.name();
    Role::ALL
        .into_iter()
        .find(|role| words.contains(&format!("{job}-{}-", role.name())))
}

/// What the API server refuses of what the job needs, while it does.
pub fn refused(evidence: &Evidence, now: Timestamp) -> Option<&str> {
    let event = evidence.latest("PpoJob", &evidence.name(), &["Refused"])?;
    let lasts = time(event).is_none_or(|at| age::seconds_since(at, now) <= REFUSED_AGAIN_WITHIN);
    event.message.as_deref().filter(|_| lasts)
}

/// Whether that is the disruption budget, for which no pod waits.
pub fn is_of_budget(refused: &str) -> bool {
    refused.contains(Kind::PodDisruptionBudget.name())
}

fn unscheduled(evidence: &Evidence, pod: &Pod, now: Timestamp) -> Option<Finding> {
    let cause = match evidence.gang.is_empty() {
        true => Cause::Unscheduled,
        false => Cause::Gang,
    };
    let scheduler = pods::scheduler(pod);
    if let Some((reason, message)) = pods::condition(pod, "PodScheduled", "False") {
        if reason == "SchedulingGated" && pod.labels().contains_key(QUEUED_BY_KUEUE) {
            let queue = pod.labels().get(QUEUE_OF_KUEUE).map(String::as_str).unwrap_or_default();
            return Some(Finding::blocking(
                Cause::Queued,
                format!(
                    "Kueue's own integration of pods has taken the pod for a job by itself, and holds it back until queue {queue:?} \
                     has quota for it too."
                ),
                remedy::OF_PODS_QUEUED_TWICE,
            ));
        }
        if reason == "SchedulingGated" {
            return Some(Finding::blocking(
                cause,
                format!("Scheduling gates hold the pod back: {}.", gates(pod)),
                "whoever set the gates removes them; Kueue does so when it admits the job",
            ));
        }
        let words = one_line(message);
        let fix = remedy::of_scheduling(&words, evidence);
        let what = match cause {
            Cause::Gang => format!("The gang gets no nodes; {scheduler} says: {words}."),
            _ => format!("No node takes the pod; {scheduler} says: {words}."),
        };
        return Some(Finding::blocking(cause, what, fix));
    }
    let age = age::seconds_since(pod.metadata.creation_timestamp.as_ref()?.0, now);
    (age > ATTENTION_SECONDS).then(|| {
        let queue = remedy::of_volcanos_queue(evidence).map(|queue| format!("; {queue}"));
        Finding::blocking(
            cause,
            format!("The scheduler {scheduler} has not looked at the pod since it was created."),
            format!(
                "is {scheduler} running? Or suspend the job, set spec.scheduling.gang to a scheduler that this cluster has, or to none, \
                 and resume it{}",
                queue.unwrap_or_default()
            ),
        )
    })
}

fn gates(pod: &Pod) -> String {
    let gates = pod.spec.iter().flat_map(|spec| spec.scheduling_gates.iter().flatten());
    gates.map(|gate| gate.name.as_str()).collect::<Vec<_>>().join(", ")
}
