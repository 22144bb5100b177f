//! Jobs that cannot be decoded: each is told of once, though it is looked at with every report of its actor.

use std::collections::HashMap;

use kube::ResourceExt;
use parking_lot::Mutex;

use crate::world::JobKey;

/// What was last told of each job that cannot be decoded.
#[derive(Default)]
pub struct Unreadable(Mutex<HashMap<JobKey, Told>>);

/// Uid, generation, and what is wrong.
type Told = (Option<String>, Option<i64>, String);

impl Unreadable {
    /// Notes what is wrong with a job; whether that is news.
    pub(super) fn is_news(&self, job: &impl ResourceExt, error: &str) -> bool {
        let told = (job.uid(), job.meta().generation, error.to_owned());
        let before = self.0.lock().insert(JobKey::of(job), told.clone());
        before != Some(told)
    }

    /// Forgets a job that can be read, or was deleted.
    pub fn forget(&self, key: &JobKey) {
        self.0.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::smallest_job::smallest_object;

    #[test]
    fn the_same_error_of_the_same_generation_is_no_news() {
        let unreadable = Unreadable::default();
        let job = |uid: &str, generation: i64| {
            let mut job = smallest_object(&json!({}));
            job.metadata.uid = Some(uid.into());
            job.metadata.generation = Some(generation);
            job
        };
        for (uid, generation, error, is_news) in [
            ("1", 1, "integer", true),
            ("1", 1, "integer", false),
            ("1", 2, "integer", true),
            ("1", 2, "boolean", true),
            ("1", 2, "boolean", false),
            ("2", 2, "boolean", true),
        ] {
            let told = unreadable.is_news(&job(uid, generation), error);
            assert_eq!(told, is_news, "{uid} {generation} {error}");
        }
        unreadable.forget(&JobKey::of(&job("2", 2)));
        assert!(
            unreadable.is_news(&job("2", 2), "boolean"),
            "it could be read meanwhile"
        );
    }
}
