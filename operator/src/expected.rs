//! What was made a moment ago and no watch has shown yet. Without it a job that is looked at again before the news of its own
//! writes arrive would make everything a second time, and be refused. As `ControllerExpectations` of kube-controller-manager.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::world::{JobKey, Kind};

/// News that take longer never come: the object was deleted before it was seen.
const LONGEST: Duration = Duration::from_secs(15);

/// Names that need not be made again yet, by job.
#[derive(Default)]
pub struct Expected(Mutex<HashMap<JobKey, Names>>);

/// Names of one job, each with when it was made.
pub type Names = HashMap<(Kind, String), Instant>;

impl Expected {
    /// Notes that an object was made.
    pub fn made(&self, key: &JobKey, kind: Kind, name: &str) {
        let mut jobs = self.lock();
        jobs.entry(key.clone())
            .or_default()
            .insert((kind, name.to_string()), Instant::now());
    }

    /// Notes that a watch has shown it, or its end.
    pub fn seen(&self, key: &JobKey, kind: Kind, name: &str) {
        let mut jobs = self.lock();
        let Some(names) = jobs.get_mut(key) else { return };
        names.remove(&(kind, name.to_string()));
        if names.is_empty() {
            jobs.remove(key);
        }
    }

    /// What is still to come for a job.
    pub fn of(&self, key: &JobKey) -> Names {
        let mut jobs = self.lock();
        let Some(names) = jobs.get_mut(key) else {
            return Names::new();
        };
        names.retain(|_, made| made.elapsed() < LONGEST);
        names.clone()
    }

    /// When to look again whether something came.
    pub fn patience(&self, key: &JobKey) -> Option<Duration> {
        let jobs = self.lock();
        let oldest = jobs.get(key)?.values().min()?;
        Some(LONGEST.saturating_sub(oldest.elapsed()) + Duration::from_millis(1))
    }

    /// Forgets a deleted job.
    pub fn forget(&self, key: &JobKey) {
        self.lock().remove(key);
    }

    // A panic while the lock was held left a whole map behind: every change is one insertion or removal.
    fn lock(&self) -> MutexGuard<'_, HashMap<JobKey, Names>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_is_expected_until_it_is_seen() {
        let key = JobKey {
            namespace: "n".into(),
            name: "j".into(),
        };
        let expected = Expected::default();
        expected.made(&key, Kind::Pod, "j-actor-0");
        assert!(expected.of(&key).contains_key(&(Kind::Pod, "j-actor-0".into())));
        assert!(expected.patience(&key).is_some());
        expected.seen(&key, Kind::Pod, "j-actor-0");
        assert!(expected.of(&key).is_empty());
        assert!(expected.patience(&key).is_none());
    }
}
