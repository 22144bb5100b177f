//! What every reconcile shares.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use kube::runtime::events::Recorder;
use kube::{Client, ResourceExt};
use ppo_crds::PpoJob;
use tokio::sync::{Semaphore, broadcast, watch};

use crate::contract::Contract;
use crate::expected::Expected;
use crate::gang::Flavors;
use crate::job::Job;
use crate::metrics::Metrics;
use crate::reports::Reports;
use crate::served::Served;
use crate::settings::PodSettings;
use crate::world::{JobKey, Kind, World};

/// Under which the operator owns fields of objects.
pub const FIELD_MANAGER: &str = "ppo-operator";

/// What every reconcile shares.
pub struct Context {
    /// When this process began.
    pub started: Timestamp,
    /// Between two questions to an actor.
    pub report_interval: Duration,
    /// The API server.
    pub client: Client,
    /// The administrator's choices.
    pub settings: PodSettings,
    /// Observed objects.
    pub world: Arc<World>,
    /// Jobs, checked.
    pub jobs: Jobs,
    /// What was made and not seen yet.
    pub expected: Arc<Expected>,
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
    /// Whether the installed CRD is this operator's.
    pub contract: watch::Receiver<Contract>,
    /// Counts.
    pub metrics: Arc<Metrics>,
    /// Writes events.
    pub recorder: Recorder,
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

    /// Forgets a deleted job.
    pub fn forget(&self, key: &JobKey) {
        self.jobs.forget(key);
        self.expected.forget(key);
        self.backoff.forget(key);
        self.minor.0.forget(key);
        self.metrics.forget(key);
    }
}

/// A map behind a lock. A panic while it was held leaves a whole map behind: every change is one insertion or removal.
pub struct Table<K, V>(Mutex<HashMap<K, V>>);

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash, V> Table<K, V> {
    /// The map.
    pub fn lock(&self) -> MutexGuard<'_, HashMap<K, V>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes an entry.
    pub fn forget(&self, key: &K) {
        self.lock().remove(key);
    }
}

/// Jobs as checked at their last generation: the check takes longer than all the rest of a reconcile.
#[derive(Default)]
pub struct Jobs(Table<JobKey, Arc<Job>>);

impl Jobs {
    /// The job, checked now if it is new or has changed.
    pub fn checked(&self, object: &PpoJob) -> Arc<Job> {
        let key = JobKey {
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
        };
        let known = self.0.lock().get(&key).cloned();
        let same = |job: &Arc<Job>| {
            Some(job.generation) == object.metadata.generation && Some(&job.uid) == object.uid().as_ref()
        };
        if let Some(job) = known.filter(same) {
            return job;
        }
        let job = Arc::new(Job::of(object));
        self.0.lock().insert(key, job.clone());
        job
    }

    fn forget(&self, key: &JobKey) {
        self.0.forget(key);
    }
}

/// Exponential backoff per job.
#[derive(Default)]
pub struct Backoff(Table<JobKey, u32>);

impl Backoff {
    const FIRST: Duration = Duration::from_millis(50);
    const LONGEST: Duration = Duration::from_secs(60);

    /// How long to wait after one more failure.
    pub fn next(&self, key: &JobKey) -> Duration {
        let mut failures = self.0.lock();
        let count = failures.entry(key.clone()).or_default();
        let delay = Self::FIRST.saturating_mul(1 << (*count).min(16)).min(Self::LONGEST);
        *count += 1;
        delay
    }

    /// After a success.
    pub fn forget(&self, key: &JobKey) {
        self.0.forget(key);
    }
}

/// When each job's status was last written.
#[derive(Default)]
pub struct Minor(Table<JobKey, Instant>);

impl Minor {
    /// How long a minor change still has to wait: since the last write, or since the job was first seen.
    pub fn wait(&self, key: &JobKey, interval: Duration) -> Option<Duration> {
        let last = *self.0.lock().entry(key.clone()).or_insert_with(Instant::now);
        interval.checked_sub(last.elapsed()).filter(|left| !left.is_zero())
    }

    /// Notes a write.
    pub fn wrote(&self, key: &JobKey) {
        self.0.lock().insert(key.clone(), Instant::now());
    }
}
