//! The conditions of a job, and their words.

use k8s_openapi::jiff::Timestamp;
use ppo_crds::spec::Role;
use ppo_crds::validate::lost_with_pods;

use crate::condition::{Truth, get, kind};
use crate::gang::{Admission, SCHEDULER_SILENT, Silence};
use crate::job::Job;
use crate::ledger::Ledger;
use crate::lifecycle::{Decision, Intent, ending, first_obstacle};
use crate::plan::storage::undersized_claim;
use crate::reports::Heard;
use crate::snapshot::Snapshot;
use crate::world::{Life, PodView};

/// The conditions that the job has now; others stay as they were.
pub fn of(job: &Job, decision: &Decision, seen: &Snapshot, ready: bool, now: Timestamp) -> Vec<(&'static str, Truth)> {
    let accepted = match &job.config {
        Ok(_) => Truth::yes("Valid", valid(job, seen)),
        Err(errors) if seen.has_config(job) => Truth::no(NO_LONGER_VALID, errors.to_string()),
        Err(errors) => Truth::no("InvalidSpec", errors.to_string()),
    };
    let mut conditions = vec![(kind::ACCEPTED, accepted)];
    match &decision.intent {
        Intent::Complete(truth) => conditions.push((kind::COMPLETE, truth.clone())),
        Intent::Fail(truth) => conditions.push((kind::FAILED, truth.clone())),
        Intent::Run | Intent::Queue(_) | Intent::Suspend | Intent::Ended => {}
    }
    if job.config.is_err() && !seen.has_config(job) {
        return conditions;
    }
    conditions.push((kind::SUSPENDED, suspended(job, decision, seen)));
    conditions.push((kind::GANG_SCHEDULED, gang_scheduled(job, decision, seen, now)));
    let obstacle = || first_obstacle(job, seen).unwrap_or_else(|| "pods are being made".into());
    conditions.push((
        kind::ROLES_READY,
        match (ready, &decision.intent) {
            (true, _) => Truth::yes("Ready", "every role has the ready pods it needs"),
            (false, Intent::Run) => Truth::no("WaitsForPods", obstacle()),
            (false, _) => Truth::no("NoPodsWanted", "the job wants no pods now"),
        },
    ));
    if let Some(truth) = progressing(decision, seen, ready, now) {
        conditions.push((kind::PROGRESSING, truth));
    }
    conditions
}

/// With what is most likely not meant.
fn valid(job: &Job, seen: &Snapshot) -> String {
    let can = "the manifest can run";
    let lost = lost_with_pods(&job.spec).map(|warning| warning.to_string());
    let warning = lost.or_else(|| undersized_claim(job, seen));
    warning.map_or_else(|| can.into(), |warning| format!("{can}; {warning}"))
}

/// Reason of an Accepted that does not hold for a job that goes on all the same.
pub const NO_LONGER_VALID: &str = "NoLongerValid";

/// Reason of a Suspended whose pods are gone.
pub const SUSPENDED: &str = "Suspended";

fn suspended(job: &Job, decision: &Decision, seen: &Snapshot) -> Truth {
    if decision.intent != Intent::Suspend {
        // One may make its last step while it is being suspended.
        let why = match job.spec.run_policy.suspend {
            true => "the job has ended",
            false => "runPolicy.suspend is false",
        };
        return Truth::no("Active", why);
    }
    match seen.pods(job).filter(|pod| pod.alive).count() {
        0 => Truth::yes(
            SUSPENDED,
            "no pods, by runPolicy.suspend; set it to false to go on from the last checkpoint",
        ),
        left => {
            let alive = seen.pods(job).filter(|pod| pod.alive);
            let slowest = ending::slowest(alive).map_or_else(String::new, |words| format!("; {words}"));
            Truth::yes("Suspending", format!("{left} pods save their state and end{slowest}"))
        }
    }
}

fn gang_scheduled(job: &Job, decision: &Decision, seen: &Snapshot, now: Timestamp) -> Truth {
    let truth = match &decision.intent {
        Intent::Queue(truth) => truth.clone(),
        Intent::Run => placed(job, seen),
        _ => return Truth::no("NoPodsWanted", "the job wants no pods now"),
    };
    if truth.holds {
        return truth;
    }
    let silence = Silence::of(job, seen).and_then(|silence| silence.words(now));
    match silence {
        Some(words) => Truth::no(SCHEDULER_SILENT, words),
        None => truth,
    }
}

