//! `plan(job, observed, now) -> actions`: a function without a client, a clock or randomness.

pub(crate) mod action;
mod config;
mod disruption_budget;
pub(crate) mod drift;
mod images;
mod network_policy;
pub(crate) mod object;
mod placement;
pub(crate) mod pod_level;
mod pods;
mod retire;
mod services;
pub(crate) mod shape;
pub(crate) mod storage;
mod template;
mod vllm;

pub use action::{Action, Target};
pub use drift::repair;
pub use object::{metadata, untyped};
pub use pod_level::is_pod_level;
pub use retire::hangs_at;
pub use shape::{role_template, shape, sized};
pub use storage::{undersized, undersized_claim};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use ppo_crds::status::PpoJobStatus;

use crate::gang::Silence;
use crate::job::Job;
use crate::lifecycle::{Decision, Intent, decide};
use crate::settings::PodSettings;
use crate::snapshot::Snapshot;
use crate::status::status;

/// What a reconcile does: the status first, since it holds the decisions, then the waves in order.
#[derive(Debug)]
pub struct Plan {
    /// The status to write, if it differs.
    pub status: PpoJobStatus,
    /// Writes, each wave after the one before.
    pub waves: Vec<Vec<Action>>,
    /// Sentences for events.
    pub notes: Vec<String>,
    /// When to look again, should nothing happen before.
    pub wake: Option<Timestamp>,
}

/// Plans.
pub fn plan(job: &Job, seen: &Snapshot, previous: &PpoJobStatus, settings: &PodSettings, now: Timestamp) -> Plan {
    let decision = decide(job, seen, previous, now);
    let upkeep = seen.gang.upkeep(job, &decision, seen, now);
    let ended = end(job, &decision, now);
    let mut objects = objects(job, &decision, seen, settings);
    objects.extend(upkeep.actions);
    objects.extend(ended.0);
    let retired = retire::pods(job, &decision, seen, now);
    let missing = pods::missing(job, &decision, seen, settings);
    // Last, and by itself: a job can do without, so where it is refused (a quota, a policy) no pod waits for it.
    let budget = disruption_budget::upkeep(job, &decision, seen, settings);
    let silent = Silence::of(job, seen)
        .and_then(|silence| silence.due())
        .filter(|due| *due > now);
    let wakes = [decision.wake, upkeep.wake, ended.1, retired.wake, silent];
    Plan {
        status: status(job, &decision, seen, now),
        waves: vec![retired.actions, objects, missing, budget.into_iter().collect()],
        notes: decision.notes,
        wake: wakes.into_iter().flatten().min(),
    }
}

/// Objects that are missing or have drifted, while the job is alive.
fn objects(job: &Job, decision: &Decision, seen: &Snapshot, settings: &PodSettings) -> Vec<Action> {
    if matches!(decision.intent, Intent::Complete(_) | Intent::Fail(_) | Intent::Ended) {
        return Vec::new();
    }
    // The gang's object exists before the pods: Kueue has to admit it first.
    let mut actions = seen.gang.repair(job, &decision.intent, seen, settings);
    actions.extend(seen.gang.left_over(job, seen));
    if decision.intent != Intent::Run {
        return actions;
    }
    actions.extend(config::missing(job, seen, settings));
    actions.extend(storage::missing(job, seen));
    let policy = settings.network_policies.as_ref();
    let applied = services::desired(job)
        .into_iter()
        .chain(policy.map(|scrapers| network_policy::desired(job, scrapers)));
    actions.extend(applied.filter_map(|(kind, desired)| drift::repair(kind, desired, seen)));
    if settings.network_policies.is_none() {
        actions.extend(network_policy::retired(job, seen));
    }
    actions
}

/// Deletes a finished job whose time is over, or says when it will be.
fn end(job: &Job, decision: &Decision, now: Timestamp) -> (Option<Action>, Option<Timestamp>) {
    let ttl = job.spec.run_policy.ttl_seconds_after_finished;
    let ended = decision
        .ledger
        .status
        .completion_time
        .as_ref()
        .filter(|_| decision.intent == Intent::Ended);
    let Some((ttl, ended)) = ttl.zip(ended) else {
        return (None, None);
    };
    let seconds = SignedDuration::from_secs(i64::try_from(ttl).unwrap_or(i64::MAX));
    match ended.0.checked_add(seconds) {
        Ok(due) if due <= now => (Some(Action::DeleteJob), None),
        Ok(due) => (None, Some(due)),
        Err(_) => (None, None),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;

    use super::*;
    use crate::ledger::Ledger;
    use crate::smallest_job::smallest_job;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn a_job_deletes_itself_when_its_time_after_the_end_is_over_and_not_before() {
        let limited = smallest_job(&json!({"runPolicy": {"ttlSecondsAfterFinished": 60}}));
        let finished = PpoJobStatus {
            completion_time: Some(Time(at(1000))),
            ..PpoJobStatus::default()
        };
        let look = |job: &Job, intent: Intent, now: i64| {
            let decision = Decision::of(
                Ledger {
                    status: finished.clone(),
                },
                intent,
            );
            let (action, wake) = end(job, &decision, at(now));
            let deletes = action.map(|action| matches!(action, Action::DeleteJob));
            (deletes, wake)
        };
        assert_eq!(look(&limited, Intent::Ended, 1059), (None, Some(at(1060))));
        assert_eq!(look(&limited, Intent::Ended, 1060), (Some(true), None));
        assert_eq!(look(&limited, Intent::Run, 1060), (None, None), "it has not ended");
        assert_eq!(
            look(&smallest_job(&json!({})), Intent::Ended, 1_000_000),
            (None, None),
            "it stays"
        );
    }
}
