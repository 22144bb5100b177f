use std::sync::Arc;

use ppo_crds::PpoJob;
use ppo_crds::status::RoleStatus;
use serde_json::{Value, json};

use super::*;
use crate::condition::{self, kind};
use crate::gang::Gang;
use crate::reports::Heard;
use crate::smallest_job::smallest_job;
use crate::world::{Children, Observed, PodView, SeenPod, World};

mod restarts;

/// When the job was made.
const MADE: i64 = 1_800_000_000;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(MADE + seconds).unwrap()
}

/// One actor and one engine, without the other roles.
fn job() -> Job {
    smallest_job(&json!({}))
}

fn actor(attempt: u32, status: Value) -> Arc<PodView> {
    let pod = json!({
        "metadata": {
            "name": "a-actor-0",
            "labels": {"ppojob.dev/role": "actor", "ppojob.dev/index": "0"},
            "annotations": {"ppojob.dev/attempt": attempt.to_string()},
            "ownerReferences": [{"apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "name": "a", "uid": "12345678-9",
                "controller": true}],
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
fn time_in_which_no_operator_acted_counts_towards_no_readiness_deadline() {
    let job = job();
    let limit = job.spec.run_policy.pre_running_deadline_seconds as i64;
    let back = 10 * limit;
    let seen = Snapshot {
        listening_since: at(back),
        ..empty(Vec::new())
    };
    // The last operator saw it short of pods, or wrote nothing of it yet.
    let unwritten = PpoJobStatus {
        conditions: Vec::new(),
        ..status(false, 60)
    };
    for known in [status(false, 60), unwritten] {
        let decision = decide(&job, &seen, &known, at(back));
        assert_eq!((decision.intent, decision.wake), (Intent::Run, Some(at(back + limit))));
        let late = decide(&job, &seen, &known, at(back + limit)).intent;
        assert!(matches!(late, Intent::Fail(_)), "{late:?}");
    }
    // Pods that it loses later have as long from then on.
    let lost = back + limit;
    let decision = decide(&job, &seen, &status(false, lost), at(lost + 1));
    assert_eq!((decision.intent, decision.wake), (Intent::Run, Some(at(lost + limit))));
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

#[test]
fn a_failed_actor_that_is_removed_before_its_successors_time_has_none_of_its_attempt() {
    let failed = |attempt: u32| {
        let ended = json!({"name": "worker", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 1, "message": "no space left"}}});
        actor(attempt, json!({"phase": "Failed", "containerStatuses": [ended]}))
    };
    let first = decide(&job(), &empty(vec![failed(1)]), &status(true, 60), at(100));
    assert_eq!(first.ledger.attempt_of(Role::Actor, 0), 2);
    let seen = empty(vec![failed(2)]);
    let waits = decide(&job(), &seen, &first.ledger.status, at(101));
    assert_eq!(
        (waits.ledger.attempt_of(Role::Actor, 0), waits.wake),
        (2, Some(at(110)))
    );
    assert!(waits.held.contains("a-actor-0"));
    let then = decide(&job(), &seen, &first.ledger.status, at(110));
    assert_eq!((then.ledger.attempt_of(Role::Actor, 0), then.held.len()), (3, 0));
}

#[test]
fn an_actor_that_went_while_no_operator_looked_is_succeeded_by_another_attempt() {
    let seen = empty(Vec::new());
    let with_ready = |ready: u32| {
        let mut status = status(true, 60);
        let mut actor = RoleStatus::started(Role::Actor);
        actor.ready = ready;
        status.roles = vec![actor];
        status
    };
    let decision = decide(&job(), &seen, &with_ready(1), at(100));
    assert_eq!(
        (
            decision.ledger.attempt_of(Role::Actor, 0),
            decision.ledger.status.restarts
        ),
        (2, 0)
    );
    let again = decide(&job(), &seen, &decision.ledger.status, at(101));
    assert_eq!(again.ledger.attempt_of(Role::Actor, 0), 2);
    // One that was never ready was perhaps never made.
    let decision = decide(&job(), &seen, &with_ready(0), at(100));
    assert_eq!(decision.ledger.attempt_of(Role::Actor, 0), 1);
}

/// One actor that runs, whose last report of these seconds without progress came so long ago.
fn heard(seconds_without_progress: f64, ago: i64) -> Snapshot {
    let report = json!({
        "job": "a", "attempt": 1, "stage": "rollout", "policyVersion": 3, "progress": {}, "waitingFor": "a-rollout-0",
        "secondsSinceProgress": seconds_without_progress,
    });
    let pod = |role: &str| {
        let pod = json!({
            "metadata": {
                "name": format!("a-{role}-0"), "labels": {"ppojob.dev/role": role, "ppojob.dev/index": "0"},
                "annotations": {"ppojob.dev/attempt": "1"},
                "ownerReferences": [{"apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "name": "a", "uid": "12345678-9",
                "controller": true}],
            },
            "spec": {"nodeName": "one"},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        });
        Arc::new(PodView::of(&serde_json::from_value::<SeenPod>(pod).unwrap()).unwrap())
    };
    let roles = ["actor", "rollout"].into_iter();
    let pods = roles.map(|role| (format!("a-{role}-0"), pod(role))).collect();
    let children = Children {
        pods,
        ..Children::default()
    };
    Snapshot {
        report: Some(Heard {
            report: serde_json::from_value(report).unwrap(),
            at: at(5000 - ago),
        }),
        ..Snapshot::plain(children, Gang::None, at(0))
    }
}

/// A job whose role has so many pods, and a world in which they all run.
fn with_pods(role: Role, count: u32) -> (Job, Snapshot) {
    let (mut job, mut seen) = (job(), heard(3.0, 5));
    let roles = job.roles.iter_mut().filter(|pods| pods.role == role);
    roles.for_each(|pods| pods.pods = count);
    let first = (*seen.children.pods[&format!("a-{}-0", role.name())]).clone();
    for index in 1..count {
        let name = format!("a-{}-{index}", role.name());
        insert(
            &mut seen,
            PodView {
                name,
                index,
                ..first.clone()
            },
        );
    }
    (job, seen)
}

fn insert(seen: &mut Snapshot, pod: PodView) {
    seen.children.pods.insert(pod.name.clone(), Arc::new(pod));
}

#[test]
fn a_run_hangs_by_its_own_word_and_not_by_silence() {
    let decision = decide(&job(), &heard(1801.0, 5), &status(true, 60), at(5000));
    assert_eq!(decision.ledger.status.restarts, 1);
    assert!(
        decision.notes[0].contains("waits for a-rollout-0"),
        "{:?}",
        decision.notes
    );
    let decision = decide(&job(), &heard(3.0, 3600), &status(true, 60), at(5000));
    assert_eq!((decision.intent, decision.ledger.status.restarts), (Intent::Run, 0));
}

#[test]
fn an_actor_that_waits_for_an_engine_that_is_not_there_does_not_hang() {
    let mut seen = heard(1801.0, 5);
    seen.children.pods.remove("a-rollout-0");
    let decision = decide(&job(), &seen, &status(true, 60), at(5000));
    assert_eq!((decision.intent, decision.ledger.status.restarts), (Intent::Run, 0));
    assert_eq!(decision.ledger.attempt_of(Role::Actor, 0), 1);
}

#[test]
fn pods_that_a_gang_scheduler_placed_run_on_when_it_is_removed() {
    let missing = Snapshot {
        admission: Admission::Missing("install Volcano".into()),
        ..heard(3.0, 5)
    };
    assert_eq!(
        decide(&job(), &missing, &status(true, 60), at(5000)).intent,
        Intent::Run
    );
    let not_begun = PpoJobStatus {
        active_since: None,
        ..status(false, 60)
    };
    let waits = decide(&job(), &missing, &not_begun, at(5000)).intent;
    assert!(matches!(waits, Intent::Queue(_)), "{waits:?}");
}

#[test]
fn a_rule_that_came_with_a_newer_operator_ends_no_job_that_has_begun() {
    let mut job = job();
    let mut spec = job.spec.clone();
    spec.prompts.source.path = Some("relative.jsonl".into());
    job.config = Job::of(&PpoJob::new("a", spec)).config;
    assert!(job.config.is_err());
    let mut seen = heard(3.0, 5);
    let refused = decide(&job, &seen, &PpoJobStatus::default(), at(5000)).intent;
    assert!(matches!(refused, Intent::Fail(_)), "{refused:?}");

    let config = kube::api::DynamicObject::new("a-config", &Kind::ConfigMap.resource());
    let key = (Kind::ConfigMap, "a-config".to_string());
    seen.children.objects.insert(key, Arc::new(config));
    let decision = decide(&job, &seen, &status(true, 60), at(5000));
    assert_eq!(decision.intent, Intent::Run);
    let status = crate::status::status(&job, &decision, &seen, at(5000));
    let accepted = condition::get(&status.conditions, kind::ACCEPTED).unwrap();
    assert_eq!(
        (accepted.status.as_str(), accepted.reason.as_str()),
        ("False", "NoLongerValid")
    );
    assert_eq!(status.phase, Some(ppo_crds::status::Phase::Running));
}

#[test]
fn engines_without_quota_are_named_and_a_job_that_ends_has_no_ready_pods() {
    let mut job = job();
    job.roles
        .iter_mut()
        .filter(|role| role.role == Role::Rollout)
        .for_each(|role| role.pods = 4);
    let place = crate::gang::Place {
        count: 1,
        ..Default::default()
    };
    let seen = Snapshot {
        admission: Admission::Admitted([(Role::Rollout, place)].into()),
        ..heard(3.0, 5)
    };
    let decision = decide(&job, &seen, &status(true, 60), at(5000));
    let runs = crate::status::status(&job, &decision, &seen, at(5000));
    let engines = runs.roles.iter().find(|role| role.name == Role::Rollout).unwrap();
    assert_eq!(
        (engines.reason.as_str(), runs.ready.as_deref()),
        ("QuotaForFewer", Some("2/5"))
    );
    assert!(
        engines.message.starts_with("Kueue admitted 1 of 4 engines"),
        "{}",
        engines.message
    );

    let ends = Decision {
        intent: Intent::Complete(Truth::yes("Completed", "")),
        ..decision
    };
    let over = crate::status::status(&job, &ends, &seen, at(5000));
    assert_eq!(over.ready.as_deref(), Some("0/5"));
}

#[test]
fn engines_that_were_scaled_away_and_are_wanted_again_before_they_are_gone_have_not_failed() {
    let rules = json!([{"action": "FailJob", "reasons": ["Deleted"]}]);
    let with_engines = |engines: u32| {
        let mut job = job();
        job.spec.failure_policy.rules = serde_json::from_value(rules.clone()).unwrap();
        let roles = job.roles.iter_mut();
        roles
            .filter(|role| role.role == Role::Rollout)
            .for_each(|role| role.pods = engines);
        job
    };
    let mut seen = heard(3.0, 5);
    let engine = PodView {
        name: "a-rollout-1".into(),
        index: 1,
        ..(*seen.children.pods["a-rollout-0"]).clone()
    };
    insert(&mut seen, engine.clone());
    let fewer = decide(&with_engines(1), &seen, &status(true, 60), at(5000));
    assert_eq!(fewer.ledger.attempt_of(Role::Rollout, 1), 2);
    assert_eq!(fewer.ledger.role(Role::Rollout).unwrap().last_restart_time, None);

    let going = PodView {
        deleting_since: Some(at(5030)),
        ..engine
    };
    insert(&mut seen, going);
    let more = decide(&with_engines(2), &seen, &fewer.ledger.status, at(5001));
    assert_eq!((more.intent, more.notes.len()), (Intent::Run, 0));
    assert_eq!(more.ledger.attempt_of(Role::Rollout, 1), 2);
    // One that is deleted while it is wanted is another matter.
    let failed = decide(&with_engines(2), &seen, &status(true, 60), at(5001)).intent;
    assert!(matches!(failed, Intent::Fail(_)), "{failed:?}");
}

#[test]
fn pods_whose_token_is_gone_all_come_anew_and_once() {
    let seen = Snapshot {
        token_lost: true,
        ..heard(3.0, 5)
    };
    let decision = decide(&job(), &seen, &status(true, 60), at(5000));
    assert_eq!(decision.ledger.attempt_of(Role::Rollout, 0), 2);
    assert_eq!(decision.ledger.status.restarts, 0);
    assert!(decision.notes[0].contains("Secret a-token"), "{:?}", decision.notes);
    // Those that are left are of the attempt before.
    let again = decide(&job(), &seen, &decision.ledger.status, at(5001));
    assert_eq!((again.ledger.status.attempt, again.notes.len()), (2, 0));
}

#[test]
fn what_the_api_server_refuses_is_why_pods_are_missing() {
    let refusal = "creating Pod a-actor-0: exceeded quota: gpus";
    let seen = Snapshot {
        refused: Some(refusal.into()),
        ..empty(Vec::new())
    };
    let job = job();
    let decision = decide(&job, &seen, &status(false, 0), at(1));
    let waits = crate::status::status(&job, &decision, &seen, at(1));
    for kind in [kind::GANG_SCHEDULED, kind::ROLES_READY] {
        let condition = condition::get(&waits.conditions, kind).unwrap();
        assert!(condition.message.contains(refusal), "{condition:?}");
    }
    let limit = job.spec.run_policy.pre_running_deadline_seconds as i64;
    let Intent::Fail(why) = decide(&job, &seen, &status(false, 0), at(limit)).intent else {
        panic!("it has not failed");
    };
    assert!(why.message.contains(refusal), "{}", why.message);
}

#[test]
fn a_job_whose_pod_no_node_takes_ends_with_the_kubelets_words() {
    let refused = actor(
        1,
        json!({"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices"}),
    );
    let mut seen = empty(Vec::new());
    seen.children.pods.insert(refused.name.clone(), refused);
    let job = job();
    let limit = job.spec.run_policy.pre_running_deadline_seconds as i64;
    let Intent::Fail(why) = decide(&job, &seen, &status(false, 0), at(limit)).intent else {
        panic!("it has not failed");
    };
    assert_eq!(why.reason, "NotRunningInTime");
    assert!(why.message.contains("no healthy devices"), "{}", why.message);
}

#[test]
fn an_actor_that_ended_well_for_a_reason_that_only_a_newer_worker_knows_has_completed() {
    let words = r#"{"reason": "Converged", "message": "nothing is left to learn"}"#;
    let ended = json!({"name": "worker", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"terminated": {"exitCode": 0, "message": words}}});
    let done = actor(1, json!({"phase": "Succeeded", "containerStatuses": [ended]}));
    let mut seen = empty(Vec::new());
    seen.children.pods.insert(done.name.clone(), done);
    let intent = decide(&job(), &seen, &status(true, 60), at(100)).intent;
    let Intent::Complete(why) = intent else {
        panic!("{intent:?}");
    };
    assert_eq!(why.message, "nothing is left to learn");
}

#[test]
fn an_actor_that_was_deleted_in_its_last_step_and_is_gone_with_its_end_has_completed_the_job() {
    let words = r#"{"reason": "Completed", "message": "all 9 steps are made"}"#;
    let ended = json!({"name": "worker", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"terminated": {"exitCode": 0, "message": words}}});
    let done = actor(1, json!({"phase": "Succeeded", "containerStatuses": [ended]}));
    let mut suspended = job();
    suspended.spec.run_policy.suspend = true;
    let seen = empty(vec![done]);
    for (job, why) in [(job(), "runPolicy.suspend is false"), (suspended, "the job has ended")] {
        let decision = decide(&job, &seen, &status(true, 60), at(100));
        assert_eq!(
            decision.intent,
            Intent::Complete(Truth::yes("Completed", "all 9 steps are made"))
        );
        let over = crate::status::status(&job, &decision, &seen, at(100));
        let suspended = condition::get(&over.conditions, kind::SUSPENDED).unwrap();
        assert_eq!((suspended.status.as_str(), suspended.message.as_str()), ("False", why));
    }
    // Of an attempt that is over it says nothing.
    let mut second = RoleStatus::started(Role::Actor);
    second.attempt = 2;
    let mut later = status(true, 60);
    later.roles = vec![second];
    assert_eq!(decide(&job(), &seen, &later, at(100)).intent, Intent::Run);
}

#[test]
fn a_rank_that_ends_before_the_first_has_done_its_part_and_the_job_still_runs() {
    let (mut job, mut seen) = with_pods(Role::Actor, 2);
    job.roles.iter_mut().for_each(|role| role.floor = role.pods);
    let done = PodView {
        life: Life::Succeeded,
        exit_code: Some(0),
        ..(*seen.children.pods["a-actor-1"]).clone()
    };
    insert(&mut seen, done);
    let decision = decide(&job, &seen, &status(true, 60), at(5000));
    let runs = crate::status::status(&job, &decision, &seen, at(5000));
    assert_eq!(
        (runs.phase, runs.ready.as_deref()),
        (Some(ppo_crds::status::Phase::Running), Some("3/3"))
    );
}

#[test]
fn a_job_that_is_suspended_before_its_first_status_is_written_goes_on_under_another_attempt() {
    let mut suspended = job();
    suspended.spec.run_policy.suspend = true;
    let running = heard(3.0, 5);
    // Of pods that were made a moment ago no watch has told yet.
    let mut made = empty(Vec::new());
    made.expected.insert((Kind::Pod, "a-actor-0".into()), None);
    for seen in [running, made] {
        let paused = decide(&suspended, &seen, &PpoJobStatus::default(), at(5000));
        assert_eq!(
            (&paused.intent, paused.ledger.status.active_seconds),
            (&Intent::Suspend, 1)
        );
        let again = decide(&suspended, &seen, &paused.ledger.status, at(5001));
        assert_eq!(again.ledger.status.active_seconds, 1);
        let resumed = decide(&job(), &seen, &again.ledger.status, at(5002));
        assert_eq!((resumed.ledger.status.attempt, resumed.notes.len()), (2, 0));
        assert_eq!(resumed.ledger.attempt_of(Role::Actor, 0), 2);
    }
}

#[test]
fn a_job_that_was_made_suspended_begins_with_its_first_attempt() {
    let mut suspended = job();
    suspended.spec.run_policy.suspend = true;
    let waits = decide(&suspended, &empty(Vec::new()), &PpoJobStatus::default(), at(0));
    assert_eq!(waits.ledger.status.active_seconds, 0);
    let begins = decide(&job(), &empty(Vec::new()), &waits.ledger.status, at(60));
    assert_eq!((begins.intent, begins.ledger.status.attempt), (Intent::Run, 1));
}

#[test]
fn a_job_that_waits_for_quota_with_pods_of_which_nothing_is_written_goes_on_under_another_attempt() {
    let waiting = Snapshot {
        admission: Admission::Waiting {
            reason: "Pending".into(),
            message: "no quota".into(),
        },
        ..heard(3.0, 5)
    };
    let waits = decide(&job(), &waiting, &PpoJobStatus::default(), at(5000));
    assert_eq!(waits.ledger.status.active_seconds, 1);
    let admitted = decide(&job(), &heard(3.0, 5), &waits.ledger.status, at(5001));
    assert_eq!(admitted.ledger.status.attempt, 2);
}
