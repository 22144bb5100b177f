//! What every reconcile shares.

pub use jobs::Jobs;
pub use listed::Listed;

mod jobs;
mod listed;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, broadcast, watch};

use crate::contract::Contract;
use crate::events::recorders::Recorders;
use crate::expected::Expected;
use crate::gang::{Flavors, Unapproved};
use crate::metrics::Metrics;
use crate::reconcile::refusals::Refusals;
use crate::reconcile::unreadable::Unreadable;
use crate::reports::Reports;
use crate::served::Served;
use crate::settings::PodSettings;
use crate::world::{JobKey, Kind, World};

/// Under which the operator owns fields of objects.
pub const FIELD_MANAGER: &str = "ppo-operator";

/// What every reconcile shares.
pub struct Context {
    /// Since when this process acts: one that waits for another to go asks no actor anything.
    pub acting_since: OnceLock<Timestamp>,
    /// Between two questions to an actor.
    pub report_interval: Duration,
    /// For one reconcile.
    pub reconcile_deadline: Duration,
    /// The API server.
    pub client: Client,
    /// The administrator's choices.
    pub settings: PodSettings,
    /// Observed objects.
    pub world: Arc<World>,
    /// Of which kinds all are observed.
    pub listed: Listed,
    /// Jobs, checked.
    pub jobs: Jobs,
    /// What was made and not seen yet.
    pub expected: Arc<Expected>,
    /// Jobs that changed and were not looked at yet.
    pub queued: Mutex<HashSet<JobKey>>,
    /// How many writes may be under way at once.
    pub writes: Semaphore,
    /// What actors say.
    pub reports: Arc<Reports>,
    /// Gang schedulers that the cluster has.
    pub served: Arc<Served>,
    /// Those that are found while the operator runs.
    pub new_kinds: broadcast::Sender<Kind>,
    /// Kueue's flavors, as far as they were read.
    pub flavors: Flavors,
    /// Jobs whose gang's object a webhook does not answer for.
    pub unapproved: Mutex<HashMap<JobKey, Unapproved>>,
    /// What the API server last refused of what a job needs, and why: until it is done.
    pub refused: Refusals,
    /// Jobs that cannot be decoded, as they were told of.
    pub unreadable: Unreadable,
    /// Whether the installed CRD is this operator's.
    pub contract: watch::Receiver<Contract>,
    /// Counts.
    pub metrics: Arc<Metrics>,
    /// Write events.
    pub recorders: Recorders,
    /// When a failed reconcile is tried again.
    pub backoff: Backoff,
    /// When minor status changes are written.
    pub minor: Minor,
}

impl Context {
    /// The time.
    pub fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    /// Forgets an earlier job of the same name, if its end was never seen: it was made again at once, or while the watch was broken.
    pub fn forget_earlier(&self, job: &impl ResourceExt) {
        let key = JobKey::of(job);
        let known = self.jobs.uid(&key);
        if known.is_some() && known != job.uid() {
            self.forget(&key);
        }
    }

    /// Forgets a deleted job.
    pub fn forget(&self, key: &JobKey) {
        self.jobs.forget(key);
        self.reports.forget(key);
        self.expected.forget(key);
        self.world.forget(key);
        self.backoff.forget(key);
        self.minor.forget(key);
        self.unapproved.lock().remove(key);
        self.refused.forget(key);
        self.unreadable.forget(key);
        self.recorders.forget(key);
        self.metrics.forget(key);
    }

    /// The metrics as they are now; what changes without a reconcile is looked up here.
    ///
    /// # Errors
    /// When a metric cannot be written, which is a bug.
    pub fn scrape(&self) -> prometheus::Result<String> {
        let size = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.metrics.cached(&self.world.count());
        self.metrics.queue_depth.set(size(self.queued.lock().len()));
        let matches = *self.contract.borrow() == Contract::Same;
        self.metrics.crd_matches.set(matches.into());
        let silences = self.reports.silences(&self.world.actors(None), self.now());
        self.metrics.progress(silences);
        self.metrics.text()
    }
}

/// Exponential backoff per job.
#[derive(Default)]
pub struct Backoff(Mutex<HashMap<JobKey, Retry>>);

/// The next try of a job.
#[derive(Clone, Copy)]
struct Retry {
    /// How long it waits.
    delay: Duration,
    /// When it is due.
    due: Instant,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(50);
    const LONGEST: Duration = Duration::from_secs(60);

    /// How long to wait after one more failure. News make a job be looked at before its next try is due: such a failure makes that no later,
    /// or a burst of them in one bad second, as when all pods of a job come up, would hold it up for a minute.
    pub fn next(&self, key: &JobKey, now: Instant) -> Duration {
        let mut retries = self.0.lock();
        let before = retries.get(key).copied();
        if let Some(early) = before.filter(|retry| now < retry.due) {
            return early.due.duration_since(now);
        }
        let delay = before.map_or(Self::FIRST, |retry| retry.delay.saturating_mul(2).min(Self::LONGEST));
        let due = now + delay;
        retries.insert(key.clone(), Retry { delay, due });
        delay
    }

