//! Events: one for every change of phase, one for every decision, and one for all that a job waits for in vain.

pub use recorders::Recorders;

pub(crate) mod recorders;

use kube::Resource;
use kube::core::DeserializeGuard;
use kube::runtime::events::{Event, EventType, Recorder};
use ppo_crds::PpoJob;
use ppo_crds::status::{Phase, PpoJobStatus};

use crate::condition::{get, kind};
use crate::context::Context;
use crate::gang::stuck;
use crate::reconcile::subject::Subject;
use crate::world::JobKey;

/// Longest note that the API server takes.
const LONGEST: usize = 1024;

/// Writes what changed between the job's status and the one `after` it, with what was decided. An event that cannot be written is logged, and
/// nothing waits for it: the status says the same.
pub async fn publish(job: &Subject, after: &PpoJobStatus, notes: &[String], context: &Context) {
    for event in events(&job.status, after, notes) {
        // A recorder would take a second decision of this look for the first one again.
        write(&job.object, &event, &context.recorders.fresh(), context).await;
    }
}

/// Writes that something was refused or that a webhook does not answer for it, and why; tried again and refused again it is the same event.
pub async fn refused(job: &impl Resource<DynamicType = ()>, words: &str, context: &Context) {
    repeat(job, "Refused", EventType::Warning, words, context).await;
}

/// Writes that a job cannot be read, and so that nothing is done with it: it neither starts, nor is restarted, suspended or ended.
pub async fn unreadable(job: &DeserializeGuard<PpoJob>, error: &str, context: &Context) {
    let note = format!("the operator cannot read this job, and does nothing with it until that is mended: {error}");
    repeat(job, "Unreadable", EventType::Warning, &note, context).await;
}

/// Writes that the job uses a claim of its name that somebody else has made, and what may be `wrong` with it.
pub async fn claim_found(job: &impl Resource<DynamicType = ()>, claim: &str, wrong: Option<&str>, context: &Context) {
    let found =
        format!("PersistentVolumeClaim {claim} is there already and is not the operator's: the job uses it as it is");
    let (type_, note) = match wrong {
        Some(wrong) => (EventType::Warning, format!("{found}; {wrong}")),
        None => (EventType::Normal, found),
    };
    repeat(job, "ClaimFound", type_, &note, context).await;
}

/// Writes what may have been said before: in the same words it is the same event.
async fn repeat(job: &impl Resource<DynamicType = ()>, reason: &str, type_: EventType, note: &str, context: &Context) {
    let recorder = context.recorders.saying(note, job);
    write(job, &event(reason, type_, note), &recorder, context).await;
}

async fn write(job: &impl Resource<DynamicType = ()>, event: &Event, recorder: &Recorder, context: &Context) {
    context.metrics.wrote("create", "Event");
    if let Err(error) = recorder.publish(event, &job.object_ref(&())).await {
        tracing::warn!(job = %JobKey::of(job), %error, reason = event.reason, "an event could not be written");
    }
}

fn events(before: &PpoJobStatus, after: &PpoJobStatus, notes: &[String]) -> Vec<Event> {
    let mut events: Vec<Event> = notes
        .iter()
        .map(|note| event("Restarting", EventType::Warning, note))
        .collect();
    let changed = after.phase.filter(|phase| before.phase != Some(*phase));
    if let Some(phase) = changed.filter(|phase| *phase != Phase::Pending) {
        let kind = match phase {
            Phase::Failed | Phase::Restarting => EventType::Warning,
            _ => EventType::Normal,
        };
        events.push(event(&format!("{phase:?}"), kind, said(after, behind(phase))));
    }
    // The phase stays Queued whatever it waits for.
    if let Some(reason) = stuck::reason(after).filter(|reason| stuck::reason(before) != Some(*reason)) {
        events.push(event(reason, EventType::Warning, said(after, kind::GANG_SCHEDULED)));
    }
    events
}

/// The condition behind a phase.
fn behind(phase: Phase) -> &'static str {
    match phase {
        Phase::Pending => kind::ACCEPTED,
        Phase::Queued | Phase::Scheduling => kind::GANG_SCHEDULED,
        Phase::Initializing | Phase::Running | Phase::Restarting => kind::ROLES_READY,
        Phase::Suspended => kind::SUSPENDED,
        Phase::Succeeded => kind::COMPLETE,
        Phase::Failed => kind::FAILED,
    }
}

/// What a condition says.
fn said<'a>(status: &'a PpoJobStatus, condition: &str) -> &'a str {
    get(&status.conditions, condition).map_or("", |condition| condition.message.as_str())
}

fn event(reason: &str, type_: EventType, note: &str) -> Event {
    Event {
        type_,
        reason: reason.into(),
        note: Some(note[..note.floor_char_boundary(LONGEST)].to_string()),
        action: "Reconcile".into(),
        secondary: None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A job of that phase whose gang is not complete.
    fn waits(phase: &str, reason: &str, message: &str) -> PpoJobStatus {
        let gang = json!({"type": "GangScheduled", "status": "False", "reason": reason, "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        serde_json::from_value(json!({"phase": phase, "conditions": [gang]})).unwrap()
    }

    /// Type, reason and note of each event of a change.
    fn told(before: &PpoJobStatus, after: &PpoJobStatus) -> Vec<Value> {
        let events = events(before, after, &[]).into_iter();
        let shown = |event: Event| json!([format!("{:?}", event.type_), event.reason, event.note]);
        events.map(shown).collect()
    }

    #[test]
    fn what_a_job_waits_for_in_vain_is_a_warning_once_for_each_reason() {
        let none = PpoJobStatus::default();
        let missing = waits("Queued", "GangSchedulerMissing", "install Kueue");
        let first = [
            json!(["Normal", "Queued", "install Kueue"]),
            json!(["Warning", "GangSchedulerMissing", "install Kueue"]),
        ];
        assert_eq!(told(&none, &missing), first);
        // Its kind is served now, and its controller does not run.
        let silent = waits("Queued", "SchedulerSilent", "does its controller run?");
        let second = [json!(["Warning", "SchedulerSilent", "does its controller run?"])];
        assert_eq!(told(&missing, &silent), second);
        assert_eq!(told(&silent, &silent), [] as [Value; 0]);
        let reworded = waits("Queued", "SchedulerSilent", "does the webhook's pod run?");
        assert_eq!(told(&silent, &reworded), [] as [Value; 0]);
        // Quota comes back by itself.
        let queued = waits("Queued", "Pending", "waits for quota");
        assert_eq!(told(&silent, &queued), [] as [Value; 0]);
        assert_eq!(told(&queued, &silent).len(), 1);
    }

    #[test]
    fn a_scheduler_that_says_nothing_of_pods_is_a_warning_in_whatever_phase() {
        let placed = waits("Scheduling", "WaitsForNodes", "0 of 5 pods have nodes");
        let silent = waits("Scheduling", "SchedulerSilent", "does it run?");
        let warning = [json!(["Warning", "SchedulerSilent", "does it run?"])];
        assert_eq!(told(&placed, &silent), warning);
    }
}
