//! Pods that have to be deleted: those of an older attempt, those no longer wanted, those stuck on a lost node.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use ppo_crds::spec::{CleanPodPolicy, Role};

use super::action::{Action, Target};
use crate::gang::upkeep::Upkeep;
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
        Intent::Run => !seen.wants(job, pod) || pod.attempt != decision.ledger.attempt_of(pod.role, pod.index),
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ppo_crds::status::PpoJobStatus;
    use serde_json::json;

    use super::*;
    use crate::gang::Gang;
    use crate::ledger::Ledger;
    use crate::smallest_job::smallest_job;
    use crate::world::{Children, SeenPod};

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    /// A world with the job's engine, on the node `one`.
    fn seen(deletion: Option<Timestamp>, phase: &str) -> Snapshot {
        let pod = json!({
            "metadata": {
                "name": "a-rollout-0", "deletionTimestamp": deletion.map(|time| time.to_string()),
                "labels": {"ppojob.dev/role": "rollout", "ppojob.dev/index": "0"},
                "ownerReferences": [{"apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "name": "a", "uid": "12345678-9",
                    "controller": true}],
            },
            "spec": {"nodeName": "one"}, "status": {"phase": phase},
        });
        let pod = PodView::of(&serde_json::from_value::<SeenPod>(pod).unwrap()).unwrap();
        let mut children = Children::default();
        children.pods.insert(pod.name.clone(), Arc::new(pod));
        Snapshot::plain(children, Gang::None, at(0))
    }

    /// The grace of each deletion, and when to look again.
    fn done(job: &Job, intent: Intent, seen: &Snapshot, now: i64) -> (Vec<Option<u32>>, Option<Timestamp>) {
        let decision = Decision::of(Ledger::open(&PpoJobStatus::default(), job), intent);
        let upkeep = pods(job, &decision, seen, at(now));
        let graces = upkeep.actions.iter().map(|action| match action {
            Action::Delete(target) if target.kind == Kind::Pod && target.name == "a-rollout-0" => target.grace_seconds,
            other => panic!("{other:?}"),
        });
        (graces.collect(), upkeep.wake)
    }

    #[test]
    fn a_pod_is_deleted_by_force_only_on_a_lost_node_and_half_a_minute_after_its_grace() {
        let job = smallest_job(&json!({}));
        let mut seen = seen(Some(at(1000)), "Running");
        let look = |seen: &Snapshot, now: i64| done(&job, Intent::Suspend, seen, now);
        // Its processes may still be saving what they have.
        let hour_late = look(&seen, 1000 + 3600);
        assert_eq!(hour_late, (vec![], Some(at(1000 + 3600 + 30))), "the node is well");
        seen.lost_nodes.insert("two".into());
        assert!(look(&seen, 1031).0.is_empty(), "another node is lost");
        seen.lost_nodes.insert("one".into());
        assert_eq!(look(&seen, 1029), (vec![], Some(at(1030))));
        assert_eq!(look(&seen, 1031), (vec![Some(0)], None));
    }

    #[test]
    fn of_a_job_that_has_ended_those_pods_go_that_its_policy_names() {
        let going = |policy: &str, phase: &str| {
            let job = smallest_job(&json!({"runPolicy": {"cleanPodPolicy": policy}}));
            let (graces, _) = done(&job, Intent::Ended, &seen(None, phase), 0);
            assert!(graces.iter().all(Option::is_none), "{policy}: never by force");
            !graces.is_empty()
        };
        for (policy, running, finished) in [("All", true, true), ("Running", true, false), ("None", false, false)] {
            let goes = (going(policy, "Running"), going(policy, "Failed"));
            assert_eq!(goes, (running, finished), "{policy}");
        }
    }
}
