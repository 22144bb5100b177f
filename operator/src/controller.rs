//! Watches feed a queue of jobs, the queue feeds reconciles: one at a time per job, several jobs side by side.

use std::collections::HashSet;
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
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::JoinSet;
use tokio_stream::wrappers::{UnboundedReceiverStream, WatchStream};

use crate::context::Context;
use crate::reconcile::attempt::attempt;
use crate::reconcile::retry;
use crate::watches::{Sink, wait_synced, watch_kind};
use crate::world::{Actor, JobKey, Kind};

/// For the first list of every watch. What is later is told of.
const SYNC_DEADLINE: Duration = Duration::from_secs(60);

/// Changes that come together are looked at together.
const DEBOUNCE: Duration = Duration::from_millis(20);

type Guarded = DeserializeGuard<PpoJob>;

/// A watch that begins: its kind, and what turns true at its first list.
type Starting = (Kind, watch::Receiver<bool>);

/// Where jobs are looked for, and how many are worked on at once.
#[derive(Clone, Debug)]
pub struct Scope {
    /// None: everywhere.
    pub namespace: Option<String>,
    /// Whether this process looks for jobs in other namespaces, too.
    pub is_one_of_several: bool,
    /// Reconciles side by side.
    pub concurrency: u16,
}

/// Works on the jobs of `scope` until `stop` turns true. `answered` turns true once everything is known, or was told of as late.
///
/// # Errors
/// When a kind that every cluster has cannot be listed, and there are no other namespaces.
pub async fn control(
    context: Arc<Context>,
    scope: Scope,
    answered: watch::Sender<bool>,
    mut stop: watch::Receiver<bool>,
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
    // Those that come while this waits count, too: another namespace may be there long before.
    let news = context.new_kinds.subscribe();
    let kinds = Kind::BUILTIN.into_iter().chain(context.served.kinds());
    for kind in kinds {
        starting.push(begin(kind, scope.namespace.clone(), &context, &sink, &mut watches));
    }
    tokio::select! {
        listed = listed(starting, &scope, &answered) => listed?,
        _ = stop.wait_for(|stop| *stop) => return Ok(()),
    }
    tracing::info!(
        namespace = scope.namespace.as_deref().unwrap_or("(all)"),
        "caches are complete"
    );
    watches.spawn(watch_new_kinds(context.clone(), news, scope.namespace.clone(), sink));
    watches.spawn(crate::reports::poll(
        context.reports.clone(),
        crate::reports::client()?,
        context.report_interval,
        known(context.clone()),
        actors(context.clone(), scope.namespace.clone()),
        tell(changed),
    ));
    answered.send_replace(true);
    work(context, scope, changes, stop).await;
    Ok(())
}

/// Begins to watch a kind. Of a gang scheduler's kind reconciles ask whether it was listed, whenever it is found.
fn begin(kind: Kind, namespace: Option<String>, context: &Context, sink: &Sink, watches: &mut JoinSet<()>) -> Starting {
    let (done, first_list) = watch::channel(false);
    context.listed.begins(kind, namespace.clone(), first_list.clone());
    watches.spawn(watch_kind(context.client.clone(), kind, namespace, sink.clone(), done));
    (kind, first_list)
}

/// Waits for the first list of every watch.
async fn listed(starting: Vec<Starting>, scope: &Scope, answered: &watch::Sender<bool>) -> anyhow::Result<()> {
    let (mut gangs, mut builtin): (Vec<_>, Vec<_>) =
        starting.into_iter().partition(|(kind, _)| Kind::GANGS.contains(kind));
    let (listed, ()) = tokio::join!(
        builtin_listed(&mut builtin, scope, answered),
        gangs_listed(&mut gangs, scope)
    );
    listed
}

/// Waits for what every job needs. A namespace that was deleted, and the rights in it with it, must not take the operator from the others:
/// it is told of, and waited for.
async fn builtin_listed(
    starting: &mut [Starting],
    scope: &Scope,
    answered: &watch::Sender<bool>,
) -> anyhow::Result<()> {
    while let Err(late) = wait_synced(starting, scope.namespace.as_deref(), SYNC_DEADLINE).await {
        anyhow::ensure!(scope.is_one_of_several, late);
        tracing::error!("{late} Jobs of other namespaces do not wait for it");
        answered.send_replace(true);
    }
    Ok(())
}