fn placed(job: &Job, seen: &Snapshot) -> Truth {
    let wanted: u32 = job.roles.iter().map(|role| seen.count(*role)).sum();
    // A pod that was scaled away stands for none of the others, though it holds a node until it is gone.
    let has_node = |pod: &&PodView| pod.life != Life::Unscheduled && seen.wants(job, pod);
    let placed = seen.pods(job).filter(has_node).count();
    if u32::try_from(placed).is_ok_and(|placed| placed >= wanted) {
        return Truth::yes("Scheduled", format!("all {wanted} pods have nodes"));
    }
    let why = match &seen.admission {
        Admission::Admitted(_) => "admitted; ",
        _ => "",
    };
    let unscheduled = seen.pods(job).filter(|pod| pod.life == Life::Unscheduled);
    let of_scheduler = unscheduled
        .min_by_key(|pod| (pod.reason == PodView::UNSCHEDULED, pod.name.clone()))
        .map(|pod| format!("{}: {}", pod.name, pod.message));
    // Pods that may not exist are placed by nobody, and the others of their gang wait for them.
    let words = seen.refused.clone().or(of_scheduler);
    let words = words.or_else(|| ending::obstacle(job, seen));
    let words = words.unwrap_or_else(|| "pods are being made".into());
    Truth::no(
        "WaitsForNodes",
        format!("{why}{placed} of {wanted} pods have nodes; {words}"),
    )
}

/// Whether the actor's attempt only begins: it has said nothing, and nobody expects it to. What an earlier one said, or left unsaid, is no
/// word of this one.
pub fn awaits_first_word(decision: &Decision, seen: &Snapshot, ready: bool) -> bool {
    !ready && of_this_attempt(&decision.ledger, seen).is_none()
}

/// What the actor said in the attempt that it should have. The pod of an earlier one may be saving its last checkpoint still.
fn of_this_attempt<'a>(ledger: &Ledger, seen: &'a Snapshot) -> Option<&'a Heard> {
    let attempt = ledger.attempt_of(Role::Actor, 0);
    seen.report.as_ref().filter(|heard| heard.report.attempt == attempt)
}

/// Known from the first report of the actor's attempt on.
fn progressing(decision: &Decision, seen: &Snapshot, ready: bool, now: Timestamp) -> Option<Truth> {
    if decision.intent != Intent::Run {
        return Some(Truth::no(NOT_RUNNING, "the job does not run now"));
    }
    if awaits_first_word(decision, seen, ready) {
        return None;
    }
    let heard = of_this_attempt(&decision.ledger, seen);
    let unheard = match heard {
        Some(heard) => heard.age(now),
        None => never_heard_for(&decision.ledger, seen, now)?,
    };
    // What was said before that is no word of a stage that hangs now.
    if unheard > SILENCE_SECONDS {
        let words = format!("the actor's report could not be read for over {SILENCE_SECONDS} s");
        return Some(Truth::no("Silent", words));
    }
    let heard = heard?;
    let stage = format!("{:?}", heard.report.stage).to_lowercase();
    let peer = &heard.report.waiting_for;
    let waits = if peer.is_empty() {
        String::new()
    } else {
        format!(", waiting for {peer}")
    };
    Some(match heard.silence(now) > SILENCE_SECONDS {
        true => Truth::no(
            "Stalled",
            format!("no stage finished for over {SILENCE_SECONDS} s; it is in stage {stage}{waits}"),
        ),
        false => Truth::yes("Steps", "stages finish"),
    })
}

/// Seconds in which an actor that never said a word might have: since all roles are ready, and this process listens. None while they are
/// not ready.
fn never_heard_for(ledger: &Ledger, seen: &Snapshot, now: Timestamp) -> Option<f64> {
    let ready = get(&ledger.status.conditions, kind::ROLES_READY).filter(|ready| ready.status == "True")?;
    let since = ready.last_transition_time.0.max(seen.listening_since);
    Some(now.duration_since(since).as_secs_f64())
}

/// Reason of a Progressing that nobody expects to hold.
pub const NOT_RUNNING: &str = "NotRunning";

