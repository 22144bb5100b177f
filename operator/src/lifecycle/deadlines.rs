//! The times by which a job has to be ready, and to be over.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use ppo_crds::status::PpoJobStatus;

use super::obstacle::first_obstacle;
use crate::condition::{self, Truth, kind};
use crate::gang::silence::Silence;
use crate::job::Job;
use crate::ledger::Ledger;
use crate::snapshot::Snapshot;

/// The deadline that has passed.
pub(super) fn overdue(job: &Job, seen: &Snapshot, ledger: &Ledger, now: Timestamp) -> Option<Truth> {
    let policy = &job.spec.run_policy;
    let active = ledger.active_seconds(now);
    if let Some(limit) = policy.active_deadline_seconds.filter(|limit| active >= *limit) {
        let message = format!("it was active for {active} s; runPolicy.activeDeadlineSeconds is {limit}");
        return Some(Truth::yes("DeadlineExceeded", message));
    }
    let limit = policy.pre_running_deadline_seconds;
    let since = not_ready_since(ledger, seen, job, now)?;
    let waited = u64::try_from(now.duration_since(since).as_secs()).unwrap_or_default();
    (waited >= limit).then(|| {
        let silence = Silence::of(job, seen).and_then(|silence| silence.words(now));
        let why = silence.or_else(|| first_obstacle(job, seen));
        let why = why.unwrap_or_else(|| "pods are missing".into());
        let message = format!("not all roles were ready within {limit} s (runPolicy.preRunningDeadlineSeconds): {why}");
        Truth::yes("NotRunningInTime", message)
    })
}

/// Times at which a deadline would pass.
pub(super) fn all(job: &Job, seen: &Snapshot, ledger: &Ledger, now: Timestamp) -> Vec<Timestamp> {
    let policy = &job.spec.run_policy;
    let after = |time: Timestamp, seconds: u64| {
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
        time.checked_add(SignedDuration::from_secs(seconds)).ok()
    };
    let since = ledger.status.active_since.as_ref().map(|since| since.0);
    let active = since
        .zip(policy.active_deadline_seconds)
        .and_then(|(since, limit)| after(since, limit.saturating_sub(ledger.status.active_seconds)));
    let ready =
        not_ready_since(ledger, seen, job, now).and_then(|since| after(since, policy.pre_running_deadline_seconds));
    [active, ready].into_iter().flatten().collect()
}

/// Since when the job has had too few ready pods, and somebody who makes them.
fn not_ready_since(ledger: &Ledger, seen: &Snapshot, job: &Job, now: Timestamp) -> Option<Timestamp> {
    if seen.roles_ready(job, ledger) {
        return None;
    }
    // It is this very look that misses them.
    let misses = condition::holds(&ledger.status.conditions, kind::ROLES_READY);
    let since = not_ready_from(&ledger.status, Some(seen.listening_since))?;
    Some(if misses { now } else { since })
}

/// From when the time runs in which the roles of a job that are not ready have to be: its activation, the moment it lost them, or the start of
/// the operator that acts, where that is known. What no operator was there to do is no fault of the job's.
pub(crate) fn not_ready_from(status: &PpoJobStatus, acting_since: Option<Timestamp>) -> Option<Timestamp> {
    let active = status.active_since.as_ref()?.0;
    let lost = condition::get(&status.conditions, kind::ROLES_READY).map(|ready| ready.last_transition_time.0);
    [Some(active), lost, acting_since].into_iter().max().flatten()
}
