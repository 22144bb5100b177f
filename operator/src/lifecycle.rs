//! The job's next state: run, wait for quota, be suspended, end. Pure; its decisions are in the ledger.

mod deadlines;
pub mod ending;
mod lost_rank;

use std::collections::BTreeSet;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use ppo_crds::pod::token_name;
use ppo_crds::report::Reason;
use ppo_crds::spec::{FailureAction, FailurePolicySpec, Role};
use ppo_crds::status::PpoJobStatus;

use crate::condition::Truth;
use crate::failure::{Failure, Verdict, failure_of, judge};
use crate::gang::Admission;
use crate::job::Job;
use crate::ledger::Ledger;
use crate::snapshot::Snapshot;
use crate::world::{Kind, Life, PodView};

/// How often a gang scheduler that was asked for is looked for while it is missing.
const LOOK_FOR_GANGS: SignedDuration = SignedDuration::from_secs(30);

/// What the job wants.
#[derive(Clone, Debug, PartialEq)]
pub enum Intent {
    /// Its pods.
    Run,
    /// No pods until quota is there.
    Queue(Truth),
    /// No pods, by request.
    Suspend,
    /// Nothing any more: it succeeded.
    Complete(Truth),
    /// Nothing any more: it failed.
    Fail(Truth),
    /// Nothing any more, as was written before.
    Ended,
}

/// What was decided.
#[derive(Clone, Debug)]
pub struct Decision {
    /// Attempts and counts to write.
    pub ledger: Ledger,
    /// What the job wants.
    pub intent: Intent,
    /// When to decide again, should nothing happen before.
    pub wake: Option<Timestamp>,
    /// Failures seen now, each with what is done about it, for events.
    pub notes: Vec<String>,
    /// Pods that have failed and whose time has not come: should one be removed meanwhile, nothing takes its place before.
    pub held: BTreeSet<String>,
}

impl Decision {
    /// One that leads to nothing else.
    pub fn of(ledger: Ledger, intent: Intent) -> Self {
        Self {
            ledger,
            intent,
            wake: None,
            notes: Vec::new(),
            held: BTreeSet::new(),
        }
    }

    fn wake_at(&mut self, time: Timestamp) {
        self.wake = Some(self.wake.map_or(time, |known| known.min(time)));
    }
}

/// Decides.
pub fn decide(job: &Job, seen: &Snapshot, previous: &PpoJobStatus, now: Timestamp) -> Decision {
    let mut ledger = Ledger::open(previous, job);
    if previous.phase.is_some_and(|phase| phase.is_finished()) {
        ledger.status = previous.clone();
        return Decision::of(ledger, Intent::Ended);
    }
    // What it runs was fixed when it was accepted: a rule that came with a newer operator is for jobs that begin later.
    if let Err(errors) = &job.config
        && !seen.has_config(job)
    {
        return Decision::of(ledger, Intent::Fail(Truth::yes("InvalidSpec", errors.to_string())));
    }
    if let Some(done) = completed(job, &ledger, seen) {
        return Decision::of(ledger, Intent::Complete(done));
    }
    if job.spec.run_policy.suspend {
        ledger.pause(now);
        return Decision::of(ledger, Intent::Suspend);
    }
    let mut decision = admitted(ledger, seen, now);
    if decision.intent != Intent::Run {
        return decision;
    }
    retire_what_is_too_many(job, seen, &mut decision.ledger);
    restart_on_request(job, seen, &mut decision, now);
    restart_what_failed(job, seen, &mut decision, now);
    restart_what_cannot_go_on(job, seen, &mut decision, now);
    if let (Intent::Run, Some(late)) = (&decision.intent, deadlines::overdue(job, seen, &decision.ledger, now)) {
        decision.intent = Intent::Fail(late);
    }
    for deadline in deadlines::all(job, seen, &decision.ledger, now) {
        if deadline > now {
            decision.wake_at(deadline);
        }
    }
    decision
}

