//! The status as a function of what was decided and observed. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use ppo_crds::pod::label;
use ppo_crds::spec::Role;
use ppo_crds::status::{Phase, PpoJobStatus, Progress, RoleStatus};
use ppo_crds::validate::lost_with_pods;

use crate::condition::{Truth, get, holds, kind, set, whole_second};
use crate::gang::{Admission, SCHEDULER_SILENT, Silence};
use crate::job::{Job, RolePods};
use crate::ledger::Ledger;
use crate::lifecycle::{Decision, Intent, first_obstacle};
use crate::plan::undersized_claim;
use crate::snapshot::Snapshot;
use crate::world::{Life, PodView};

/// The status to write.
pub fn status(job: &Job, decision: &Decision, seen: &Snapshot, now: Timestamp) -> PpoJobStatus {
    let ledger = &decision.ledger;
    if decision.intent == Intent::Ended {
        return ended(job, ledger, seen);
    }
    let mut status = ledger.status.clone();
    status.observed_generation = Some(job.generation);
    status.roles = job
        .roles
        .iter()
        .map(|role| role_status(job, *role, ledger, seen))
        .collect();
    status.ready = Some(ready_of(&status.roles));
    status.rollout_replicas = engines(job, seen);
    status.rollout_selector = format!(
        "{}={},{}={}",
        label::JOB,
        job.key.name,
        label::ROLE,
        Role::Rollout.name()
    );
    if let Some(progress) = progress(job, ledger, seen) {
        status.progress = Some(progress.clone());
    }
    let ready = seen.roles_ready(job, ledger) && decision.intent == Intent::Run;
    if ready && status.start_time.is_none() {
        status.start_time = Some(Time(whole_second(now)));
    }
    if decision.intent == Intent::Run {
        // What is not known yet of a run that goes on is not what was said while it was suspended.
        status
            .conditions
            .retain(|condition| condition.type_ != kind::PROGRESSING || condition.reason != NOT_RUNNING);
    }
    for (kind, truth) in conditions(job, decision, seen, ready, now) {
        set(&mut status.conditions, kind, truth, job.generation, now);
    }
    status.phase = Some(phase(job, decision, seen, ready, &status));
    // Only a job that runs comes nearer to its end.
    if status.phase != Some(Phase::Running)
        && let Some(progress) = &mut status.progress
    {
        progress.eta_seconds = None;
    }
    if status.phase.is_some_and(Phase::is_finished) {
        status.completion_time = Some(Time(whole_second(now)));
        // Its pods go, or stay for their logs, and nobody counts them again.
        status.roles.iter_mut().for_each(|role| role.ready = 0);
        status.ready = Some(ready_of(&status.roles));
    }
    status
}

/// How far the actor says that training is: in its last words where it has ended, which may be steps beyond its last report.
fn progress<'a>(job: &Job, ledger: &Ledger, seen: &'a Snapshot) -> Option<&'a Progress> {
    let actor = seen.pod(job, Role::Actor, 0);
    let current = actor.filter(|pod| pod.attempt == ledger.attempt_of(Role::Actor, 0));
    let last_words = current.and_then(|pod| pod.outcome.as_ref()?.progress.as_ref());
    last_words.or_else(|| Some(&seen.report.as_ref()?.report.progress))
}

/// A finished job's status never changes but for the pods that are left, and that its changes are seen.
fn ended(job: &Job, ledger: &Ledger, seen: &Snapshot) -> PpoJobStatus {
    let mut status = ledger.status.clone();
    status.observed_generation = Some(job.generation);
    status.rollout_replicas = engines(job, seen);
    status
}

/// Engines that exist.
fn engines(job: &Job, seen: &Snapshot) -> u32 {
    let pods = seen.pods(job).filter(|pod| pod.role == Role::Rollout && pod.alive);
    u32::try_from(pods.count()).unwrap_or(u32::MAX)
}

fn ready_of(roles: &[RoleStatus]) -> String {
    let sum = |count: fn(&RoleStatus) -> u32| roles.iter().map(count).sum::<u32>();
    format!("{}/{}", sum(|role| role.ready), sum(|role| role.desired))
}

