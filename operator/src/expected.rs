//! Objects that were made a moment ago and that no watch has shown yet. Without this a job that is reconciled again before the watch
//! catches up would create everything a second time, and be refused. As `ControllerExpectations` of kube-controller-manager.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::world::{JobKey, Kind};

/// News that take longer never come: the object was deleted before it was seen.
const LONGEST: Duration = Duration::from_secs(15);

/// Names that need not be made again yet, by job.
#[derive(Default)]
pub struct Expected(Mutex<HashMap<JobKey, Names>>);

/// Names of one job, each with when it was made; None where no news will come: a watch shows only what is the operator's.
pub type Names = HashMap<(Kind, String), Option<Instant>>;

impl Expected {
    /// Notes that an object was made.
    pub fn made(&self, key: &JobKey, kind: Kind, name: &str) {
        self.insert(key, kind, name, Some(Instant::now()));
    }

    /// Notes that an object of somebody else is there, and need not be made while the job wants its pods.
    pub fn found(&self, key: &JobKey, kind: Kind, name: &str) {
        self.insert(key, kind, name, None);
    }

    fn insert(&self, key: &JobKey, kind: Kind, name: &str, made: Option<Instant>) {
        let mut jobs = self.0.lock();
        jobs.entry(key.clone())
            .or_default()
            .insert((kind, name.to_string()), made);
    }

    /// Notes that a watch has shown it, or its end.
    pub fn seen(&self, key: &JobKey, kind: Kind, name: &str) {
        self.retain(key, |known, _| *known != (kind, name.to_string()));
    }

    /// Has objects of somebody else asked for anew: no watch tells of their end.
    pub fn forget_found(&self, key: &JobKey) {
        self.retain(key, |_, made| made.is_some());
    }

    fn retain(&self, key: &JobKey, keep: impl Fn(&(Kind, String), &Option<Instant>) -> bool) {
        let mut jobs = self.0.lock();
        let Some(names) = jobs.get_mut(key) else { return };
        names.retain(|name, made| keep(name, made));
        if names.is_empty() {
            jobs.remove(key);
        }
    }

    /// What is still to come for a job.
    pub fn of(&self, key: &JobKey) -> Names {
        let mut jobs = self.0.lock();
        let Some(names) = jobs.get_mut(key) else {
            return Names::new();
        };
        names.retain(|_, made| made.is_none_or(|made| made.elapsed() < LONGEST));
        names.clone()
    }

    /// When to look again whether something came.
    pub fn patience(&self, key: &JobKey) -> Option<Duration> {
        let jobs = self.0.lock();
        let oldest = jobs.get(key)?.values().flatten().min()?;
        Some(LONGEST.saturating_sub(oldest.elapsed()) + Duration::from_millis(1))
    }

    /// Forgets a deleted job.
    pub fn forget(&self, key: &JobKey) {
        self.0.lock().remove(key);
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

    #[test]
    fn what_is_somebody_elses_is_not_waited_for_and_is_there_until_it_is_forgotten() {
        let key = JobKey {
            namespace: "n".into(),
            name: "j".into(),
        };
        let expected = Expected::default();
        expected.found(&key, Kind::PersistentVolumeClaim, "claim");
        assert!(
            expected
                .of(&key)
                .contains_key(&(Kind::PersistentVolumeClaim, "claim".into()))
        );
        assert!(expected.patience(&key).is_none());
        expected.made(&key, Kind::Pod, "j-actor-0");
        expected.forget_found(&key);
        let left: Vec<(Kind, String)> = expected.of(&key).into_keys().collect();
        assert_eq!(left, [(Kind::Pod, "j-actor-0".into())]);
    }
}
