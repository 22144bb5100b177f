//! Pods that have to be deleted: those of an older attempt, those no longer wanted, those stuck on a lost node.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use ppo_crds::spec::{CleanPodPolicy, Role};

use super::{Action, Target};
use crate::gang::Upkeep;
use crate::job::Job;
use crate::lifecycle::{Decision, Intent};
use crate::snapshot::Snapshot;
use crate::world::{Kind, PodView};

/// Beyond its grace period a terminating pod's node is looked at after so many seconds.
const HANGS_AFTER_SECONDS: i64 = 30;

/// And again after so long, while it hangs.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_secs(30);

/// Deletions of pods, and when to look again.
pub fn pods(job: &Job, decision: &Decision, seen: &Snapshot, now: Timestamp) -> Upkeep {
    let mut upkeep = Upkeep::default();
    let actors_save = actors_save_first(job, decision, seen);
    for pod in seen.pods(job) {
        if pod.deleting_since.is_none() {
            let waits_for_actor = actors_save && pod.role != Role::Actor;
            if !waits_for_actor && unwanted(job, decision, seen, pod) {
                upkeep.actions.push(delete(pod, None));
            }
            continue;
        }
        let Some(hangs_at) = hangs_at(pod) else { continue };
        if hangs_at <= now && pod.node.as_ref().is_some_and(|node| seen.lost_nodes.contains(node)) {
            // Its processes cannot be asked to stop. Should they still run, their attempt is old: they are refused.
            upkeep.actions.push(delete(pod, Some(0)));
            continue;
        }
        // Nothing tells when its node is lost.
        let again = Some(hangs_at).filter(|due| *due > now);
        let again = again.or_else(|| now.checked_add(LOOK_AGAIN).ok());
        upkeep.wake = upkeep.wake.into_iter().chain(again).min();
    }
    upkeep
}

/// When a terminating pod counts as hanging.
pub fn hangs_at(pod: &PodView) -> Option<Timestamp> {
    // deletionTimestamp already includes the grace period.
    pod.deleting_since?
        .checked_add(SignedDuration::from_secs(HANGS_AFTER_SECONDS))
        .ok()
}

/// A checkpoint first: while an actor pod is there to save its state, the other roles stay.
fn actors_save_first(job: &Job, decision: &Decision, seen: &Snapshot) -> bool {
    let leaving = matches!(decision.intent, Intent::Suspend | Intent::Queue(_));
    leaving && seen.pods(job).any(|pod| pod.role == Role::Actor && pod.alive)
}

fn unwanted(job: &Job, decision: &Decision, seen: &Snapshot, pod: &PodView) -> bool {
    match decision.intent {
        Intent::Run => {
            let wanted = job.role(pod.role).is_some_and(|role| pod.index < seen.count(role));
            !wanted || pod.attempt != decision.ledger.attempt_of(pod.role, pod.index)
        }
        Intent::Suspend | Intent::Queue(_) => true,
        Intent::Complete(_) | Intent::Fail(_) | Intent::Ended => match job.spec.run_policy.clean_pod_policy {
            CleanPodPolicy::All => true,
            CleanPodPolicy::Running => pod.alive,
            CleanPodPolicy::None => false,
        },
    }
}

fn delete(pod: &PodView, grace_seconds: Option<u32>) -> Action {
    Action::Delete(Target {
        kind: Kind::Pod,
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        resource_version: Some(pod.resource_version.clone()),
        grace_seconds,
    })
}
