//! The job's next state: run, wait for quota, be suspended, end. Pure; its decisions are in the ledger.

mod deadlines;
pub(crate) mod decision;
pub mod ending;
mod failures;
mod lost_rank;
mod obstacle;
mod restarts;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use ppo_crds::report::Reason;
use ppo_crds::spec::Role;
use ppo_crds::status::PpoJobStatus;

use crate::condition::Truth;
use crate::gang::admission::Admission;
use crate::gang::stuck;
use crate::job::Job;
use crate::ledger::Ledger;
use crate::snapshot::Snapshot;
use crate::world::{Kind, Life};

pub(crate) use deadlines::not_ready_from;
pub use decision::{Decision, Intent};
pub use obstacle::first_obstacle;

/// How often a gang scheduler that was asked for is looked for while it is missing.
const LOOK_FOR_GANGS: SignedDuration = SignedDuration::from_secs(30);

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
        ledger.pause(has_pods(job, seen), now);
        return Decision::of(ledger, Intent::Suspend);
    }
    let mut decision = admitted(job, ledger, seen, now);
    if decision.intent != Intent::Run {
        return decision;
    }
    retire_what_is_too_many(job, seen, &mut decision.ledger);
    restarts::on_request(job, seen, &mut decision);
    restarts::what_failed(job, seen, &mut decision, now);
    restarts::what_cannot_go_on(job, seen, &mut decision);
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
fn admitted(job: &Job, mut ledger: Ledger, seen: &Snapshot, now: Timestamp) -> Decision {
    match &seen.admission {
        // Pods that its gang scheduler placed run on without it.
        Admission::Missing(_) if ledger.status.active_since.is_some() => {}
        Admission::Missing(why) => {
            let mut decision = Decision::of(ledger, Intent::Queue(Truth::no(stuck::GANG_SCHEDULER_MISSING, why)));
            // Nothing tells when it is installed.
            if let Ok(again) = now.checked_add(LOOK_FOR_GANGS) {
                decision.wake_at(again);
            }
            return decision;
        }
        Admission::Waiting { reason, message } => {
            ledger.pause(has_pods(job, seen), now);
            return Decision::of(ledger, Intent::Queue(Truth::no(reason, message)));
        }
        Admission::Free | Admission::Admitted(_) => ledger.activate(seen.gang.word(), now),
    }
    Decision::of(ledger, Intent::Run)
}

/// Whether there are pods of the job, or were made a moment ago.
fn has_pods(job: &Job, seen: &Snapshot) -> bool {
    let is_made = seen.expected.keys().any(|(kind, _)| *kind == Kind::Pod);
    is_made || seen.pods(job).next().is_some()
}

/// The run is over when the actor's first pod, which commits the last checkpoint, has ended well.
fn completed(job: &Job, ledger: &Ledger, seen: &Snapshot) -> Option<Truth> {
    let actor = seen.first_actor(job)?;
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

#[cfg(test)]
mod tests;
