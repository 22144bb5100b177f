//! What an actor said of its training, and when.

use k8s_openapi::jiff::Timestamp;
use ppo_crds::report::Report;

/// An actor's report and when it came.
#[derive(Clone, Debug)]
pub struct Heard {
    /// What it said.
    pub report: Report,
    /// When.
    pub at: Timestamp,
}

impl Heard {
    /// Seconds since the actor finished a stage.
    pub fn silence(&self, now: Timestamp) -> f64 {
        self.report.seconds_since_progress + self.age(now)
    }

    /// Seconds since it came.
    pub fn age(&self, now: Timestamp) -> f64 {
        now.duration_since(self.at).as_secs_f64().max(0.0)
    }
}
