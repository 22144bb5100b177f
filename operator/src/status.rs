//! The status as a function of what was decided and observed. Pure.

mod conditions;

pub use conditions::{NO_LONGER_VALID, SUSPENDED};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use ppo_crds::pod::label;
use ppo_crds::spec::Role;
use ppo_crds::status::{Phase, PpoJobStatus, Progress, RoleStatus};

use crate::condition::{holds, kind, set, whole_second};
use crate::job::{Job, RolePods};
use crate::ledger::Ledger;
use crate::lifecycle::{Decision, Intent};
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
        // What is not known yet of a run that goes on is neither what was said while it was suspended nor what an attempt that is over said.
        let unknown = conditions::awaits_first_word(decision, seen, ready);
        status.conditions.retain(|condition| {
            condition.type_ != kind::PROGRESSING || !(unknown || condition.reason == conditions::NOT_RUNNING)
        });
    }
    for (kind, truth) in conditions::of(job, decision, seen, ready, now) {
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
    let current = seen
        .first_actor(job)
        .filter(|pod| pod.attempt == ledger.attempt_of(Role::Actor, 0));
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
    use serde_json::json;

    use super::*;
    use crate::condition::Truth;
    use crate::gang::Gang;
    use crate::smallest_job::smallest_job;
    use crate::world::Children;

    pub(super) fn job() -> Job {
        smallest_job(&json!({}))
    }

    pub(super) fn decision(job: &Job, previous: &PpoJobStatus, intent: &Intent) -> Decision {
        Decision::of(Ledger::open(previous, job), intent.clone())
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
}