/// From this silence on the condition says so, long before the deadline acts.
const SILENCE_SECONDS: f64 = 300.0;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kube::api::DynamicObject;
    use ppo_crds::status::PpoJobStatus;
    use serde_json::{Value, json};

    use super::*;
    use crate::gang::Gang;
    use crate::smallest_job::smallest_job;
    use crate::status::status;
    use crate::status::tests::{decision, job};
    use crate::world::{Children, Kind, SeenPod};

    /// What an actor of that attempt said in 1970.
    fn heard(attempt: u32, seconds_since_progress: f64) -> Heard {
        let report = json!({
            "job": "a", "attempt": attempt, "stage": "update", "policyVersion": 3, "progress": {},
            "secondsSinceProgress": seconds_since_progress,
        });
        Heard {
            report: serde_json::from_value(report).unwrap(),
            at: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn while_the_actor_restarts_it_is_unknown_whether_the_run_goes_on_until_the_new_attempt_speaks() {
        let condition = |kind: &str, status: &str, reason: &str| {
            let since = Timestamp::UNIX_EPOCH.to_string();
            json!({"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": since})
        };
        // The look that begins the second attempt of an actor that hung.
        let before = json!({
            "roles": [{"name": "actor", "attempt": 2, "desired": 1, "ready": 0}],
            "conditions": [condition(kind::PROGRESSING, "False", "Stalled"), condition(kind::ROLES_READY, "True", "Ready")],
        });
        let before: PpoJobStatus = serde_json::from_value(before).unwrap();
        let now = Timestamp::from_second(1000).unwrap();
        let look = |job: &Job, before: &PpoJobStatus, report: Option<Heard>| {
            let seen = Snapshot {
                report,
                ..Snapshot::plain(Children::default(), Gang::None, now)
            };
            status(job, &decision(job, before, &Intent::Run), &seen, now)
        };
        let reason = |status: &PpoJobStatus| {
            let progressing = get(&status.conditions, kind::PROGRESSING);
            progressing.map(|progressing| progressing.reason.clone())
        };
        let mut job = job();
        // The pod of the first attempt takes its time to end; then there is none.
        for report in [Some(heard(1, 400.0)), None] {
            let begins = look(&job, &before, report.clone());
            assert_eq!(reason(&begins), None, "{report:?}");
            assert_eq!(look(&job, &begins, report), begins);
        }
        let first_word = Heard {
            at: now,
            ..heard(2, 1.0)
        };
        let speaks = look(&job, &before, Some(first_word));
        assert_eq!(reason(&speaks).as_deref(), Some("Steps"));
        // An operator that has just begun to ask takes the word of the one before it.
        job.roles.clear();
        assert_eq!(reason(&look(&job, &before, None)).as_deref(), Some("Stalled"));
    }

    #[test]
    fn an_actor_that_can_be_asked_no_more_is_silent_and_one_that_says_so_itself_is_stalled() {
        let said = |seconds_since_progress: f64, ago: i64| {
            let seen = Snapshot {
                report: Some(heard(1, seconds_since_progress)),
                ..Snapshot::plain(Children::default(), Gang::None, Timestamp::UNIX_EPOCH)
            };
            let decision = decision(&job(), &PpoJobStatus::default(), &Intent::Run);
            let now = Timestamp::from_second(ago).unwrap();
            progressing(&decision, &seen, true, now).unwrap().reason
        };
        assert_eq!(said(1.0, 10), "Steps");
        assert_eq!(said(1.0, 400), "Silent");
        assert_eq!(said(400.0, 10), "Stalled");
    }

    #[test]
    fn an_engine_that_was_scaled_away_and_is_not_gone_does_not_count_for_a_pod_without_a_node() {
        let pod = |role: &str, index: u32, node: Option<&str>| {
            let pod = json!({
                "metadata": {
                    "name": format!("a-{role}-{index}"),
                    "labels": {"ppojob.dev/role": role, "ppojob.dev/index": index.to_string()},
                    "ownerReferences": [{"apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "name": "a", "uid": "12345678-9",
                        "controller": true}],
                },
                "spec": {"nodeName": node},
                "status": {"phase": if node.is_some() { "Running" } else { "Pending" }},
            });
            let pod = PodView::of(&serde_json::from_value::<SeenPod>(pod).unwrap()).unwrap();
            (pod.name.clone(), Arc::new(pod))
        };
        let look = |actors_node: Option<&str>| {
            let engines = [0, 1].map(|index| pod("rollout", index, Some("one")));
            let pods = engines.into_iter().chain([pod("actor", 0, actors_node)]).collect();
            let children = Children {
                pods,
                ..Children::default()
            };
            let seen = Snapshot::plain(children, Gang::None, Timestamp::UNIX_EPOCH);
            placed(&job(), &seen)
        };
        let waits = look(None);
        assert!(!waits.holds);
        assert!(
            waits.message.starts_with("1 of 2 pods have nodes; a-actor-0: "),
            "{waits:?}"
        );
        assert!(look(Some("two")).holds);
    }

    #[test]
    fn an_accepted_job_whose_model_goes_with_its_pod_or_may_not_fit_its_claim_is_told_so() {
        let claim = json!({"spec": {"resources": {"requests": {"storage": "1Gi"}}}});
        let kind = Kind::PersistentVolumeClaim;
        let claim = DynamicObject::new("a-checkpoints", &kind.resource()).data(claim);
        let mut children = Children::default();
        children.objects.insert((kind, "a-checkpoints".into()), Arc::new(claim));
        let seen = Snapshot::plain(children, Gang::None, Timestamp::UNIX_EPOCH);
        let said = |checkpoint: Value| valid(&smallest_job(&json!({"checkpoint": checkpoint})), &seen);
        assert!(said(json!({})).starts_with("the manifest can run; spec.checkpoint: "));
        assert_eq!(said(json!({"pvc": "kept"})), "the manifest can run");
        assert_eq!(said(json!({"volumeClaim": {"storage": "1Gi"}})), "the manifest can run");
        let smaller = said(json!({"volumeClaim": {"storage": "2Gi"}}));
        let words = "the manifest can run; PersistentVolumeClaim a-checkpoints was there already: its 1Gi are less than the 2Gi";
        assert!(smaller.starts_with(words), "{smaller}");
    }
}
