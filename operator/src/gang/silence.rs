//! Detects a scheduler that is installed and does not run: the API server has its kinds, so the job asks it, and nothing ever answers.
//! The only sign of that is silence, which is reported once it has lasted long enough.

#[cfg(test)]
mod tests;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use super::kueue::admission::unanswered;
use super::scheduler::Gang;
use super::unapproved::Unapproved;
use crate::job::Job;
use crate::snapshot::Snapshot;
use crate::world::{Life, PodView};

/// Seconds in which a scheduler that runs says something of what is new: kube-scheduler looks at once, Volcano every second.
pub const ATTENTION_SECONDS: i64 = 30;

/// What a scheduler has left without a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Silence {
    since: Timestamp,
    words: String,
}

impl Silence {
    /// What the job's scheduler has left without a word, if anything.
    pub fn of(job: &Job, seen: &Snapshot) -> Option<Self> {
        let unapproved = seen.unapproved.as_ref().map(|it| of_webhook(seen.gang, it));
        let workload = || (seen.gang == Gang::Kueue).then(|| of_workload(job, seen))?;
        unapproved.or_else(workload).or_else(|| of_pods(job, seen))
    }

    /// When it has lasted too long.
    pub fn due(&self) -> Option<Timestamp> {
        let attention = SignedDuration::from_secs(ATTENTION_SECONDS);
        self.since.checked_add(attention).ok()
    }

    /// What is to be said of it by now.
    pub fn words(&self, now: Timestamp) -> Option<String> {
        let over = self.due().is_some_and(|due| due <= now);
        over.then(|| self.words.clone())
    }
}

fn of_webhook(gang: Gang, unapproved: &Unapproved) -> Silence {
    let (whose, look) = match gang {
        Gang::Volcano => ("Volcano's", VOLCANO),
        Gang::Coscheduling => ("scheduler-plugins'", COSCHEDULING),
        Gang::Kueue => ("Kueue's", KUEUE),
        Gang::None | Gang::Native(_) | Gang::Missing(_) => ("the", DEFAULT),
    };
    Silence {
        since: unapproved.since,
        words: format!(
            "{whose} webhook does not answer: does its controller run? {look} ({})",
            unapproved.words
        ),
    }
}

/// A Workload without any condition.
fn of_workload(job: &Job, seen: &Snapshot) -> Option<Silence> {
    let workload = unanswered(job, &seen.children)?;
    let words = format!(
        "Kueue has said nothing of Workload {}, which has no condition: does its controller run? {KUEUE} Behind the first of a \
         queue of strategy StrictFIFO a job waits like this, too.",
        workload.name_any()
    );
    Some(Silence {
        since: workload.creation_timestamp()?.0,
        words,
    })
}

/// Pods without a node, when a scheduler has said nothing of any. The youngest counts: a gang is looked at once it is complete, and so
/// never while the API server refuses a pod of it.
fn of_pods(job: &Job, seen: &Snapshot) -> Option<Silence> {
    if seen.refused.is_some() {
        return None;
    }
    let waits = |pod: &&PodView| pod.life == Life::Unscheduled && pod.deleting_since.is_none();
    let waiting: Vec<&PodView> = seen.pods(job).filter(waits).collect();
    if waiting.iter().any(|pod| pod.reason != PodView::UNSCHEDULED) {
        return None;
    }
    let since = waiting.iter().filter_map(|pod| pod.created).max()?;
    let first = waiting.iter().min_by_key(|pod| &pod.name)?;
    let (scheduler, look) = scheduler(seen.gang, first);
    let pods = match waiting.len() {
        1 => format!("pod {}, which has", first.name),
        count => format!("{count} pods, {} among them, which have", first.name),
    };
    let queue = match (seen.gang, job.spec.scheduling.queue.as_str()) {
        (Gang::Volcano, "") => " And is there a queue default?".to_string(),
        (Gang::Volcano, named) => format!(" And is there a queue {named}?"),
        _ => String::new(),
    };
    let words = format!(
        "the scheduler {scheduler} has said nothing of {pods} neither a node nor a word why not: does it run? \
         {look}{queue}"
    );
    Some(Silence { since, words })
}

/// Whom a pod asks for a node, and where to look for it.
fn scheduler(gang: Gang, pod: &PodView) -> (&str, &'static str) {
    let named = pod.scheduler.as_deref().unwrap_or(DEFAULT_SCHEDULER);
    let look = match gang {
        Gang::Volcano => VOLCANO,
        Gang::Coscheduling => COSCHEDULING,
        Gang::Kueue | Gang::Native(_) | Gang::None | Gang::Missing(_) if named == DEFAULT_SCHEDULER => DEFAULT,
        Gang::Kueue | Gang::Native(_) | Gang::None | Gang::Missing(_) => NAMED,
    };
    (named, look)
}

/// Who places pods that name nobody.
const DEFAULT_SCHEDULER: &str = "default-scheduler";

// Where their own instructions install them.
const VOLCANO: &str = "See `kubectl get pods -n volcano-system`.";
const COSCHEDULING: &str = "See `kubectl get pods -n scheduler-plugins`; its profile has to have this schedulerName, which a role's \
                            template names, or else the operator's --coscheduling-scheduler.";
const KUEUE: &str = "See `kubectl get pods -n kueue-system`.";
const DEFAULT: &str = "See `kubectl get pods -n kube-system`.";
const NAMED: &str = "The name is that of schedulerName in roles.*.template.";
