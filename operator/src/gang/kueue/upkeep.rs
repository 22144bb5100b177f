//! What Kueue expects of the owner of a Workload: quota back after an eviction, word of readiness, word of the end.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use kube::api::DynamicObject;
use ppo_crds::spec::{CleanPodPolicy, Role};
use ppo_crds::status::Phase;
use serde_json::{Value, json};

use super::admission::{asked, assignments, reclaimed};
use super::conditions::{
    ADMITTED, Change, EVICTED, FINISHED, PODS_READY, QUOTA_RESERVED, REQUEUED, get, holds, patch, since, words,
};
use super::lookups::Priority;
use super::workload;
use crate::gang::admission::Admission;
use crate::gang::upkeep::Upkeep;
use crate::job::Job;
use crate::lifecycle::decision::{Decision, Intent};
use crate::plan::action::Action;
use crate::snapshot::Snapshot;
use crate::world::Kind;

/// Evictions after which a Workload may be admitted again at once (`reconciler.go` of Kueue's job framework); after the
/// others Kueue says when.
const REQUEUED_AT_ONCE: [&str; 2] = ["Preempted", "NodeFailures"];

/// Reason of pods that are not ready yet: Kueue counts from the admission.
const WAIT_FOR_START: &str = "WaitForStart";
/// Reason of pods that were ready: Kueue counts from their loss.
const WAIT_FOR_RECOVERY: &str = "WaitForRecovery";

/// Between two looks for a priority class that is not there: nothing tells when it is made.
const LOOK_FOR_CLASS_SECONDS: i64 = 30;

/// The status writes that are due, and when to look for what nobody tells of.
pub fn upkeep(job: &Job, decision: &Decision, seen: &Snapshot, now: Timestamp) -> Upkeep {
    let workload = workload::observed(job, &seen.children).filter(|workload| !holds(workload, FINISHED));
    let wake = class_is_awaited(decision, seen)
        .then(|| now.checked_add(SignedDuration::from_secs(LOOK_FOR_CLASS_SECONDS)).ok())
        .flatten();
    let Some(workload) = workload else {
        return Upkeep {
            actions: Vec::new(),
            wake,
        };
    };
    let change = match &decision.intent {
        Intent::Complete(_) | Intent::Fail(_) | Intent::Ended => finish(job, decision, seen, workload, now),
        Intent::Suspend | Intent::Queue(_) => release(job, seen, workload, now),
        Intent::Run => ready(job, decision, seen, workload, now).or_else(|| reclaim(job, seen, workload)),
    };
    let write = |patch| Action::MergeStatus(Kind::KueueWorkload, workload.name_any(), patch);
    Upkeep {
        actions: change.map(write).into_iter().collect(),
        wake,
    }
}

fn class_is_awaited(decision: &Decision, seen: &Snapshot) -> bool {
    matches!(decision.intent, Intent::Queue(_)) && seen.lookups.priority == Some(Priority::NoSuchClass)
}

/// The job is over and its GPUs are free: the next one may have the quota.
fn finish(job: &Job, decision: &Decision, seen: &Snapshot, workload: &DynamicObject, now: Timestamp) -> Option<Value> {
    let pods_go = job.spec.run_policy.clean_pod_policy != CleanPodPolicy::None;
    if pods_go && seen.pods(job).any(|pod| pod.alive) {
        return None;
    }
    let succeeded = match &decision.intent {
        Intent::Complete(_) => true,
        Intent::Fail(_) => false,
        _ => decision.ledger.status.phase == Some(Phase::Succeeded),
    };
    let (reason, message) = match succeeded {
        true => ("Succeeded", "the PpoJob has succeeded"),
        false => ("Failed", "the PpoJob has failed"),
    };
    let finished = Change {
        kind: FINISHED,
        holds: true,
        reason,
        message,
    };
    Some(patch(workload, &[finished], json!({}), now))
}

/// Evicted, and the pods are gone: the quota stays taken until the owner says so (`UnsetQuotaReservationWithCondition`).
fn release(job: &Job, seen: &Snapshot, workload: &DynamicObject, now: Timestamp) -> Option<Value> {
    let evicted = holds(workload, EVICTED) && holds(workload, QUOTA_RESERVED);
    if !evicted || seen.pods(job).next().is_some() {
        return None;
    }
    let (reason, message) = words(workload, EVICTED);
    let no = |kind, reason, message| Change {
        kind,
        holds: false,
        reason,
        message,
    };
    let mut changes = vec![
        no(QUOTA_RESERVED, "Pending", message.as_str()),
        no(ADMITTED, "NoReservation", "The workload has no reservation"),
        Change {
            kind: REQUEUED,
            holds: REQUEUED_AT_ONCE.contains(&reason.as_str()),
            reason: &reason,
            message: &message,
        },
    ];
    // Whether it holds or not: `waitForPodsReady` counts by the reason (`admittedNotReadyWorkload` of Kueue's workload controller), and
    // with the one of lost pods from when they were lost, through the next admission.
    if get(workload, PODS_READY).is_some() {
        changes.push(no(PODS_READY, WAIT_FOR_START, "the pods are gone"));
    }
    // Its place, and what was given back of it, go together.
    Some(patch(
        workload,
        &changes,
        json!({"admission": null, "reclaimablePods": null}),
        now,
    ))
}

/// `waitForPodsReady` evicts a Workload that does not say so in time.
fn ready(job: &Job, decision: &Decision, seen: &Snapshot, workload: &DynamicObject, now: Timestamp) -> Option<Value> {
    let (ready, said) = (seen.roles_ready(job, &decision.ledger), holds(workload, PODS_READY));
    let recovers = words(workload, PODS_READY).0 == WAIT_FOR_RECOVERY;
    // The pods were those of an admission before this one: Kueue, too, may take quota back without waiting for its owner.
    let of_before = recovers && since(workload, ADMITTED) > since(workload, PODS_READY);
    let (reason, message) = match (ready, said) {
        (true, false) if recovers => ("Recovered", "every role has the ready pods it needs again"),
        (true, false) => ("Started", "every role has the ready pods it needs"),
        (false, true) => (WAIT_FOR_RECOVERY, "pods were lost and are being replaced"),
        (false, false) if of_before => (WAIT_FOR_START, "the pods are being made"),
        _ => return None,
    };
    let change = Change {
        kind: PODS_READY,
        holds: ready,
        reason,
        message,
    };
    Some(patch(workload, &[change], json!({}), now))
}

/// Engines that were scaled away: their quota is free once their pods are gone. Kueue does not take it back: a later scale up
/// waits for the next admission.
fn reclaim(job: &Job, seen: &Snapshot, workload: &DynamicObject) -> Option<Value> {
    let Admission::Admitted(_) = &seen.admission else {
        return None;
    };
    let name = Role::Rollout.name();
    let wanted = job.role(Role::Rollout)?;
    let assigned = assignments(workload).find(|assigned| assigned["name"] == name)?;
    let assigned = u32::try_from(assigned["count"].as_u64()?).ok()?;
    let free = asked(workload, name).saturating_sub(wanted.pods);
    let leaving = seen
        .pods(job)
        .any(|pod| pod.role == Role::Rollout && pod.index >= wanted.pods);
    if wanted.pods >= assigned || free <= reclaimed(workload, name) || leaving {
        return None;
    }
    let version = workload.resource_version();
    Some(json!({
        "metadata": {"resourceVersion": version},
        "status": {"reclaimablePods": [{"name": name, "count": free}]},
    }))
}

#[cfg(test)]
mod tests;
