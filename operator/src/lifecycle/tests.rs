use std::sync::Arc;

use ppo_crds::PpoJob;
use serde_json::{Value, json};

use super::*;
use crate::gang::Gang;
use crate::world::{Children, SeenPod};

/// When the job was made.
const MADE: i64 = 1_800_000_000;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(MADE + seconds).unwrap()
}

/// One actor and one engine, without the other roles.
fn job() -> Job {
    let object = json!({
        "apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob",
        "metadata": {"name": "a", "namespace": "n", "uid": "12345678-9", "generation": 1},
        "spec": {
            "model": {"policy": {"path": "/m"}}, "prompts": {"source": {"path": "/p"}},
            "algorithm": {"kl": {"coef": 0.0}},
            "roles": {"reward": {"rules": [{"json": {}}]}},
        },
    });
    Job::of(&serde_json::from_value::<PpoJob>(object).unwrap())
}

fn actor(attempt: u32, status: Value) -> Arc<PodView> {
    let pod = json!({
        "metadata": {
            "name": "a-actor-0",
            "labels": {"ppojob.dev/role": "actor", "ppojob.dev/index": "0"},
            "annotations": {"ppojob.dev/attempt": attempt.to_string()},
            "ownerReferences": [{"apiVersion": "v1", "kind": "PpoJob", "name": "a", "uid": "12345678-9", "controller": true}],
        },
        "spec": {"nodeName": "one"}, "status": status,
    });
    Arc::new(PodView::of(&serde_json::from_value::<SeenPod>(pod).unwrap()).unwrap())
}

fn running(attempt: u32) -> Arc<PodView> {
    actor(
        attempt,
        json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}),
    )
}

/// A world without pods, of which these have vanished.
fn empty(vanished: Vec<Arc<PodView>>) -> Snapshot {
    Snapshot {
        vanished,
        ..Snapshot::plain(Children::default(), Gang::None, at(0))
    }
}

/// The status of a job that wants its pods since it was made and had them all, or none, since `since`.
fn status(ready: bool, since: i64) -> PpoJobStatus {
    let condition = json!({
        "type": "RolesReady", "status": if ready { "True" } else { "False" }, "reason": "x", "message": "",
        "lastTransitionTime": at(since).to_string(),
    });
    serde_json::from_value(json!({"activeSince": at(0).to_string(), "conditions": [condition]})).unwrap()
}

#[test]
fn a_job_that_loses_its_pods_after_hours_has_as_long_to_get_them_back_as_at_first() {
    let (job, seen) = (job(), empty(Vec::new()));
    let limit = job.spec.run_policy.pre_running_deadline_seconds as i64;
    let lost = 10 * limit;
    // The look that first misses them, which the status has not heard of.
    let decision = decide(&job, &seen, &status(true, 60), at(lost));
    assert_eq!((decision.intent, decision.wake), (Intent::Run, Some(at(lost + limit))));
    let decision = decide(&job, &seen, &status(false, lost), at(lost + limit - 1));
    assert_eq!(decision.intent, Intent::Run);
    let decision = decide(&job, &seen, &status(false, lost), at(lost + limit));
    let Intent::Fail(why) = decision.intent else {
        panic!("{:?}", decision.intent);
    };
    assert_eq!(why.reason, "NotRunningInTime");
}

#[test]
fn one_that_never_had_its_pods_has_them_by_the_deadline_or_fails() {
    let (job, seen) = (job(), empty(Vec::new()));
    let limit = job.spec.run_policy.pre_running_deadline_seconds as i64;
    assert_eq!(
        decide(&job, &seen, &status(false, 0), at(limit - 1)).intent,
        Intent::Run
    );
    let late = decide(&job, &seen, &status(false, 0), at(limit)).intent;
    assert!(matches!(late, Intent::Fail(_)), "{late:?}");
}

#[test]
fn an_actor_that_is_gone_without_an_end_is_succeeded_by_another_attempt_which_does_not_count() {
    let decision = decide(&job(), &empty(vec![running(1)]), &status(true, 60), at(100));
    assert_eq!(decision.ledger.attempt_of(Role::Actor, 0), 2);
    assert_eq!(decision.ledger.status.restarts, 0);
    assert!(decision.notes[0].contains("by force"), "{:?}", decision.notes);
    // Its successor was not made yet: that is no other end.
    let again = decide(&job(), &empty(vec![running(1)]), &decision.ledger.status, at(101));
    assert_eq!(again.ledger.attempt_of(Role::Actor, 0), 2);
}

#[test]
fn one_that_failed_and_was_removed_at_once_has_failed() {
    let failed = actor(
        1,
        json!({"phase": "Failed", "containerStatuses": [
            {"name": "worker", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
             "state": {"terminated": {"exitCode": 1, "message": "no space left"}}},
        ]}),
    );
    let decision = decide(&job(), &empty(vec![failed]), &status(true, 60), at(100));
    assert_eq!(decision.ledger.status.restarts, 1);
    assert!(decision.notes[0].contains("no space left"), "{:?}", decision.notes);
}