    /// After a success.
    pub fn forget(&self, key: &JobKey) {
        self.0.lock().remove(key);
    }
}

/// When minor changes of a status may be written: some time after the job's last write, and with a pace over all jobs that start, and
/// another over all that run.
pub struct Minor {
    jobs: Mutex<HashMap<JobKey, Turn>>,
    /// When the next starting job may have its turn.
    starting: Mutex<Instant>,
    /// When the next running one may.
    running: Mutex<Instant>,
}

/// A job's place in the line.
struct Turn {
    /// When its status was last written, or when it was first seen.
    last: Instant,
    /// When it may write.
    slot: Option<Instant>,
}

impl Default for Minor {
    fn default() -> Self {
        Self {
            jobs: Mutex::default(),
            starting: Mutex::new(Instant::now()),
            running: Mutex::new(Instant::now()),
        }
    }
}

impl Minor {
    /// Between two writes of one job.
    const INTERVAL: Duration = Duration::from_secs(2);
    /// Between the writes of any two starting jobs. While a job starts there is a minor change with every pod, and with every try
    /// of the scheduler, which words its reason anew: hundreds of jobs at once would spend more on telling so than on starting.
    const PACE: Duration = Duration::from_millis(250);
    /// Between the writes of any two others, most of which tell of progress. A few hundred jobs tell of it with every report.
    const PACE_OF_RUNNING: Duration = Duration::from_millis(25);

    /// How long a minor change still has to wait.
    pub fn wait(&self, key: &JobKey, starting: bool, now: Instant) -> Option<Duration> {
        let mut jobs = self.jobs.lock();
        let turn = jobs.entry(key.clone()).or_insert(Turn { last: now, slot: None });
        let due = now.max(turn.last + Self::INTERVAL);
        let (line, pace) = match starting {
            true => (&self.starting, Self::PACE),
            false => (&self.running, Self::PACE_OF_RUNNING),
        };
        let slot = *turn.slot.get_or_insert_with(|| {
            let mut next = line.lock();
            let slot = due.max(*next);
            *next = slot + pace;
            slot
        });
        slot.checked_duration_since(now).filter(|left| !left.is_zero())
    }

    /// Notes a write.
    pub fn wrote(&self, key: &JobKey, now: Instant) {
        self.jobs.lock().insert(key.clone(), Turn { last: now, slot: None });
    }

    fn forget(&self, key: &JobKey) {
        self.jobs.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(index: u64) -> JobKey {
        JobKey {
            namespace: "n".into(),
            name: format!("job-{index}"),
        }
    }

    #[test]
    fn each_try_that_fails_waits_twice_as_long_and_a_failure_before_it_is_due_makes_it_no_later() {
        let (backoff, began) = (Backoff::default(), Instant::now());
        let mut now = began;
        for milliseconds in [50, 100, 200, 400] {
            let delay = backoff.next(&job(0), now);
            assert_eq!(delay, Duration::from_millis(milliseconds));
            // News of each of its pods.
            for _ in 0..20 {
                assert_eq!(backoff.next(&job(0), now + delay / 2), delay / 2);
            }
            now += delay;
        }
        for _ in 0..12 {
            now += backoff.next(&job(0), now);
        }
        assert_eq!(backoff.next(&job(0), now), Backoff::LONGEST);
        backoff.forget(&job(0));
        assert_eq!(backoff.next(&job(0), now), Backoff::FIRST);
    }

    #[test]
    fn one_job_alone_says_minor_things_every_two_seconds() {
        let (minor, began) = (Minor::default(), Instant::now());
        for starting in [true, false] {
            assert_eq!(minor.wait(&job(0), starting, began), Some(Minor::INTERVAL));
            let later = began + Minor::INTERVAL;
            assert_eq!(minor.wait(&job(0), starting, later), None);
            minor.wrote(&job(0), began);
        }
    }

    #[test]
    fn many_jobs_that_start_share_a_pace_and_each_has_its_turn() {
        let (minor, began) = (Minor::default(), Instant::now());
        let slots: Vec<Duration> = (0..100)
            .filter_map(|index| minor.wait(&job(index), true, began))
            .collect();
        let paced: Vec<Duration> = (0..100).map(|turn| Minor::INTERVAL + Minor::PACE * turn).collect();
        assert_eq!(slots, paced);
        // Asked again it still has the same turn; one that runs waits for those that run alone.
        assert_eq!(minor.wait(&job(99), true, began), Some(paced[99]));
        assert_eq!(minor.wait(&job(100), false, began), Some(Minor::INTERVAL));
        let next = Minor::INTERVAL + Minor::PACE_OF_RUNNING;
        assert_eq!(minor.wait(&job(101), false, began), Some(next));
        assert_eq!(minor.wait(&job(99), true, began + paced[99]), None);
    }
}
