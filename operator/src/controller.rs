//! Watches feed a queue of jobs, the queue feeds reconciles: one at a time per job, several jobs side by side.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use kube::ResourceExt;
use kube::api::Api;
use kube::core::DeserializeGuard;
use kube::runtime::reflector::{ObjectRef, store};
use kube::runtime::watcher::{self, Event, watcher};
use kube::runtime::{WatchStreamExt, applier, controller, reflector};
use ppo_crds::PpoJob;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_stream::wrappers::{UnboundedReceiverStream, WatchStream};

use crate::context::Context;
use crate::reconcile::{attempt, retry};
use crate::watches::{Sink, wait_synced, watch_kind};
use crate::world::{JobKey, Kind};

/// For the first list of every watch.
const SYNC_DEADLINE: Duration = Duration::from_secs(60);

/// Changes that come together are looked at together.
const DEBOUNCE: Duration = Duration::from_millis(20);

type Guarded = DeserializeGuard<PpoJob>;

/// Where jobs are looked for, and how many are worked on at once.
#[derive(Clone, Debug)]
pub struct Scope {
    /// None: everywhere.
    pub namespace: Option<String>,
    /// Reconciles side by side.
    pub concurrency: u16,
}

/// Works on the jobs of `scope` until `stop` turns true. `synced` turns true once everything is known.
///
/// # Errors
/// When a kind cannot be listed.
pub async fn control(
    context: Arc<Context>,
    scope: Scope,
    synced: watch::Sender<bool>,
    stop: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let (changed, changes) = mpsc::unbounded_channel();
    let sink = Sink {
        world: context.world.clone(),
        expected: context.expected.clone(),
        changed: changed.clone(),
        metrics: context.metrics.clone(),
    };
    // Dropped at the end, and the watches with it.
    let mut watches = JoinSet::new();
    let mut starting = Vec::new();
    let kinds = Kind::BUILTIN.into_iter().chain(context.served.kinds());
    for kind in kinds {
        let (done, first_list) = watch::channel(false);
        watches.spawn(watch_kind(
            context.client.clone(),
            kind,
            scope.namespace.clone(),
            sink.clone(),
            done,
        ));
        starting.push((kind, first_list));
    }
    wait_synced(&mut starting, SYNC_DEADLINE)
        .await
        .map_err(anyhow::Error::msg)?;
    tracing::info!(
        namespace = scope.namespace.as_deref().unwrap_or("(all)"),
        "caches are complete"
    );
    watches.spawn(watch_new_kinds(context.clone(), scope.namespace.clone(), sink));
    watches.spawn(crate::reports::poll(
        context.reports.clone(),
        crate::reports::client()?,
        context.report_interval,
        known(context.clone()),
        actors(context.clone(), scope.namespace.clone()),
        tell(changed),
    ));
    synced.send_replace(true);
    work(context, scope, changes, stop).await;
    Ok(())
}

async fn work(
    context: Arc<Context>,
    scope: Scope,
    changes: mpsc::UnboundedReceiver<JobKey>,
    mut stop: watch::Receiver<bool>,
) {
    let api: Api<Guarded> = match &scope.namespace {
        Some(namespace) => Api::namespaced(context.client.clone(), namespace),
        None => Api::all(context.client.clone()),
    };
    let (jobs, writer) = store();
    let events = watcher(api, watcher::Config::default())
        .default_backoff()
        .modify(|job| {
            job.managed_fields_mut().clear();
        });
    let of_jobs = reflector(writer, events).filter_map(job_changes(context.clone()));
    let of_children = UnboundedReceiverStream::new(changes).map(|key| reference(&key));
    let stopped = async move {
        // A dropped sender stops as well.
        let _ = stop.wait_for(|stop| *stop).await;
    };
    // Once the right CRD is there, every job is looked at that was left alone before.
    let known = jobs.clone();
    let of_contract = WatchStream::from_changes(context.contract.clone()).flat_map(move |_| {
        stream::iter(
            known
                .state()
                .into_iter()
                .map(|job| ObjectRef::from_obj(job.as_ref()))
                .collect::<Vec<_>>(),
        )
    });
    let queue = stream::select(stream::select(of_jobs, of_children), of_contract)
        .inspect(|job| {
            context.queued.lock().insert(key(job));
        })
        .map(Ok::<_, std::convert::Infallible>)
        .take_until(stopped);
    let config = controller::Config::default()
        .concurrency(scope.concurrency)
        .debounce(DEBOUNCE);
    let results = applier(
        |job, context| Box::pin(attempt(job, context)),
        retry,
        context.clone(),
        jobs,
        queue,
        config,
    );
    results
        .for_each(|result| {
            note(&context, result);
            std::future::ready(())
        })
        .await;
}