fn role_status(job: &Job, pods: RolePods, ledger: &Ledger, seen: &Snapshot) -> RoleStatus {
    let role = pods.role;
    let fewer = fewer(pods, seen);
    let known = ledger.role(role).cloned().unwrap_or_else(|| RoleStatus::started(role));
    let mut pods: Vec<&PodView> = seen.pods(job).filter(|pod| pod.role == role).collect();
    pods.sort_by_key(|pod| {
        (
            pod.life == Life::Ready,
            pod.life != Life::Failed,
            pod.life != Life::Unscheduled,
            pod.index,
        )
    });
    let worst = pods
        .first()
        .filter(|pod| pod.life != Life::Ready && !pod.reason.is_empty());
    let worst = worst.map(|pod| (pod.reason.clone(), format!("{}: {}", pod.name, pod.message)));
    let (reason, message) = worst.or(fewer).unwrap_or_default();
    RoleStatus {
        ready: seen.ready(job, ledger).get(&role).copied().unwrap_or_default(),
        // Until the actor has spoken to an operator that just started, what the one before it heard.
        policy_version: policy_version(role, seen).or(known.policy_version),
        reason,
        message,
        ..known
    }
}

/// Reason of a role of which a queue admitted fewer pods than it wants.
pub const QUOTA_FOR_FEWER: &str = "QuotaForFewer";

/// A Workload cannot grow while it holds quota: Kueue refuses that.
fn fewer(role: RolePods, seen: &Snapshot) -> Option<(String, String)> {
    let admitted = seen.count(role);
    let words = format!(
        "Kueue admitted {admitted} of {} engines; the others come with the next admission (suspend and resume)",
        role.pods
    );
    (admitted < role.pods).then(|| (QUOTA_FOR_FEWER.into(), words))
}

/// Engines and actor hold the version that the actor reports: a step begins only when every engine has it.
fn policy_version(role: Role, seen: &Snapshot) -> Option<u64> {
    let holds_policy = matches!(role, Role::Rollout | Role::Actor);
    seen.report
        .as_ref()
        .filter(|_| holds_policy)
        .map(|heard| heard.report.policy_version)
}

