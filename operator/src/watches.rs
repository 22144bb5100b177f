//! One watch per kind and namespace: our own labels only, pruned on arrival, restarted with backoff for ever.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt, TryStreamExt};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, Resource, ResourceExt};
use ppo_crds::pod::label;
use tokio::sync::{mpsc, watch};

use crate::expected::Expected;
use crate::metrics::Metrics;
use crate::world::{JobKey, Kind, Observed, PodView, SeenObject, SeenPod, World};

/// Where a watch's news go.
#[derive(Clone)]
pub struct Sink {
    /// What is known.
    pub world: Arc<World>,
    /// What was made and not seen yet.
    pub expected: Arc<Expected>,
    /// Jobs to look at again.
    pub changed: mpsc::UnboundedSender<JobKey>,
    /// Counts of failures.
    pub metrics: Arc<Metrics>,
}

/// Watches `kind` in `namespace` (None: everywhere) until the task is dropped; `synced` turns true at the first full list.
pub async fn watch_kind(
    client: Client,
    kind: Kind,
    namespace: Option<String>,
    sink: Sink,
    synced: watch::Sender<bool>,
) {
    let config = watcher::Config::default().labels(&format!("{}={}", label::MANAGED_BY, label::MANAGED_BY_VALUE));
    let resource = kind.resource();
    match kind {
        Kind::Pod => {
            let stream = watcher(scoped::<SeenPod>(&client, namespace.as_deref()), config);
            let views = stream.map_ok(|event| {
                map(event, |pod| {
                    entry(&pod, |pod| PodView::of(pod).map(|view| Observed::Pod(Arc::new(view))))
                })
            });
            follow(kind, namespace, views, sink, synced).await;
        }
        // The content of Secrets is none of the operator's business.
        Kind::Secret => {
            let stream = watcher(
                scoped::<PartialObjectMeta<Secret>>(&client, namespace.as_deref()),
                config,
            );
            let objects = stream.map_ok(|event| {
                map(event, |meta| {
                    let mut object = DynamicObject::new("", &ApiResource::erase::<Secret>(&()));
                    object.metadata = meta.metadata;
                    entry(&object, |object| Some(pruned(object)))
                })
            });
            follow(kind, namespace, objects, sink, synced).await;
        }
        _ => {
            let stream = watcher(scoped_dynamic(&client, namespace.as_deref(), &resource), config);
            let objects = stream.map_ok(|event| {
                map(event, |object| {
                    let object = DynamicObject::from(object);
                    entry(&object, |object| Some(Observed::Object(Box::new(object.clone()))))
                })
            });
            follow(kind, namespace, objects, sink, synced).await;
        }
    }
}

/// An object with its job and name; None for one that is not a job's.
type Entry = Option<(JobKey, String, Observed)>;

fn entry<K: Resource>(object: &K, view: impl Fn(&K) -> Option<Observed>) -> Entry {
    Some((JobKey::owning(object)?, object.name_any(), view(object)?))
}

fn pruned(object: &DynamicObject) -> Observed {
    let mut object = object.clone();
    object.metadata.managed_fields = None;
    Observed::Object(Box::new(object))
}

fn map<K, V>(event: Event<K>, convert: impl Fn(K) -> V) -> Event<V> {
    match event {
        Event::Apply(object) => Event::Apply(convert(object)),
        Event::Delete(object) => Event::Delete(convert(object)),
        Event::Init => Event::Init,
        Event::InitApply(object) => Event::InitApply(convert(object)),
        Event::InitDone => Event::InitDone,
    }
}

async fn follow(
    kind: Kind,
    namespace: Option<String>,
    stream: impl Stream<Item = watcher::Result<Event<Entry>>>,
    sink: Sink,
    synced: watch::Sender<bool>,
) {
    let mut stream = std::pin::pin!(stream.default_backoff());
    // Counted from zero: rate() does not see a failure that comes with its series.
    let errors = sink.metrics.watch_errors.with_label_values(&[kind.name()]);
    let mut listed = HashSet::new();
    while let Some(event) = stream.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(Some((key, name, observed)))) => {
                listed.insert((key.clone(), name.clone()));
                sink.insert(key, kind, &name, observed);
            }
            Ok(Event::Apply(Some((key, name, observed)))) => sink.insert(key, kind, &name, observed),
            Ok(Event::Delete(Some((key, name, _)))) => {
                sink.world.remove(&key, kind, &name);
                sink.expected.seen(&key, kind, &name);
                sink.tell(key);
            }
            Ok(Event::InitDone) => {
                let gone = sink.world.retain(kind, namespace.as_deref(), &listed);
                gone.into_iter().for_each(|key| sink.tell(key));
                listed = HashSet::new();
                synced.send_replace(true);
            }
            Ok(_) => {}
            Err(error) => {
                errors.inc();
                tracing::warn!(kind = kind.name(), %error, "a watch failed and starts again");
            }
        }
    }
}

impl Sink {
    fn insert(&self, key: JobKey, kind: Kind, name: &str, observed: Observed) {
        self.world.insert(&key, kind, observed);
        self.expected.seen(&key, kind, name);
        self.tell(key);
    }

    /// The receiver is gone only while the operator stops.
    fn tell(&self, key: JobKey) {
        let _ = self.changed.send(key);
    }
}

/// Waits until every watch has listed once.
///
/// # Errors
/// The kinds that have not after `deadline`: usually a missing permission.
pub async fn wait_synced(watches: &mut [(Kind, watch::Receiver<bool>)], deadline: Duration) -> Result<(), String> {
    let all = futures::future::join_all(watches.iter_mut().map(|(_, synced)| async {
        // A watch never ends by itself.
        let _ = synced.wait_for(|done| *done).await;
    }));
    let in_time = tokio::time::timeout(deadline, all).await.is_ok();
    if in_time {
        return Ok(());
    }
    let late: Vec<&str> = watches
        .iter()
        .filter(|(_, synced)| !*synced.borrow())
        .map(|(kind, _)| kind.name())
        .collect();
    Err(format!(
        "not listed after {} s: {}; may the operator's service account list and watch them?",
        deadline.as_secs(),
        late.join(", ")
    ))
}

fn scoped<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

fn scoped_dynamic(client: &Client, namespace: Option<&str>, resource: &ApiResource) -> Api<SeenObject> {
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
        None => Api::all_with(client.clone(), resource),
    }
}
