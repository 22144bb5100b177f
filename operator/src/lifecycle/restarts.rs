//! Pods that restart: on request, because of a failure, or because those that there are cannot go on together.

use k8s_openapi::jiff::Timestamp;
use ppo_crds::pod::token_name;
use ppo_crds::spec::{FailureAction, FailurePolicySpec, Role};

use super::decision::{Decision, Intent};
use super::{failures, lost_rank};
use crate::condition::Truth;
use crate::failure::{Failure, Verdict, judge};
use crate::job::Job;
use crate::ledger::Ledger;
use crate::snapshot::Snapshot;

/// `ppojob.dev/restart: <role>=<anything>`, once per value.
pub(super) fn on_request(job: &Job, seen: &Snapshot, decision: &mut Decision) {
    let Some(request) = &seen.restart_request else { return };
    let status = &mut decision.ledger.status;
    if *request == status.restart_request {
        return;
    }
    status.restart_request.clone_from(request);
    let asked = request.split('=').next().unwrap_or_default();
    let role = job
        .roles
        .iter()
        .find(|pods| pods.role.name() == asked)
        .map(|pods| pods.role);
    match role {
        Some(role) => {
            decision.ledger.restart_role(role);
            decision.notes.push(format!(
                "role {asked} restarts: asked for by the annotation ppojob.dev/restart"
            ));
        }
        None => decision.notes.push(format!(
            "the annotation ppojob.dev/restart names {asked:?}, which is no role of this job; nothing restarts"
        )),
    }
}

/// Judges every failure, the worst first: a restarted role takes its other failures with it. What failed of a role together restarts
/// together and uses up its budgets once, as when the storage that its engines load from is away for a moment. Where the cluster took one
/// actor rank away, or one failed by itself, the others failed of that.
pub(super) fn what_failed(job: &Job, seen: &Snapshot, decision: &mut Decision, now: Timestamp) {
    let policy = &job.spec.failure_policy;
    let failures = explained(job, seen, decision, now);
    let before = decision.ledger.clone();
    let mut restarted: Vec<Role> = Vec::new();
    let mut counted: Vec<(Role, Verdict)> = Vec::new();
    for (verdict, failure) in judged(failures, policy) {
        if restarted.contains(&failure.role) {
            continue;
        }
        let incident = (failure.role, verdict);
        let (role, verdict) = &incident;
        let is_counted = counted.contains(&incident);
        let end = ends_job(&failure, verdict, &decision.ledger, policy).filter(|_| !is_counted);
        if let Some(end) = end {
            decision.intent = Intent::Fail(end);
            return;
        }
        let earliest = match verdict.counted {
            true => before.restart_not_before(*role),
            false => failure.not_before,
        };
        if let Some(time) = earliest.filter(|time| *time > now) {
            decision.wake_at(time);
            decision.held.insert(failure.pod);
            continue;
        }
        let what = restart(verdict.action, &failure, &mut decision.ledger, &mut restarted);
        let how = match (verdict.counted, is_counted) {
            (false, _) => ", not counted",
            (true, true) => ", counted with the one before",
            (true, false) => "",
        };
        let Failure {
            pod, reason, message, ..
        } = &failure;
        let note = format!("{what}{how}: {pod} failed ({reason}): {message}");
        decision.notes.push(note);
        if !is_counted {
            decision.ledger.count(*role, verdict, policy, now);
            counted.push(incident);
        }
    }
}

/// What failed and may be judged: ranks that lost another are held for as long as what befell that one may still show.
fn explained(job: &Job, seen: &Snapshot, decision: &mut Decision, now: Timestamp) -> Vec<Failure> {
    let mut failures = failures::all(job, seen, &decision.ledger);
    let awaited = lost_rank::explain(&mut failures, job, seen, &decision.ledger, now);
    if let Some(until) = awaited.filter(|until| *until > now) {
        decision.wake_at(until);
        let ranks = failures.extract_if(.., |failure| failure.role == Role::Actor);
        decision.held.extend(ranks.map(|failure| failure.pod));
    }
    failures
}

/// Each with what the policy makes of it, the worst first.
fn judged(failures: Vec<Failure>, policy: &FailurePolicySpec) -> Vec<(Verdict, Failure)> {
    let verdicts = failures.into_iter().map(|failure| (judge(&failure, policy), failure));
    let mut judged: Vec<_> = verdicts.collect();
    judged.sort_by_key(|(verdict, failure)| (severity(verdict.action), verdict.counted, failure.is_of_lost_rank()));
    judged
}

