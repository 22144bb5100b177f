//! What drives a measurement: makes jobs and sees them come up, at little cost to the API server that it shares with the measured.

use std::collections::BTreeSet;
use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DynamicObject, ListParams, PostParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use tokio::time::{sleep, timeout};

/// For all pods to exist, and for all jobs to run or to be gone.
pub const DEADLINE: Duration = Duration::from_secs(600);
/// Between two counts of pods: the answer holds one pod and a number.
const PAUSE: Duration = Duration::from_millis(100);
/// Jobs that are made at once.
const CONCURRENT: usize = 16;

/// Makes jobs.
///
/// # Errors
/// When one is refused.
pub async fn create(api: &Api<DynamicObject>, jobs: Vec<DynamicObject>) -> Result<()> {
    let made = stream::iter(jobs).map(|job| async move {
        let name = job.name_any();
        let made = api.create(&PostParams::default(), &job).await;
        made.map(|_| ()).with_context(|| format!("{name} is refused"))
    });
    made.buffer_unordered(CONCURRENT).try_collect().await
}

/// Waits until a namespace has `count` pods (0: none any more); seconds since `began`.
///
/// # Errors
/// At the deadline: how many there are.
pub async fn until_pods(client: &Client, namespace: &str, count: usize, began: Instant) -> Result<f64> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let mut seen = 0;
    let wait = async {
        loop {
            // One item and the number of those left out, instead of all of them.
            let page = pods.list_metadata(&ListParams::default().limit(1)).await?;
            let others = page.metadata.remaining_item_count.unwrap_or_default();
            seen = page.items.len() + usize::try_from(others)?;
            if (count == 0 && seen == 0) || (count > 0 && seen >= count) {
                return anyhow::Ok(began.elapsed().as_secs_f64());
            }
            sleep(PAUSE).await;
        }
    };
    match timeout(DEADLINE, wait).await {
        Ok(done) => done,
        Err(_) => bail!(
            "after {} s there are {seen} pods instead of {count}",
            DEADLINE.as_secs()
        ),
    }
}

/// Waits until `count` jobs are reported as running; seconds since `began`. It watches: every change comes once.
///
/// # Errors
/// At the deadline: how many are, and what one of the others says.
pub async fn until_all_run(
    api: Api<DynamicObject>,
    count: usize,
    runs: impl Fn(&DynamicObject) -> bool,
    began: Instant,
) -> Result<f64> {
    let mut running = BTreeSet::new();
    let mut other = String::new();
    let wait = async {
        let mut events = pin!(watcher(api, watcher::Config::default()).default_backoff());
        while running.len() < count {
            let job = match events.next().await.context("the watch of jobs has ended")? {
                Ok(Event::Apply(job) | Event::InitApply(job)) => job,
                Ok(Event::Delete(_) | Event::Init | Event::InitDone) => continue,
                Err(_) => continue, // The watcher starts again by itself; the deadline bounds it.
            };
            if runs(&job) {
                running.insert(job.name_any());
            } else {
                other = format!("{}: {}", job.name_any(), job.data["status"]);
            }
        }
        anyhow::Ok(began.elapsed().as_secs_f64())
    };
    match timeout(DEADLINE, wait).await {
        Ok(done) => done,
        Err(_) => {
            let (seconds, running) = (DEADLINE.as_secs(), running.len());
            bail!("after {seconds} s {running} of {count} jobs are reported as running; {other}")
        }
    }
}
