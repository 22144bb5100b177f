//! `plan(job, observed, now) -> actions`: a function without a client, a clock or randomness.

mod config;
mod defaults;
mod disruption_budget;
mod drift;
mod images;
mod network_policy;
mod placement;
mod pod_level;
mod pods;
mod retire;
mod services;
mod storage;
mod template;
mod vllm;

pub use defaults::PodDefaults;
pub use drift::repair;
pub use pod_level::is_pod_level;
pub use pods::{role_template, shape, sized};
pub use retire::hangs_at;
pub use storage::{undersized, undersized_claim};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::DynamicObject;
use kube::{Resource, ResourceExt};
use ppo_crds::pod::label;
use ppo_crds::status::PpoJobStatus;
use serde::Serialize;
use serde_json::Value;

use crate::gang::Silence;
use crate::job::Job;
use crate::lifecycle::{Decision, Intent, decide};
use crate::settings::PodSettings;
use crate::snapshot::Snapshot;
use crate::status::status;
use crate::world::Kind;

/// A write to the API server.
#[derive(Clone, Debug)]
pub enum Action {
    /// Makes the Secret with a new random token.
    CreateToken(Box<DynamicObject>),
    /// Makes an object.
    Create(Kind, Box<DynamicObject>),
    /// Brings an object, the one of that uid, back to what it should be.
    Apply(Kind, Box<DynamicObject>),
    /// Merges into an object's status.
    MergeStatus(Kind, String, Value),
    /// Merges into an object.
    Merge(Kind, String, Value),
    /// Deletes exactly the observed object.
    Delete(Target),
    /// Deletes the job: its time after the end is over.
    DeleteJob,
}

/// What to delete. It is left alone when it is another object by now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its resource version; None where any will do.
    pub resource_version: Option<String>,
    /// 0: without waiting for its processes, whose node is lost.
    pub grace_seconds: Option<u32>,
}

impl Target {
    /// Exactly this object, however it has changed.
    pub fn of(kind: Kind, object: &DynamicObject) -> Self {
        Self {
            kind,
            name: object.name_any(),
            uid: object.uid().unwrap_or_default(),
            resource_version: None,
            grace_seconds: None,
        }
    }
}

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

/// Metadata of an object of the job.
pub fn metadata(job: &Job, name: &str) -> ObjectMeta {
    let labels = [
        (label::NAME, label::NAME_VALUE),
        (label::MANAGED_BY, label::MANAGED_BY_VALUE),
        (label::JOB, job.key.name.as_str()),
    ];
    ObjectMeta {
        name: Some(name.into()),
        namespace: Some(job.key.namespace.clone()),
        labels: Some(labels.map(|(key, value)| (key.to_string(), value.to_string())).into()),
        owner_references: Some(vec![job.owner_reference()]),
        ..ObjectMeta::default()
    }
}

/// An object without its type, ready to be sent.
pub fn untyped<K>(kind: Kind, object: &K) -> DynamicObject
where
    K: Resource<DynamicType = ()> + Serialize,
{
    let mut data = serde_json::to_value(object).unwrap_or_default();
    if let Some(fields) = data.as_object_mut() {
        for known in ["apiVersion", "kind", "metadata"] {
            fields.remove(known);
        }
    }
    let mut untyped = DynamicObject::new("", &kind.resource()).data(data);
    untyped.metadata = object.meta().clone();
    untyped
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
        let limited = smallest_job(&json!({"ttlSecondsAfterFinished": 60}));
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