fn severity(action: FailureAction) -> u8 {
    match action {
        FailureAction::FailJob => 0,
        FailureAction::RestartJob => 1,
        FailureAction::RestartRole => 2,
        FailureAction::RestartPod | FailureAction::Ignore => 3,
    }
}

/// Whether this failure is the job's.
fn ends_job(failure: &Failure, verdict: &Verdict, ledger: &Ledger, policy: &FailurePolicySpec) -> Option<Truth> {
    let Failure {
        pod, reason, message, ..
    } = failure;
    if verdict.action == FailureAction::FailJob {
        return Some(Truth::yes(
            reason,
            format!("{pod} failed and the job with it: {message}"),
        ));
    }
    let budget = ledger.exhausted(failure.role, verdict, policy)?;
    Some(Truth::yes(
        "RestartsExhausted",
        format!("{pod} failed: {message}; {budget}"),
    ))
}

/// Restarts what `action` says, adds the roles that it takes whole to `restarted`, and says what that was.
fn restart(action: FailureAction, failure: &Failure, ledger: &mut Ledger, restarted: &mut Vec<Role>) -> String {
    // The ranks of an actor hold one state: one of them cannot be replaced alone.
    let alone = failure.role != Role::Actor;
    match action {
        FailureAction::RestartJob => {
            ledger.restart_job();
            restarted.extend(Role::ALL);
            "the job restarts".into()
        }
        FailureAction::RestartPod | FailureAction::Ignore if alone => {
            ledger.retire_pod(failure.role, failure.index);
            format!("pod {} restarts", failure.pod)
        }
        _ => {
            ledger.restart_role(failure.role);
            restarted.push(failure.role);
            format!("role {} restarts", failure.role.name())
        }
    }
}

/// Replaces all pods where those that there are cannot go on together, and the actor where it waits for what nobody wants any more, which is
/// nobody's failure.
pub(super) fn what_cannot_go_on(job: &Job, seen: &Snapshot, decision: &mut Decision) {
    let restart = |why: Option<String>, decision: &mut Decision| {
        if let Some(why) = why.filter(|_| decision.intent == Intent::Run) {
            decision.ledger.restart_job();
            decision.notes.push(format!("the job restarts, not counted: {why}"));
        }
    };
    restart(begins_anew(job, seen, &decision.ledger), decision);
    restart(token_lost(job, seen, &decision.ledger), decision);
    let lowered = floor_lowered(job, seen, &decision.ledger);
    if let Some(why) = lowered.filter(|_| decision.intent == Intent::Run) {
        decision.ledger.restart_role(Role::Actor);
        decision.notes.push(format!("role actor restarts, not counted: {why}"));
    }
}

/// An actor waits below the floor that it was told. Where fewer engines are enough by now it would wait in vain, till it counts as hung. One
/// whose checkpoints go with its pod is left alone.
fn floor_lowered(job: &Job, seen: &Snapshot, ledger: &Ledger) -> Option<String> {
    let floor = job.role(Role::Rollout)?.floor;
    let actor = seen.pod(job, Role::Actor, 0)?;
    let current = actor.deleting_since.is_none() && actor.attempt == ledger.attempt_of(Role::Actor, 0);
    let told = actor.floor.filter(|_| current)?;
    let ready = seen.ready(job, ledger).get(&Role::Rollout).copied().unwrap_or_default();
    let waits = job.spec.outlives_pods() && floor <= ready && ready < told;
    waits.then(|| format!("it waits for {told} engines, and roles.rollout.minReplicas is {floor} now"))
}

fn begins_anew(job: &Job, seen: &Snapshot, ledger: &Ledger) -> Option<String> {
    seen.gang.begins_anew(job, ledger, seen).map(str::to_owned)
}

/// The Secret that takes its place holds another token: pods of both would refuse each other.
fn token_lost(job: &Job, seen: &Snapshot, ledger: &Ledger) -> Option<String> {
    let has_pods = seen.token_lost && seen.current_pods(job, ledger).next().is_some();
    let secret = token_name(&job.key.name);
    has_pods.then(|| format!("Secret {secret}, with the token that its pods ask of each other, is gone"))
}