/// Waits for the kinds of gang schedulers, but not for ever: most jobs need none that is late, and those that do are left as they are until
/// it has come.
async fn gangs_listed(starting: &mut [Starting], scope: &Scope) {
    if let Err(late) = wait_synced(starting, scope.namespace.as_deref(), SYNC_DEADLINE).await {
        tracing::error!(
            "{late} And does their conversion webhook answer? Jobs of these gang schedulers wait for it, others do not"
        );
    }
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
    let of_jobs = reflector(writer, events).flat_map(job_changes(&context));
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
        // A job that is gone, or an object of one, which garbage collection sees to.
        Err(controller::Error::ObjectNotFound(gone)) => {
            context.queued.lock().remove(&key(&gone));
            context.forget(&key(&gone));
        }
        Err(_) => context.metrics.reconciles.with_label_values(&["error"]).inc(),
    }
}

/// Jobs to look at because they changed or are gone.
fn job_changes(
    context: &Context,
) -> impl FnMut(watcher::Result<Event<Guarded>>) -> stream::Iter<std::vec::IntoIter<ObjectRef<Guarded>>> + use<> {
    let errors = context.metrics.watch_errors.with_label_values(&["PpoJob"]);
    let mut changes = Changes::default();
    move |event| {
        let changed = match event {
            Ok(event) => changes.after(&event),
            Err(error) => {
                errors.inc();
                tracing::warn!(%error, "the watch of PpoJobs failed and starts again");
                Vec::new()
            }
        };
        stream::iter(changed)
    }
}

/// Which jobs to look at after each event of their watch. One that is gone is not found then, and so forgotten: after a look at it that was
/// under way, which would remember it again.
#[derive(Default)]
struct Changes {
    /// Those that are there.
    known: HashSet<ObjectRef<Guarded>>,
    /// Those of a list that is not complete yet.
    listed: Vec<ObjectRef<Guarded>>,
}