/// Whether its pods may exist, by its gang scheduler's word.
fn admitted(mut ledger: Ledger, seen: &Snapshot, now: Timestamp) -> Decision {
    match &seen.admission {
        // Pods that its gang scheduler placed run on without it.
        Admission::Missing(_) if ledger.status.active_since.is_some() => {}
        Admission::Missing(why) => {
            let mut decision = Decision::of(ledger, Intent::Queue(Truth::no("GangSchedulerMissing", why)));
            // Nothing tells when it is installed.
            if let Ok(again) = now.checked_add(LOOK_FOR_GANGS) {
                decision.wake_at(again);
            }
            return decision;
        }
        Admission::Waiting { reason, message } => {
            ledger.pause(now);
            return Decision::of(ledger, Intent::Queue(Truth::no(reason, message)));
        }
        Admission::Free | Admission::Admitted(_) => ledger.activate(seen.gang.word(), now),
    }
    Decision::of(ledger, Intent::Run)
}

/// The run is over when the actor's first pod, which commits the last checkpoint, has ended well.
fn completed(job: &Job, ledger: &Ledger, seen: &Snapshot) -> Option<Truth> {
    let actor = seen.pod(job, Role::Actor, 0)?;
    let current = actor.attempt == ledger.attempt_of(Role::Actor, 0);
    // Of a reason that only a newer worker knows the exit code says enough.
    let interrupted = actor
        .outcome
        .as_ref()
        .is_some_and(|outcome| !matches!(outcome.reason, Reason::Completed | Reason::Other));
    if !current || actor.life != Life::Succeeded || interrupted {
        return None;
    }
    let message = actor
        .outcome
        .as_ref()
        .map_or("all steps are made", |outcome| outcome.message.as_str());
    Some(Truth::yes("Completed", message))
}

/// `ppojob.dev/restart: <role>=<anything>`, once per value.
fn restart_on_request(job: &Job, seen: &Snapshot, decision: &mut Decision, now: Timestamp) {
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
            decision.ledger.restart_role(role, now);
            decision.notes.push(format!(
                "role {asked} restarts: asked for by the annotation ppojob.dev/restart"
            ));
        }
        None => decision.notes.push(format!(
            "the annotation ppojob.dev/restart names {asked:?}, which is no role of this job; nothing restarts"
        )),
    }
}

/// Surplus pods (scale-down) end without counting as failures, even if the role is scaled up again before they are gone; new pods
/// replace them.
fn retire_what_is_too_many(job: &Job, seen: &Snapshot, ledger: &mut Ledger) {
    for pod in seen.pods(job) {
        let too_many = job.role(pod.role).is_some_and(|role| pod.index >= seen.count(role));
        if too_many && pod.attempt == ledger.attempt_of(pod.role, pod.index) {
            ledger.retire_pod(pod.role, pod.index);
        }
    }
}

/// Replaces all pods where those that there are cannot go on together, which is nobody's failure.
fn restart_what_cannot_go_on(job: &Job, seen: &Snapshot, decision: &mut Decision, now: Timestamp) {
    let restart = |why: Option<String>, decision: &mut Decision| {
        if let Some(why) = why.filter(|_| decision.intent == Intent::Run) {
            decision.ledger.restart_job(now);
            decision.notes.push(format!("the job restarts, not counted: {why}"));
        }
    };
    restart(begins_anew(job, seen, &decision.ledger), decision);
    restart(token_lost(job, seen, &decision.ledger), decision);
}

fn begins_anew(job: &Job, seen: &Snapshot, ledger: &Ledger) -> Option<String> {
    seen.gang.begins_anew(job, ledger, seen).map(str::to_owned)
}

/// The Secret that takes its place holds another token: pods of both would refuse each other.
fn token_lost(job: &Job, seen: &Snapshot, ledger: &Ledger) -> Option<String> {
    let has_pods = seen.token_lost && current_pods(job, seen, ledger).next().is_some();
    let secret = token_name(&job.key.name);
    has_pods.then(|| format!("Secret {secret}, with the token that its pods ask of each other, is gone"))
}

