//! What a job is doing when nothing holds it up.

use k8s_openapi::jiff::Timestamp;
use ppo_crds::status::Phase;

use super::evidence::Evidence;
use crate::plugin::age;

/// One sentence for a job without a [blocking](super::Finding::blocks) finding.
pub fn healthy(evidence: &Evidence, now: Timestamp) -> String {
    let status = evidence.status();
    let ready = status.ready.clone().unwrap_or_else(|| "none yet".into());
    let age = |time: Option<Timestamp>| {
        time.map(|time| age::since(time, now))
            .unwrap_or_else(|| "some time".into())
    };
    match status.phase {
        None if evidence.has_own_objects() => {
            "Nothing: the operator has begun with it, and writes its status soon.".into()
        }
        None => "Nothing: the job was created just now, and the operator looks at it next.".into(),
        Some(Phase::Succeeded) => {
            let summary = status.progress.map(|progress| progress.summary).unwrap_or_default();
            format!(
                "Nothing: it succeeded {} ago, step {summary}.",
                age(status.completion_time.map(|time| time.0))
            )
        }
        Some(Phase::Running) => running(evidence),
        Some(Phase::Initializing) => format!("Nothing: its pods load models and meet each other ({ready} ready)."),
        Some(Phase::Scheduling) => "Nothing: its pods were made just now, and the scheduler looks for nodes.".into(),
        Some(Phase::Restarting) => format!("Nothing: its pods are being replaced ({ready} ready)."),
        Some(phase) => format!("Nothing that can be seen: the operator says {phase:?}."),
    }
}

fn running(evidence: &Evidence) -> String {
    let Some(progress) = evidence.status().progress else {
        return "Nothing: it runs, and makes its first step; the actor reports when that is done.".into();
    };
    let left = progress.total.saturating_sub(progress.step);
    let pace = progress
        .eta_seconds
        .filter(|_| left > 0)
        .map(|eta| (age::human_unsigned(eta.div_ceil(left)), eta));
    let next = match pace {
        Some((step, eta)) => format!(
            "; the next report comes within about {step}, the end in {}",
            age::human_unsigned(eta)
        ),
        None => String::new(),
    };
    format!("Nothing: it runs, step {}{next}.", progress.summary)
}
