//! Jobs that cannot be decoded: each is told of once, though it is looked at with every report of its actor.

use std::collections::HashMap;

use kube::ResourceExt;
use kube::core::{DeserializeGuard, error_boundary::InvalidObject};
use parking_lot::Mutex;
use ppo_crds::PpoJob;

use crate::context::Context;
use crate::events;
use crate::world::JobKey;

/// What was last told of each job that cannot be decoded.
#[derive(Default)]
pub struct Unreadable(Mutex<HashMap<JobKey, Told>>);

/// Uid, generation, and what is wrong.
type Told = (Option<String>, Option<i64>, String);

impl Unreadable {
    /// Notes what is wrong with a job; whether that is news.
    fn is_news(&self, job: &impl ResourceExt, error: &str) -> bool {
        let told = (job.uid(), job.meta().generation, error.to_owned());
        let before = self.0.lock().insert(JobKey::of(job), told.clone());
        before != Some(told)
    }

    /// Forgets a job that can be read, or was deleted.
    pub fn forget(&self, key: &JobKey) {
        self.0.lock().remove(key);
    }
}

/// Logs that the job cannot be read, and writes an event that says so: nothing else can be written of it.
pub(super) async fn tell(job: &DeserializeGuard<PpoJob>, invalid: &InvalidObject, context: &Context) {
    let (key, error) = (JobKey::of(job), invalid.error.as_str());
    // What they last said is no longer known to be so.
    context.metrics.forget(&key);
    if context.unreadable.is_news(job, error) {
        tracing::error!(job = %key, error, "a PpoJob cannot be read: is a field of a pod template of another type?");
        events::unreadable(job, error, context).await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_same_error_of_the_same_generation_is_no_news() {
        let unreadable = Unreadable::default();
        let job = |uid: &str, generation: i64| -> PpoJob {
            serde_json::from_value(json!({
                "apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob",
                "metadata": {"name": "a", "namespace": "n", "uid": uid, "generation": generation},
                "spec": {"model": {"policy": {"path": "/m"}}, "prompts": {"source": {"path": "/p.jsonl"}},
                    "roles": {"reward": {"rules": [{"json": {}}]}}},
            }))
            .unwrap()
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