fn note<T, E, Q>(context: &Context, result: Result<T, controller::Error<E, Q>>)
where
    E: std::error::Error + 'static,
    Q: std::error::Error + 'static,
{
    match result {
        Ok(_) => context.metrics.reconciles.with_label_values(&["ok"]).inc(),
        // An object of a job that is gone; garbage collection sees to it. Nobody tells of a job that goes while the watch begins anew.
        Err(controller::Error::ObjectNotFound(gone)) => {
            context.queued.lock().remove(&key(&gone));
            context.forget(&key(&gone));
        }
        Err(_) => context.metrics.reconciles.with_label_values(&["error"]).inc(),
    }
}

/// Jobs to look at because they changed; forgets those that were deleted.
fn job_changes(
    context: Arc<Context>,
) -> impl FnMut(watcher::Result<Event<Guarded>>) -> std::future::Ready<Option<ObjectRef<Guarded>>> {
    let errors = context.metrics.watch_errors.with_label_values(&["PpoJob"]);
    move |event| {
        let changed = match event {
            Ok(Event::Apply(job) | Event::InitApply(job)) => Some(ObjectRef::from_obj(&job)),
            Ok(Event::Delete(job)) => {
                context.forget(&JobKey::of(&job));
                None
            }
            Ok(Event::Init | Event::InitDone) => None,
            Err(error) => {
                errors.inc();
                tracing::warn!(%error, "the watch of PpoJobs failed and starts again");
                None
            }
        };
        std::future::ready(changed)
    }
}

fn key<K: kube::runtime::reflector::Lookup>(reference: &ObjectRef<K>) -> JobKey {
    JobKey {
        namespace: reference.namespace.clone().unwrap_or_default(),
        name: reference.name.clone(),
    }
}

fn reference(key: &JobKey) -> ObjectRef<Guarded> {
    ObjectRef::new(&key.name).within(&key.namespace)
}

/// Watches the kinds of gang schedulers that are installed while the operator runs.
async fn watch_new_kinds(context: Arc<Context>, namespace: Option<String>, sink: Sink) {
    let mut news = context.new_kinds.subscribe();
    let mut watches = JoinSet::new();
    // The sender lives as long as the context, which this task holds.
    while let Ok(kind) = news.recv().await {
        let (done, _) = watch::channel(false);
        watches.spawn(watch_kind(
            context.client.clone(),
            kind,
            namespace.clone(),
            sink.clone(),
            done,
        ));
    }
}

/// Whether a job was looked at: a pod alone proves no job.
fn known(context: Arc<Context>) -> impl Fn(&JobKey, &str) -> bool {
    move |key, uid| context.jobs.knows(key, uid)
}

/// The actors that could report now.
fn actors(context: Arc<Context>, namespace: Option<String>) -> impl Fn() -> Vec<crate::reports::Actor> {
    move || context.world.actors(namespace.as_deref())
}

fn tell(changed: mpsc::UnboundedSender<JobKey>) -> impl Fn(&crate::reports::Actor) {
    move |actor| {
        // The receiver is gone only while the operator stops.
        let _ = changed.send(actor.key.clone());
    }
}
