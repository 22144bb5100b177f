//! Jobs as the operator works on them, each checked once per generation, and once more if it is accepted only then.

use std::collections::HashMap;
use std::panic::resume_unwind;
use std::sync::Arc;

use kube::ResourceExt;
use parking_lot::Mutex;
use ppo_crds::PpoJob;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::job::{Job, was_accepted};
use crate::world::JobKey;

/// Checks under way at once. The time of one is up to whoever wrote the manifest: seconds, where it has many expressions for rules.
const CONCURRENT_CHECKS: usize = 2;

/// Jobs as checked at their last generation: the check takes longer than all the rest of a reconcile.
pub struct Jobs {
    checked: Mutex<HashMap<JobKey, Arc<Job>>>,
    turns: Arc<Semaphore>,
}

impl Default for Jobs {
    fn default() -> Self {
        Self {
            checked: Mutex::default(),
            turns: Arc::new(Semaphore::new(CONCURRENT_CHECKS)),
        }
    }
}

impl Jobs {
    /// The job, checked now if it is new or has changed.
    pub async fn checked(&self, object: &PpoJob) -> Arc<Job> {
        self.checked_by(object, Job::of).await
    }

    async fn checked_by(&self, object: &PpoJob, check: impl FnOnce(&PpoJob) -> Job + Send + 'static) -> Arc<Job> {
        let key = JobKey::of(object);
        let known = self.checked.lock().get(&key).cloned();
        if let Some(job) = known.filter(|job| is_of(job, object)) {
            return job;
        }
        let job = Arc::new(self.check(object.clone(), check).await);
        self.checked.lock().insert(key, job.clone());
        job
    }

    /// Beside the operator's only thread, which renews its Lease: no manifest may hold that up.
    async fn check(&self, object: PpoJob, check: impl FnOnce(&PpoJob) -> Job + Send + 'static) -> Job {
        // The semaphore is never closed.
        let turn = self.turns.clone().acquire_owned().await;
        let ended = spawn_blocking(move || {
            // Until the check ends, though nobody may wait for it any more.
            let _turn = turn;
            check(&object)
        });
        match ended.await.map_err(tokio::task::JoinError::try_into_panic) {
            Ok(job) => job,
            Err(Ok(panic)) => resume_unwind(panic),
            // The runtime ends, and with it whoever waits.
            Err(Err(_)) => std::future::pending().await,
        }
    }

    /// Uid of the job that last had this name.
    pub fn uid(&self, key: &JobKey) -> Option<String> {
        self.checked.lock().get(key).map(|job| job.uid.clone())
    }

    pub(super) fn forget(&self, key: &JobKey) {
        self.checked.lock().remove(key);
    }
}

/// Whether checking `object` again would end as that check did. Of a job that was accepted since less is asked; where all was met before,
/// its engines divide its prompts, and the check is the same.
fn is_of(job: &Job, object: &PpoJob) -> bool {
    let same = Some(job.generation) == object.metadata.generation && Some(&job.uid) == object.uid().as_ref();
    let accepted = was_accepted(object);
    same && (job.accepted == accepted || accepted && job.config.is_ok())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::smallest_job::smallest_object;

    fn job(generation: i64) -> PpoJob {
        let mut job = smallest_object(&json!({}));
        job.metadata.generation = Some(generation);
        job
    }

    #[tokio::test]
    async fn a_check_that_takes_long_does_not_hold_up_the_thread_that_renews_the_lease() {
        let jobs = Jobs::default();
        let (go_on, told) = mpsc::channel();
        // It ends once the runtime's only thread has done something else.
        let check = move |object: &PpoJob| {
            told.recv_timeout(Duration::from_secs(30)).unwrap();
            Job::of(object)
        };
        let object = job(1);
        let (checked, ()) = tokio::join!(jobs.checked_by(&object, check), async { go_on.send(()).unwrap() });
        assert_eq!(checked.generation, 1);
    }

    #[tokio::test]
    async fn a_job_is_checked_once_a_generation() {
        let jobs = Jobs::default();
        let first = jobs.checked(&job(1)).await;
        assert!(Arc::ptr_eq(&first, &jobs.checked(&job(1)).await));
        assert_eq!(jobs.checked(&job(2)).await.generation, 2);
    }

    fn accepted(mut job: PpoJob) -> PpoJob {
        job.status = serde_json::from_value(json!({"attempt": 1})).unwrap();
        job
    }

    #[tokio::test]
    async fn a_job_that_is_accepted_after_a_check_that_refused_it_is_checked_again() {
        let jobs = Jobs::default();
        let mut scaled = job(1);
        scaled.spec.batch.rollout_batch_size = 16;
        scaled.spec.roles.rollout.replicas = 3;
        let refused = jobs.checked(&scaled).await;
        assert!(refused.config.is_err());
        let scaled = accepted(scaled);
        let checked = jobs.checked(&scaled).await;
        assert!(checked.config.is_ok(), "{:?}", checked.config);
        assert!(Arc::ptr_eq(&checked, &jobs.checked(&scaled).await));
    }

    #[tokio::test]
    async fn a_job_that_nothing_was_wrong_with_is_not_checked_again_when_it_is_accepted() {
        let jobs = Jobs::default();
        let first = jobs.checked(&job(1)).await;
        assert!(first.config.is_ok(), "{:?}", first.config);
        assert!(Arc::ptr_eq(&first, &jobs.checked(&accepted(job(1))).await));
    }
}
