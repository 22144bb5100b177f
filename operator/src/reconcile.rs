//! One look at one job: read, plan, record, apply.

pub use error::Error;
pub use refusals::Refusals;
pub use subject::Subject;
pub use unreadable::Unreadable;

mod apply;
pub mod attempt;
pub(crate) mod error;
mod late;
mod owner;
mod read;
mod record;
pub(crate) mod refusals;
pub(crate) mod subject;
mod taken;
pub(crate) mod unreadable;
mod write;

use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::core::DeserializeGuard;
use kube::runtime::controller::Action as Next;
use ppo_crds::PpoJob;

use crate::context::Context;
use crate::plan::plan;
use crate::world::JobKey;

/// Longest pause before a webhook that did not answer is asked again.
const WEBHOOK_PAUSE: Duration = Duration::from_secs(5);

/// Brings the world one step closer to what the job says. Without a change in the world it writes nothing.
pub async fn reconcile(object: Arc<DeserializeGuard<PpoJob>>, context: Arc<Context>) -> Result<Next, Error> {
    let _timer = context.metrics.reconcile_seconds.start_timer();
    context.queued.lock().remove(&JobKey::of(object.as_ref()));
    context.forget_earlier(object.as_ref());
    let Some(job) = read::job(&object, &context).await else {
        return Ok(Next::await_change());
    };
    let seen = read::snapshot(&job, &context).await?;
    let now = context.now();
    let plan = plan(&job.checked, &seen, &job.status, &context.settings, now);
    // The status first: it holds the decisions, and what follows must not happen without them.
    let held_back = record::status(&job, &plan, &context).await?;
    if plan.status.active_since.is_none() {
        // While it wants no pods, whoever made what it uses may take that away again.
        context.expected.forget_found(&job.checked.key);
    }
    context.metrics.observe(&job.checked, &plan.status, &seen);
    let refused = apply::all(&job, &plan.status, plan.waves, &context).await.err();
    if let Some(error) = refused {
        return record::refusal(&job, &seen, &plan.status, error, &context).await;
    }
    context.backoff.forget(&job.checked.key);
    let due = plan
        .wake
        .map(|wake| Duration::try_from(wake.duration_since(now)).unwrap_or_default());
    let patience = context.expected.patience(&job.checked.key);
    Ok(due
        .into_iter()
        .chain(held_back)
        .chain(patience)
        .min()
        .map_or_else(Next::await_change, Next::requeue))
}

