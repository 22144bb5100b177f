//! What happens to a job while it lives, by a watch of the test's own: what is short-lived leaves no trace at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;

use anyhow::Result;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::runtime::watcher::{self, Event, watcher};
use parking_lot::Mutex;
use ppo_crds::PpoJob;
use ppo_crds::pod::annotation;
use ppo_crds::status::PpoJobStatus;
use ppo_tests::{Namespace, PATIENCE};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// What was seen.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Uids of the pods that were made, by name and attempt.
    pub pods: BTreeMap<(String, String), BTreeSet<String>>,
    /// The job's statuses, in order.
    pub statuses: Vec<PpoJobStatus>,
}

/// Being written.
pub struct Recording {
    history: Arc<Mutex<History>>,
    tasks: [JoinHandle<()>; 2],
}

impl History {
    /// Starts to watch; what happens from now on is in it.
    pub async fn record(namespace: &Namespace<'_>) -> Result<Recording> {
        let history = Arc::new(Mutex::new(Self::default()));
        let (pods_ready, jobs_ready) = (oneshot::channel(), oneshot::channel());
        let tasks = [
            tokio::spawn(follow(
                namespace.api::<Pod>(),
                history.clone(),
                pods_ready.0,
                Self::note_pod,
            )),
            tokio::spawn(follow(
                namespace.api::<PpoJob>(),
                history.clone(),
                jobs_ready.0,
                Self::note_job,
            )),
        ];
        tokio::time::timeout(PATIENCE, pods_ready.1).await??;
        tokio::time::timeout(PATIENCE, jobs_ready.1).await??;
        Ok(Recording { history, tasks })
    }

    fn note_pod(&mut self, pod: &Pod) {
        let attempt = pod.annotations().get(annotation::ATTEMPT).cloned().unwrap_or_default();
        let uids = self.pods.entry((pod.name_any(), attempt)).or_default();
        uids.extend(pod.uid());
    }

    fn note_job(&mut self, job: &PpoJob) {
        self.statuses.extend(job.status.clone());
    }

    /// The pods that were made, by name and attempt, and how many of each.
    pub fn pods_made(&self) -> BTreeMap<(String, String), usize> {
        self.pods.iter().map(|(pod, uids)| (pod.clone(), uids.len())).collect()
    }

    /// What must never happen, as sentences.
    pub fn wrongs(&self) -> Vec<String> {
        let twice = self.pods.iter().filter(|(_, uids)| uids.len() > 1);
        let mut wrongs: Vec<String> = twice
            .map(|((pod, attempt), uids)| format!("{pod} was made {} times for attempt {attempt}", uids.len()))
            .collect();
        for (before, after) in self.statuses.iter().zip(self.statuses.iter().skip(1)) {
            let left = before.phase.is_some_and(|phase| phase.is_finished()) && after.phase != before.phase;
            if left {
                wrongs.push(format!("{:?} was left for {:?}", before.phase, after.phase));
            }
            let falls = [
                ("restarts", before.restarts, after.restarts),
                ("the attempt", before.attempt, after.attempt),
            ];
            let roles = before.roles.iter().zip(&after.roles).flat_map(|(before, after)| {
                [
                    ("a role's restarts", before.restarts, after.restarts),
                    ("a role's attempt", before.attempt, after.attempt),
                ]
            });
            let fallen = falls
                .into_iter()
                .chain(roles)
                .filter(|(_, before, after)| after < before);
            wrongs.extend(fallen.map(|(what, before, after)| format!("{what} fell from {before} to {after}")));
        }
        wrongs
    }
}

impl Recording {
    /// What was seen so far.
    pub fn close(self) -> History {
        self.tasks.iter().for_each(JoinHandle::abort);
        self.history.lock().clone()
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn follow<K>(
    api: kube::Api<K>,
    history: Arc<Mutex<History>>,
    ready: oneshot::Sender<()>,
    note: fn(&mut History, &K),
) where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let mut events = pin!(watcher(api, watcher::Config::default()));
    let mut ready = Some(ready);
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::InitDone) => {
                // Nobody waits for a second list.
                let _ = ready.take().map(|ready| ready.send(()));
            }
            Ok(Event::Apply(object) | Event::InitApply(object) | Event::Delete(object)) => {
                note(&mut history.lock(), &object);
            }
            Ok(Event::Init) => {}
            Err(error) => eprintln!("the history has a gap: {error}"),
        }
    }
}