/// Judges every failed pod, the worst first: a restarted role takes its other failures with it. What failed of a role together restarts
/// together and uses up its budgets once, as when the storage that its engines load from is away for a moment. Where the cluster took one
/// actor rank away, or one failed by itself, the others failed of that.
fn restart_what_failed(job: &Job, seen: &Snapshot, decision: &mut Decision, now: Timestamp) {
    let mut failures: Vec<Failure> = current_pods(job, seen, &decision.ledger)
        .filter_map(failure_of)
        .collect();
    failures.extend(vanished(job, seen, &decision.ledger));
    failures.extend(hung(job, seen, &decision.ledger));
    let awaited = lost_rank::explain(&mut failures, job, seen, &decision.ledger);
    if let Some(until) = awaited.filter(|until| *until > now) {
        decision.wake_at(until);
        let ranks = failures.extract_if(.., |failure| failure.role == Role::Actor);
        decision.held.extend(ranks.map(|failure| failure.pod));
    }
    let policy = &job.spec.failure_policy;
    let mut judged: Vec<_> = failures
        .into_iter()
        .map(|failure| (judge(&failure, policy), failure))
        .collect();
    let order = |(verdict, failure): &(Verdict, Failure)| {
        (severity(verdict.action), verdict.counted, failure.is_of_lost_rank())
    };
    judged.sort_by_key(order);
    let before = decision.ledger.clone();
    let mut restarted: Vec<Role> = Vec::new();
    let mut counted: Vec<(Role, Verdict)> = Vec::new();
    for (verdict, failure) in judged {
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
        let what = act(verdict.action, &failure, decision, &mut restarted, now);
        let how = match (verdict.counted, is_counted) {
            (false, _) => ", not counted",
            (true, true) => ", counted with the one before",
            (true, false) => "",
        };
        let Failure {
            pod, reason, message, ..
        } = &failure;
        decision
            .notes
            .push(format!("{what}{how}: {pod} failed ({reason}): {message}"));
        if !is_counted {
            decision.ledger.count(*role, verdict, policy);
            counted.push(incident);
        }
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

fn act(
    action: FailureAction,
    failure: &Failure,
    decision: &mut Decision,
    restarted: &mut Vec<Role>,
    now: Timestamp,
) -> String {
    // The ranks of an actor hold one state: one of them cannot be replaced alone.
    let alone = failure.role != Role::Actor;
    match action {
        FailureAction::RestartJob => {
            decision.ledger.restart_job(now);
            restarted.extend(Role::ALL);
            "the job restarts".into()
        }
        FailureAction::RestartPod | FailureAction::Ignore if alone => {
            decision.ledger.restart_pod(failure.role, failure.index, now);
            format!("pod {} restarts", failure.pod)
        }
        _ => {
            decision.ledger.restart_role(failure.role, now);
            restarted.push(failure.role);
            format!("role {} restarts", failure.role.name())
        }
    }
}

fn severity(action: FailureAction) -> u8 {
    match action {
        FailureAction::FailJob => 0,
        FailureAction::RestartJob => 1,
        FailureAction::RestartRole => 2,
        FailureAction::RestartPod | FailureAction::Ignore => 3,
    }
}

/// Pods that should be there, at the attempt that they should have.
fn current_pods<'a>(job: &'a Job, seen: &'a Snapshot, ledger: &'a Ledger) -> impl Iterator<Item = &'a PodView> {
    seen.pods(job).filter(move |pod| {
        let wanted = job.role(pod.role).is_some_and(|role| pod.index < seen.count(role));
        wanted && pod.attempt == ledger.attempt_of(pod.role, pod.index)
    })
}