impl Changes {
    /// Those of a list are looked at once all of its pages are here: until then the store has what was before it, in which a new job is not
    /// found, and a changed one is as it was. Nothing would tell of them again, nor of those that went while nobody watched.
    fn after(&mut self, event: &Event<Guarded>) -> Vec<ObjectRef<Guarded>> {
        match event {
            Event::Apply(job) => {
                let job = ObjectRef::from_obj(job);
                self.known.insert(job.clone());
                vec![job]
            }
            Event::Delete(job) => {
                let job = ObjectRef::from_obj(job);
                self.known.remove(&job);
                vec![job]
            }
            // A list that broke off begins anew.
            Event::Init => {
                self.listed.clear();
                Vec::new()
            }
            Event::InitApply(job) => {
                self.listed.push(ObjectRef::from_obj(job));
                Vec::new()
            }
            Event::InitDone => {
                let mut changed = std::mem::take(&mut self.listed);
                let before = std::mem::replace(&mut self.known, changed.iter().cloned().collect());
                changed.extend(before.difference(&self.known).cloned());
                changed
            }
        }
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
async fn watch_new_kinds(
    context: Arc<Context>,
    mut news: broadcast::Receiver<Kind>,
    namespace: Option<String>,
    sink: Sink,
) {
    let mut watches = JoinSet::new();
    // The sender lives as long as the context, which this task holds.
    while let Ok(kind) = news.recv().await {
        begin(kind, namespace.clone(), &context, &sink, &mut watches);
    }
}

/// Whether a job was looked at: a pod alone proves no job.
fn known(context: Arc<Context>) -> impl Fn(&JobKey, &str) -> bool {
    move |key, uid| context.jobs.uid(key).as_deref() == Some(uid)
}

/// The actors that could report now.
fn actors(context: Arc<Context>, namespace: Option<String>) -> impl Fn() -> Vec<Actor> {
    move || context.world.actors(namespace.as_deref())
}

fn tell(changed: mpsc::UnboundedSender<JobKey>) -> impl Fn(&Actor) {
    move |actor| {
        // The receiver is gone only while the operator stops.
        let _ = changed.send(actor.key.clone());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job(name: &str) -> Guarded {
        let object = json!({
            "apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "metadata": {"name": name, "namespace": "n"},
        });
        serde_json::from_value(object).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_that_cannot_be_listed_holds_up_no_other_and_one_alone_ends_the_operator() {
        let wait = async |is_one_of_several: bool| {
            let (_never, first_list) = watch::channel(false);
            let (answered, is_answered) = watch::channel(false);
            let scope = Scope {
                namespace: Some("team-b".into()),
                is_one_of_several,
                concurrency: 1,
            };
            let starting = vec![(Kind::Pod, first_list)];
            let ended = tokio::time::timeout(SYNC_DEADLINE * 10, listed(starting, &scope, &answered)).await;
            let is_answered = *is_answered.borrow();
            (ended, is_answered)
        };
        let (ended, is_answered) = wait(true).await;
        assert!(ended.is_err(), "it waits on");
        assert!(is_answered, "it keeps the operator from being ready");
        let (ended, is_answered) = wait(false).await;
        let ended = ended.unwrap().unwrap_err().to_string();
        assert!(ended.contains("in namespace team-b"), "{ended}");
        assert!(!is_answered);
    }

    #[tokio::test(start_paused = true)]
    async fn a_gang_schedulers_kind_that_cannot_be_listed_is_waited_for_and_ends_nothing() {
        let scope = Scope {
            namespace: None,
            is_one_of_several: false,
            concurrency: 1,
        };
        let answered = watch::channel(false).0;
        let (_done, pods) = watch::channel(true);
        let (listing, workloads) = watch::channel(false);
        let starting = || vec![(Kind::Pod, pods.clone()), (Kind::KueueWorkload, workloads.clone())];
        let wait = async |deadline: Duration| {
            let ended = tokio::time::timeout(deadline, listed(starting(), &scope, &answered)).await;
            ended.map(Result::unwrap)
        };
        assert!(wait(SYNC_DEADLINE / 2).await.is_err(), "its list may only take a while");
        assert!(wait(SYNC_DEADLINE * 2).await.is_ok());
        listing.send_replace(true);
        assert!(wait(SYNC_DEADLINE / 2).await.is_ok());
    }

    #[test]
    fn jobs_of_a_list_are_looked_at_when_all_its_pages_have_come() {
        let mut changes = Changes::default();
        let mut after = |event: Event<Guarded>| -> Vec<String> {
            let jobs = changes.after(&event).into_iter();
            jobs.map(|job| job.name).collect()
        };
        let nothing: [&str; 0] = [];
        assert_eq!(after(Event::Apply(job("a"))), ["a"]);
        assert_eq!(after(Event::Init), nothing);
        assert_eq!(after(Event::InitApply(job("of-a-list-that-broke-off"))), nothing);
        // The next try.
        assert_eq!(after(Event::Init), nothing);
        assert_eq!(after(Event::InitApply(job("a"))), nothing);
        assert_eq!(after(Event::InitApply(job("new"))), nothing);
        assert_eq!(after(Event::InitDone), ["a", "new"]);
    }

    #[test]
    fn a_job_that_goes_is_looked_at_once_more_though_it_went_while_the_watch_was_broken() {
        let mut changes = Changes::default();
        let mut after = |event: Event<Guarded>| -> Vec<String> {
            let jobs = changes.after(&event).into_iter();
            jobs.map(|job| job.name).collect()
        };
        after(Event::Init);
        after(Event::InitApply(job("a")));
        after(Event::InitApply(job("b")));
        after(Event::InitDone);
        assert_eq!(after(Event::Apply(job("c"))), ["c"]);
        assert_eq!(after(Event::Delete(job("c"))), ["c"]);
        after(Event::Init);
        after(Event::InitApply(job("b")));
        assert_eq!(after(Event::InitDone), ["b", "a"]);
        // Once.
        after(Event::Init);
        after(Event::InitApply(job("b")));
        assert_eq!(after(Event::InitDone), ["b"]);
    }
}