fn conditions(
    job: &Job,
    decision: &Decision,
    seen: &Snapshot,
    ready: bool,
    now: Timestamp,
) -> Vec<(&'static str, Truth)> {
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
    if let Some(truth) = progressing(decision, seen, now) {
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
        return Truth::no("Active", "runPolicy.suspend is false");
    }
    match seen.pods(job).filter(|pod| pod.alive).count() {
        0 => Truth::yes(
            SUSPENDED,
            "no pods, by runPolicy.suspend; set it to false to go on from the last checkpoint",
        ),
        left => Truth::yes("Suspending", format!("{left} pods save their state and end")),
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
    let placed = seen
        .pods(job)
        .filter(|pod| !matches!(pod.life, Life::Unscheduled))
        .count();
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
    let words = words.unwrap_or_else(|| "pods are being made".into());
    Truth::no(
        "WaitsForNodes",
        format!("{why}{placed} of {wanted} pods have nodes; {words}"),
    )
}

/// Known from the actor's first report on.
fn progressing(decision: &Decision, seen: &Snapshot, now: Timestamp) -> Option<Truth> {
    if decision.intent != Intent::Run {
        return Some(Truth::no(NOT_RUNNING, "the job does not run now"));
    }
    let unheard = match &seen.report {
        Some(heard) => heard.age(now),
        None => never_heard_for(&decision.ledger, seen, now)?,
    };
    // What was said before that is no word of a stage that hangs now.
    if unheard > SILENCE_SECONDS {
        let words = format!("the actor's report could not be read for over {SILENCE_SECONDS} s");
        return Some(Truth::no("Silent", words));
    }
    let heard = seen.report.as_ref()?;
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
const NOT_RUNNING: &str = "NotRunning";

/// From this silence on the condition says so, long before the deadline acts.
const SILENCE_SECONDS: f64 = 300.0;

fn phase(job: &Job, decision: &Decision, seen: &Snapshot, ready: bool, status: &PpoJobStatus) -> Phase {
    match &decision.intent {
        Intent::Complete(_) => Phase::Succeeded,
        Intent::Fail(_) => Phase::Failed,
        Intent::Suspend => Phase::Suspended,
        Intent::Queue(_) => Phase::Queued,
        Intent::Ended => status.phase.unwrap_or_default(),
        Intent::Run if ready => Phase::Running,
        Intent::Run if has_run(&decision.ledger) => Phase::Restarting,
        Intent::Run if !holds(&status.conditions, kind::GANG_SCHEDULED) => match seen.pods(job).next() {
            Some(_) => Phase::Scheduling,
            None => Phase::Pending,
        },
        Intent::Run => Phase::Initializing,
    }
}

/// Whether it ran since it was last activated.
fn has_run(ledger: &Ledger) -> bool {
    let status = &ledger.status;
    let ran = matches!(status.phase, Some(Phase::Running | Phase::Restarting));
    ran && status.start_time.is_some()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kube::api::DynamicObject;
    use serde_json::{Value, json};

    use super::*;
    use crate::gang::Gang;
    use crate::snapshot::Heard;
    use crate::world::{Children, Kind};

    fn job() -> Job {
        let object = json!({
            "apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "metadata": {"name": "a", "uid": "1"},
            "spec": {"model": {"policy": {"path": "/m"}}, "prompts": {"source": {"path": "/p.jsonl"}},
                "algorithm": {"kl": {"coef": 0.0}}, "roles": {"reward": {"rules": [{"json": {}}]}}},
        });
        Job::of(&serde_json::from_value(object).unwrap())
    }

    fn decision(job: &Job, previous: &PpoJobStatus, intent: &Intent) -> Decision {
        Decision {
            ledger: Ledger::open(previous, job),
            intent: intent.clone(),
            wake: None,
            notes: Vec::new(),
            held: Default::default(),
        }
    }

    #[test]
    fn an_actor_that_can_be_asked_no_more_is_silent_and_one_that_says_so_itself_is_stalled() {
        let said = |seconds_since_progress: f64, ago: i64| {
            let report = json!({
                "job": "a", "attempt": 1, "stage": "update", "policyVersion": 3, "progress": {},
                "secondsSinceProgress": seconds_since_progress,
            });
            let seen = Snapshot {
                report: Some(Heard {
                    report: serde_json::from_value(report).unwrap(),
                    at: Timestamp::UNIX_EPOCH,
                }),
                ..Snapshot::plain(Children::default(), Gang::None, Timestamp::UNIX_EPOCH)
            };
            let decision = decision(&job(), &PpoJobStatus::default(), &Intent::Run);
            let now = Timestamp::from_second(ago).unwrap();
            progressing(&decision, &seen, now).unwrap().reason
        };
        assert_eq!(said(1.0, 10), "Steps");
        assert_eq!(said(1.0, 400), "Silent");
        assert_eq!(said(400.0, 10), "Stalled");
    }

    #[test]
    fn a_job_that_does_not_run_has_no_end_in_sight_and_a_second_look_changes_nothing() {
        let mut job = job();
        let seen = Snapshot::plain(Children::default(), Gang::None, Timestamp::UNIX_EPOCH);
        let decided = |job: &Job, previous: &PpoJobStatus, intent: &Intent| {
            status(job, &decision(job, previous, intent), &seen, Timestamp::UNIX_EPOCH)
        };
        let eta = |status: &PpoJobStatus| status.progress.as_ref().unwrap().eta_seconds;
        let known = json!({"progress": {"step": 4, "total": 9, "etaSeconds": 50}});
        let known: PpoJobStatus = serde_json::from_value(known).unwrap();
        let queued = Intent::Queue(Truth::no("Pending", "waits"));
        let failed = Intent::Fail(Truth::yes("Hung", "it hangs"));
        // Its pods are not there, so it does not run yet.
        for intent in [Intent::Run, Intent::Suspend, queued, failed] {
            let first = decided(&job, &known, &intent);
            assert_eq!(eta(&first), None, "{intent:?}");
            assert_eq!(decided(&job, &first, &intent), first, "{intent:?}");
        }
        job.roles.clear();
        let running = decided(&job, &known, &Intent::Run);
        assert_eq!((running.phase, eta(&running)), (Some(Phase::Running), Some(50)));
    }

    #[test]
    fn an_accepted_job_whose_model_goes_with_its_pod_or_may_not_fit_its_claim_is_told_so() {
        let claim = json!({"spec": {"resources": {"requests": {"storage": "1Gi"}}}});
        let kind = Kind::PersistentVolumeClaim;
        let claim = DynamicObject::new("a-checkpoints", &kind.resource()).data(claim);
        let mut children = Children::default();
        children.objects.insert((kind, "a-checkpoints".into()), Arc::new(claim));
        let seen = Snapshot::plain(children, Gang::None, Timestamp::UNIX_EPOCH);
        let said = |checkpoint: Value| {
            let object = json!({
                "apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "metadata": {"name": "a", "uid": "1"},
                "spec": {"model": {"policy": {"path": "/m"}}, "prompts": {"source": {"path": "/p.jsonl"}},
                    "roles": {"reward": {"rules": [{"json": {}}]}}, "checkpoint": checkpoint},
            });
            valid(&Job::of(&serde_json::from_value(object).unwrap()), &seen)
        };
        assert!(said(json!({})).starts_with("the manifest can run; spec.checkpoint: "));
        assert_eq!(said(json!({"pvc": "kept"})), "the manifest can run");
        assert_eq!(said(json!({"volumeClaim": {"storage": "1Gi"}})), "the manifest can run");
        let smaller = said(json!({"volumeClaim": {"storage": "2Gi"}}));
        let words = "the manifest can run; PersistentVolumeClaim a-checkpoints was there already: its 1Gi are less than the 2Gi";
        assert!(smaller.starts_with(words), "{smaller}");
    }
}
