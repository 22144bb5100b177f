//! What keeps a job's roles from being ready.

use super::ending;
use crate::job::Job;
use crate::snapshot::Snapshot;
use crate::world::{Life, PodView};

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