/// Tries again, later each time.
pub fn retry(object: Arc<DeserializeGuard<PpoJob>>, error: &Error, context: Arc<Context>) -> Next {
    let key = JobKey::of(object.as_ref());
    let mut delay = context.backoff.next(&key, Instant::now());
    if error.unanswered_webhook().is_some() {
        // Nothing tells when it is back.
        delay = delay.min(WEBHOOK_PAUSE);
    }
    context
        .metrics
        .reconcile_errors
        .with_label_values(&[error.kind()])
        .inc();
    match error {
        // Somebody else wrote first: the watch brings the news.
        Error::Stale => tracing::debug!(job = %key, %error, "reconciled again soon"),
        _ => {
            tracing::warn!(job = %key, %error, delay_seconds = delay.as_secs_f64(), "a reconcile failed and is tried again")
        }
    }
    Next::requeue(delay)
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::http::{Method, StatusCode, Uri};
    use k8s_openapi::jiff::Timestamp;
    use kube::{Client, Config};
    use ppo_crds::spec::Gang as Asked;
    use ppo_crds::status::PpoJobStatus;
    use serde_json::json;
    use tokio::net::TcpListener;
    use tokio::sync::{mpsc, watch};

    use super::*;
    use crate::contract::Contract;
    use crate::gang::Gang;
    use crate::metrics::Metrics;
    use crate::run::{self, Options};
    use crate::smallest_job::smallest_object;
    use crate::snapshot::Snapshot;
    use crate::world::{Children, Kind};

    fn job(uid: &str) -> PpoJob {
        let mut job = smallest_object(&json!({}));
        job.metadata.uid = Some(uid.into());
        // What is checked of one generation is kept, and a test changes its job.
        job.metadata.generation = None;
        job
    }

    /// Of an operator whose API server is at `url`.
    fn context(url: &str, contract: Contract) -> Arc<Context> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::try_from(Config::new(url.parse().unwrap())).unwrap();
        let contract = watch::channel(contract).1;
        Arc::new(run::context(
            client,
            &Options::plain(),
            Arc::new(Metrics::new().unwrap()),
            contract,
        ))
    }

    #[tokio::test]
    async fn of_a_job_that_is_made_again_under_its_name_nothing_of_the_one_before_is_remembered() {
        // On a CRD that is not looked at yet nothing is asked of the API server.
        let context = context("http://127.0.0.1:1", Contract::Unknown);
        let first = context.jobs.checked(&job("1")).await;
        let seen = Snapshot::plain(Children::default(), Gang::None, Timestamp::UNIX_EPOCH);
        let running = serde_json::from_value::<PpoJobStatus>(json!({"phase": "Running"})).unwrap();
        context.metrics.observe(&first, &running, &seen);
        context.expected.made(&first.key, Kind::Pod, "a-actor-0");
        for (uid, remembered) in [("1", true), ("2", false)] {
            let object = Arc::new(DeserializeGuard(Ok(job(uid))));
            reconcile(object, context.clone()).await.unwrap();
            let series = context.metrics.text().unwrap().contains("ppojob_phase{job=\"a\"");
            let expected = context.expected.patience(&first.key).is_some();
            assert_eq!((series, expected), (remembered, remembered), "uid {uid}");
        }
    }

    /// The URL of an API server that has Kueue's kinds and answers nothing else, and what it is asked for.
    async fn api_server() -> (String, mpsc::UnboundedReceiver<String>) {
        let (asked, requests) = mpsc::unbounded_channel();
        let answer = move |method: Method, uri: Uri| {
            // The receiver is gone once the test ends.
            let _ = asked.send(format!("{method} {}", uri.path()));
            let kueue = json!({
                "apiVersion": "v1", "kind": "APIResourceList", "groupVersion": "kueue.x-k8s.io/v1beta2",
                "resources": [{"name": "workloads"}],
            });
            std::future::ready(match uri.path() {
                "/apis/kueue.x-k8s.io/v1beta2" => (StatusCode::OK, kueue.to_string()),
                path if path.starts_with("/apis/scheduling.") => (StatusCode::NOT_FOUND, "page not found".into()),
                _ => (StatusCode::INTERNAL_SERVER_ERROR, "no answer".into()),
            })
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(axum::serve(listener, Router::new().fallback(answer)).into_future());
        (url, requests)
    }

    #[tokio::test]
    async fn a_job_whose_gangs_kind_was_not_listed_yet_is_left_as_it_is_and_others_are_not() {
        let (url, mut requests) = api_server().await;
        let context = context(&url, Contract::Same);
        context.served.refresh(&context.client).await.unwrap();
        let (done, first_list) = watch::channel(false);
        context.listed.begins(Kind::KueueWorkload, None, first_list);
        let mut look = async |gang: Asked| {
            while requests.try_recv().is_ok() {}
            let mut object = job("1");
            object.spec.scheduling.gang = gang;
            object.spec.scheduling.queue = "rl".into();
            let ended = reconcile(Arc::new(DeserializeGuard(Ok(object))), context.clone()).await;
            // Of what it goes on with this API server answers nothing.
            (ended.unwrap_err(), requests.try_recv().is_ok())
        };
        let (error, asked) = look(Asked::Kueue).await;
        let words = error.to_string();
        let named = "KueueWorkload (workloads.kueue.x-k8s.io) in namespace n";
        assert!(
            matches!(error, Error::Unlisted { .. }) && words.contains(named),
            "{words}"
        );
        assert!(!asked, "it was gone on with");
        for gang in [Asked::None, Asked::Kueue] {
            let (error, asked) = look(gang).await;
            assert!(matches!(error, Error::Request { .. }) && asked, "{error}");
            done.send_replace(true);
        }
    }
}
