//! The recorders that write a job's events. A recorder counts an event that it has written before as the same one, and keeps its first
//! message.

use std::collections::HashMap;

use kube::runtime::events::{Recorder, Reporter};
use kube::{Client, Resource};
use parking_lot::Mutex;

use crate::world::JobKey;

/// Recorders, one for each job of which the same is said again and again.
pub struct Recorders {
    client: Client,
    reporter: Reporter,
    last: Mutex<HashMap<JobKey, (String, Recorder)>>,
}

impl Recorders {
    /// Recorders that write as `reporter`.
    pub fn new(client: Client, reporter: Reporter) -> Self {
        Self {
            client,
            reporter,
            last: Mutex::default(),
        }
    }

    /// One that knows of no event.
    pub fn fresh(&self) -> Recorder {
        Recorder::new(self.client.clone(), self.reporter.clone())
    }

    /// The one that wrote these words of the job, or a fresh one for new words.
    pub fn saying(&self, words: &str, job: &impl Resource<DynamicType = ()>) -> Recorder {
        let mut last = self.last.lock();
        let (known, recorder) = last
            .entry(JobKey::of(job))
            .or_insert_with(|| (words.to_owned(), self.fresh()));
        if known != words {
            words.clone_into(known);
            *recorder = self.fresh();
        }
        recorder.clone()
    }

    /// Forgets a deleted job.
    pub fn forget(&self, key: &JobKey) {
        self.last.lock().remove(key);
    }
}
