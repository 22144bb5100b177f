//! Writes the status, when it says something new, and the events of what changed.

use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use ppo_crds::spec::Gang;
use ppo_crds::status::{Phase, PpoJobStatus};
use serde_json::{Value, json};

use kube::runtime::controller::Action as Next;

use super::error::Error;
use super::subject::Subject;
use super::write::Writer;
use crate::condition::Truth;
use crate::context::{Context, FIELD_MANAGER};
use crate::events;
use crate::job::Job;
use crate::ledger::Ledger;
use crate::lifecycle::{Decision, Intent};
use crate::plan::Plan;
use crate::snapshot::Snapshot;

/// Writes the plan's status. Returns when to come back, if a minor change was held back.
///
/// # Errors
/// When the job has changed since it was read (nothing may then be done on the old word), or the server does not answer.
pub async fn status(job: &Subject, plan: &Plan, context: &Context) -> Result<Option<Duration>, Error> {
    if plan.status == job.status {
        return Ok(None);
    }
    let key = &job.checked.key;
    let minor = urgent(&plan.status) == urgent(&job.status);
    let starts = job.status.phase.is_none_or(is_starting);
    if minor && let Some(wait) = context.minor.wait(key, starts, Instant::now()) {
        return Ok(Some(wait));
    }
    write(job, &plan.status, context).await?;
    for note in &plan.notes {
        tracing::info!(job = %key, "{note}");
    }
    context.minor.wrote(key, Instant::now());
    events::publish(job, &plan.status, &plan.notes, context).await;
    Ok(None)
}

/// The whole status under our field manager, bound to the version it was computed from.
async fn write(job: &Subject, status: &PpoJobStatus, context: &Context) -> Result<(), Error> {
    let key = &job.checked.key;
    let patch = json!({
        "apiVersion": "ppojob.dev/v1alpha1",
        "kind": "PpoJob",
        "metadata": {"name": key.name, "uid": job.checked.uid, "resourceVersion": job.object.metadata.resource_version},
        "status": status,
    });
    let params = PatchParams::apply(FIELD_MANAGER).force();
    context.metrics.wrote("patch", "PpoJobStatus");
    let jobs = Writer::of_jobs(&context.client, &key.namespace);
    let answer = jobs.patch_status(&key.name, &params, &Patch::Apply(&patch)).await;
    answer.map_err(|source| match &source {
        kube::Error::Api(status) if status.is_conflict() => Error::Stale,
        _ => Error::request(format!("writing the status of PpoJob {key}"), None)(source),
    })
}

/// What a write that was refused leads to: a pod that the API server takes for invalid, by its template, ends a job that has never run;
/// all else is tried again.
///
/// # Errors
/// The refusal, to be tried again.
pub async fn refusal(
    job: &Subject,
    seen: &Snapshot,
    status: &PpoJobStatus,
    error: Error,
    context: &Context,
) -> Result<Next, Error> {
    // A run is not lost for a template that was changed meanwhile, and may be put right. Where a pod stays missing, the readiness deadline
    // ends the job.
    let is_over = status.phase.is_some_and(Phase::is_finished);
    if !error.is_final() || is_over || status.start_time.is_some() {
        return Err(error);
    }
    events::refused(&job.object, &error.words(), context).await;
    let failed = refused(&job.checked, seen, status, &error, context.now());
    write(job, &failed, context).await.map_err(|late| match late {
        // The status was written a moment ago: the next look has the new version.
        Error::Stale => error,
        other => other,
    })?;
    events::publish(job, &failed, &[], context).await;
    context.metrics.observe(&job.checked, &failed, seen);
    Ok(Next::await_change())
}

/// The status of a job that ends, as of any other that fails, because of what was refused after `planned` was written.
fn refused(job: &Job, seen: &Snapshot, planned: &PpoJobStatus, error: &Error, now: Timestamp) -> PpoJobStatus {
    let failed = Intent::Fail(Truth::yes("Refused", error.words()));
    let decision = Decision::of(Ledger::open(planned, job), failed);
    crate::status::status(job, &decision, seen, now)
}

fn is_starting(phase: Phase) -> bool {
    matches!(
        phase,
        Phase::Pending | Phase::Queued | Phase::Scheduling | Phase::Initializing
    )
}

/// The part of the status that cannot wait: what was decided, and what people and programs wait for. How a job starts, words
/// and progress can: a job that is up within two seconds is written once.
fn urgent(status: &PpoJobStatus) -> Value {
    let roles = status
        .roles
        .iter()
        .map(|role| json!([role.name, role.attempt.max(1), role.pod_attempts, role.restarts]));
    let decided = status.attempt > 1 || status.restarts > 0;
    let starting = status.phase.is_none_or(is_starting);
    json!({
        "attempt": status.attempt.max(1),
        // Roles that were never restarted say nothing yet.
        "roles": roles.filter(|role| decided || role[1] != json!(1) || role[2] != json!([])).collect::<Vec<_>>(),
        "counts": [status.restarts, status.rule_restarts.len()],
        "request": status.restart_request,
        "phase": if starting { None } else { status.phase },
        // Before its first pod is made: the others join the same gang, whoever makes them.
        "gang": status.active_since.as_ref().and(status.gang).filter(|gang| *gang != Gang::None),
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::condition;
    use crate::smallest_job::smallest_job;
    use crate::world::Children;

    #[test]
    fn the_gang_of_a_job_that_starts_is_written_before_its_pods_are_made() {
        let starts = |gang| PpoJobStatus {
            gang: Some(gang),
            active_since: Some(Time(Timestamp::UNIX_EPOCH)),
            phase: Some(Phase::Pending),
            ..PpoJobStatus::default()
        };
        let new = urgent(&PpoJobStatus::default());
        assert_ne!(urgent(&starts(Gang::Volcano)), new);
        // Without one there is nothing to mix, and the first write can wait.
        assert_eq!(urgent(&starts(Gang::None)), new);
    }

    #[test]
    fn a_job_that_ends_because_a_pod_is_refused_has_ended_as_any_other_that_fails() {
        let job = smallest_job(&json!({}));
        let planned = json!({
            "phase": "Initializing", "attempt": 1, "gang": "none", "activeSince": "1970-01-01T00:00:00Z", "ready": "1/2",
            "roles": [{"name": "rollout", "attempt": 1, "desired": 1, "ready": 1}],
            "conditions": [{"type": "RolesReady", "status": "False", "reason": "WaitsForPods", "message": "pods are being made",
                "lastTransitionTime": "1970-01-01T00:00:00Z"}],
        });
        let planned: PpoJobStatus = serde_json::from_value(planned).unwrap();
        let seen = Snapshot::plain(Children::default(), crate::gang::Gang::None, Timestamp::UNIX_EPOCH);
        let now = Timestamp::from_second(60).unwrap();
        let failed = refused(&job, &seen, &planned, &Error::Stale, now);
        assert_eq!(
            (failed.phase, failed.ready.as_deref()),
            (Some(Phase::Failed), Some("0/2"))
        );
        assert!(failed.roles.iter().all(|role| role.ready == 0), "{:?}", failed.roles);
        assert_eq!(failed.completion_time, Some(Time(now)));
        let reason = |kind| condition::get(&failed.conditions, kind).map(|condition| condition.reason.as_str());
        let reasons = [condition::kind::FAILED, condition::kind::ROLES_READY].map(reason);
        assert_eq!(reasons, [Some("Refused"), Some("NoPodsWanted")]);
    }
}