/// The actor's pods that should be there and are gone. Their end may not have been looked at; a forced deletion even says nothing of
/// their processes, which may still run where their node cannot be reached. Who comes after them is another attempt, so that
/// those can write no more.
fn vanished(job: &Job, seen: &Snapshot, ledger: &Ledger) -> Vec<Failure> {
    let gone = seen.vanished.iter().filter(|pod| {
        pod.owner.as_deref() == Some(job.uid.as_str())
            && pod.attempt == ledger.attempt_of(pod.role, pod.index)
            && !seen.exists(Kind::Pod, &pod.name)
    });
    let mut failures: Vec<Failure> = gone
        .map(|pod| failure_of(pod).unwrap_or_else(|| removed(pod.index, &pod.name, &pod.conditions)))
        .collect();
    if failures.is_empty() {
        failures.extend(missed(job, seen, ledger));
    }
    failures
}

/// The same of a pod that this process never saw: the status, which another one wrote, has more ready pods of the attempt than there are.
fn missed(job: &Job, seen: &Snapshot, ledger: &Ledger) -> Option<Failure> {
    let ready = ledger.role(Role::Actor)?.ready;
    let (index, name) = seen.missed_actors(job, ready).into_iter().next()?;
    Some(removed(index, &name, &[]))
}

fn removed(index: u32, pod: &str, conditions: &[String]) -> Failure {
    Failure {
        role: Role::Actor,
        index,
        pod: pod.to_owned(),
        exit_code: None,
        of_worker: false,
        reason: "Deleted".into(),
        message: "the pod was removed before its end was seen, with its node or by force".into(),
        conditions: conditions.to_vec(),
        disrupted: true,
        ended_at: None,
        not_before: None,
    }
}

/// No stage, nor a part of one, finished for longer than the policy allows, by the actor's own word. Silence says nothing: a process that
/// answers nobody is the kubelet's to end, by its probe, and one that answers the kubelet runs where the operator does not reach it. While
/// another role has too few ready pods it is those that the actor waits for, and the deadline of readiness that ends it.
fn hung(job: &Job, seen: &Snapshot, ledger: &Ledger) -> Option<Failure> {
    let limit = job.spec.run_policy.progress_deadline_seconds;
    let actor = seen.pod(job, Role::Actor, 0).filter(|pod| pod.life == Life::Ready)?;
    let current = actor.attempt == ledger.attempt_of(Role::Actor, 0);
    let report = seen.report.as_ref().map(|heard| &heard.report)?;
    let waits = !seen.roles_ready(job, ledger);
    if !current || waits || report.seconds_since_progress < limit as f64 {
        return None;
    }
    let stage = format!("{:?}", report.stage).to_lowercase();
    let peer = match report.waiting_for.as_str() {
        "" => String::new(),
        peer => format!(", where it waits for {peer}"),
    };
    Some(Failure {
        role: Role::Actor,
        index: 0,
        pod: actor.name.clone(),
        exit_code: None,
        of_worker: false,
        reason: "Hung".into(),
        message: format!(
            "no stage, nor a part of one, finished for {limit} s (runPolicy.progressDeadlineSeconds): it hangs in stage {stage}{peer}"
        ),
        conditions: Vec::new(),
        disrupted: false,
        ended_at: None,
        not_before: None,
    })
}

/// What the API server refuses, else why the first pod that is not ready is not, scheduling before starting.
pub fn first_obstacle(job: &Job, seen: &Snapshot) -> Option<String> {
    if let Some(refused) = &seen.refused {
        return Some(refused.clone());
    }
    let waiting = seen.pods(job).filter(|pod| {
        let waits = matches!(pod.life, Life::Unscheduled | Life::Starting | Life::Failed);
        waits && pod.deleting_since.is_none()
    });
    let worst = waiting.min_by_key(|pod| (pod.life != Life::Unscheduled, vague(pod), pod.name.clone()));
    let words = worst.map(|pod| format!("{} {}: {}", pod.name, pod.reason, pod.message));
    match worst.is_some_and(|pod| !vague(pod)) {
        true => words,
        // A pod that only starts may wait for one whose predecessor is not gone.
        false => ending::obstacle(job, seen).or(words),
    }
}

fn vague(pod: &PodView) -> bool {
    matches!(pod.reason.as_str(), "Starting" | PodView::UNSCHEDULED)
}

#[cfg(test)]
mod tests;
