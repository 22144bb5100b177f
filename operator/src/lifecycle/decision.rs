//! What was decided of a job.

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;

use crate::condition::Truth;
use crate::ledger::Ledger;

/// What the job wants.
#[derive(Clone, Debug, PartialEq)]
pub enum Intent {
    /// Its pods.
    Run,
    /// No pods until quota is there.
    Queue(Truth),
    /// No pods, by request.
    Suspend,
    /// Nothing any more: it succeeded.
    Complete(Truth),
    /// Nothing any more: it failed.
    Fail(Truth),
    /// Nothing any more, as was written before.
    Ended,
}

/// What was decided.
#[derive(Clone, Debug)]
pub struct Decision {
    /// Attempts and counts to write.
    pub ledger: Ledger,
    /// What the job wants.
    pub intent: Intent,
    /// When to decide again, should nothing happen before.
    pub wake: Option<Timestamp>,
    /// Failures seen now, each with what is done about it, for events.
    pub notes: Vec<String>,
    /// Pods that have failed and whose time has not come: should one be removed meanwhile, nothing takes its place before.
    pub held: BTreeSet<String>,
}

impl Decision {
    /// One that leads to nothing else.
    pub fn of(ledger: Ledger, intent: Intent) -> Self {
        Self {
            ledger,
            intent,
            wake: None,
            notes: Vec::new(),
            held: BTreeSet::new(),
        }
    }

    pub(super) fn wake_at(&mut self, time: Timestamp) {
        self.wake = Some(self.wake.map_or(time, |known| known.min(time)));
    }
}
