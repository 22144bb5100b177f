//! One watch per kind and namespace: our own labels only, pruned on arrival, restarted with backoff for ever.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt, TryStreamExt};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
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
            let objects = without_content::<Secret>(&client, namespace.as_deref(), config);
            follow(kind, namespace, objects, sink, synced).await;
        }
        // Nor is what it wrote into a ConfigMap, which may be as large as any and never changes.
        Kind::ConfigMap => {
            let objects = without_content::<ConfigMap>(&client, namespace.as_deref(), config);
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

/// Watches objects of which the API server sends the metadata alone.
fn without_content<K>(
    client: &Client,
    namespace: Option<&str>,
    config: watcher::Config,
) -> impl Stream<Item = watcher::Result<Event<Entry>>> + use<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + Send + 'static,
{
    let stream = watcher(scoped::<PartialObjectMeta<K>>(client, namespace), config);
    stream.map_ok(|event| {
        map(event, |meta| {
            let mut object = DynamicObject::new("", &ApiResource::erase::<K>(&()));
            object.metadata = meta.metadata;
            entry(&object, |object| Some(pruned(object)))
        })
    })
}

/// An object, as it is remembered.
struct Entry {
    place: Place,
    /// Its job, and what is known of it; None where its labels name none, or not its part in it.
    seen: Option<(JobKey, Observed)>,
}

/// Namespace and name of an object.
type Place = (String, String);

fn entry<K: Resource>(object: &K, view: impl Fn(&K) -> Option<Observed>) -> Entry {
    let of_job = || Some((JobKey::owning(object)?, view(object)?));
    Entry {
        place: (object.namespace().unwrap_or_default(), object.name_any()),
        seen: of_job(),
    }
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
    let mut owners = HashMap::new();
    let mut listed = HashSet::new();
    while let Some(event) = stream.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(entry)) => {
                listed.extend(entry.seen.as_ref().map(|(key, _)| (key.clone(), entry.place.1.clone())));
                sink.take(kind, entry, &mut owners);
            }
            Ok(Event::Apply(entry)) => sink.take(kind, entry, &mut owners),
            Ok(Event::Delete(Entry { place, .. })) => sink.take(kind, Entry { place, seen: None }, &mut owners),
            Ok(Event::InitDone) => {
                let gone = sink.world.retain(kind, namespace.as_deref(), &listed);
                gone.into_iter().for_each(|key| sink.tell(key));
                owners.retain(|(_, name), key| listed.contains(&(JobKey::clone(key), name.clone())));
                listed = HashSet::new();
                synced.send_replace(true);
            }
            // Its scheduler was uninstalled, and nobody has anything to mend. Should it come back, so does the watch.
            Err(error) if Kind::GANGS.contains(&kind) && is_not_served(&error) => {
                tracing::debug!(kind = kind.name(), %error, "the API server does not serve this kind any more");
            }
            Err(error) => {
                errors.inc();
                tracing::warn!(kind = kind.name(), %error, "a watch failed and starts again");
            }
        }
    }
}

/// Whether the API server does not have the kind.
fn is_not_served(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => status.code == 404,
        _ => false,
    }
}

impl Sink {
    /// Remembers an object as it is now, and forgets it where it was: whoever takes the labels off an object, or gives it others, takes it
    /// from its job.
    fn take(&self, kind: Kind, Entry { place, seen }: Entry, owners: &mut HashMap<Place, JobKey>) {
        let before = match &seen {
            Some((key, _)) => owners.insert(place.clone(), key.clone()).filter(|before| before != key),
            None => owners.remove(&place),
        };
        let (_, name) = place;
        if let Some(key) = before {
            self.world.remove(&key, kind, &name);
            self.expected.seen(&key, kind, &name);
            self.tell(key);
        }
        if let Some((key, observed)) = seen {
            self.world.insert(&key, kind, observed);
            self.expected.seen(&key, kind, &name);
            self.tell(key);
        }
    }

    /// The receiver is gone only while the operator stops.
    fn tell(&self, key: JobKey) {
        let _ = self.changed.send(key);
    }
}

/// Waits until every watch of `namespace` (None: everywhere) has listed once.
///
/// # Errors
/// The kinds that have not after `deadline`: usually a missing permission, or a namespace that is gone and the right with it.
pub async fn wait_synced(
    watches: &mut [(Kind, watch::Receiver<bool>)],
    namespace: Option<&str>,
    deadline: Duration,
) -> Result<(), String> {
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
    let (place, whether) = match namespace {
        Some(namespace) => (format!(" in namespace {namespace}"), "is the namespace there, and "),
        None => Default::default(),
    };
    Err(format!(
        "not listed after {} s{place}: {}; {whether}may the operator's service account list and watch them?",
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

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::http::header::ACCEPT;
    use axum::http::{HeaderMap, StatusCode};
    use futures::stream;
    use kube::Config;
    use kube::core::Status;
    use serde_json::{Value, json};
    use tokio::net::TcpListener;

    use super::*;

    fn seen(mut labels: Value) -> Entry {
        labels["ppojob.dev/index"] = json!("0");
        let pod = json!({"metadata": {"name": "a-rollout-0", "namespace": "n", "labels": labels}});
        let pod: SeenPod = serde_json::from_value(pod).unwrap();
        entry(&pod, |pod| PodView::of(pod).map(|view| Observed::Pod(Arc::new(view))))
    }

    /// The jobs that have the pod after these events, and the jobs that were told of.
    async fn after(events: Vec<Event<Entry>>) -> (Vec<String>, Vec<String>) {
        let (changed, mut changes) = mpsc::unbounded_channel();
        let sink = Sink {
            world: Arc::default(),
            expected: Arc::default(),
            changed,
            metrics: Arc::new(Metrics::new().unwrap()),
        };
        let world = sink.world.clone();
        let events = stream::iter(events.into_iter().map(Ok));
        follow(Kind::Pod, None, events, sink, watch::channel(false).0).await;
        let job = |name: &str| JobKey {
            namespace: "n".into(),
            name: name.into(),
        };
        let has = |name: &&str| !world.children(&job(name)).pods.is_empty();
        let having = ["a", "b"].into_iter().filter(has).map(str::to_owned).collect();
        let mut told = Vec::new();
        while let Ok(key) = changes.try_recv() {
            told.push(key.name);
        }
        (having, told)
    }

    /// What the first request of the watch of `kind` accepts as its answer.
    async fn accepted(kind: Kind) -> String {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (asked, mut requests) = mpsc::unbounded_channel();
        let answer = move |headers: HeaderMap| {
            let accepted = headers
                .get(ACCEPT)
                .map(|accepted| accepted.to_str().unwrap().to_owned());
            // The receiver is gone once the first has come.
            let _ = asked.send(accepted.unwrap_or_default());
            std::future::ready(StatusCode::SERVICE_UNAVAILABLE)
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = axum::serve(listener, Router::new().fallback(answer));
        let client = Client::try_from(Config::new(url.parse().unwrap())).unwrap();
        let sink = Sink {
            world: Arc::default(),
            expected: Arc::default(),
            changed: mpsc::unbounded_channel().0,
            metrics: Arc::new(Metrics::new().unwrap()),
        };
        tokio::select! {
            accepted = requests.recv() => accepted.unwrap(),
            () = watch_kind(client, kind, None, sink, watch::channel(false).0) => panic!("the watch ended"),
            _ = server.into_future() => panic!("the server ended"),
        }
    }

    #[tokio::test]
    async fn of_secrets_and_config_maps_the_metadata_alone_is_asked_for() {
        for (kind, without_content) in [(Kind::Secret, true), (Kind::ConfigMap, true), (Kind::Service, false)] {
            let accepted = accepted(kind).await;
            let of_metadata = accepted.contains("as=PartialObjectMetadata");
            assert_eq!(of_metadata, without_content, "{}: {accepted}", kind.name());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_gang_scheduler_that_was_uninstalled_is_no_failure_of_its_watch_and_a_missing_right_is() {
        let failures = async |kind: Kind, code: u16| {
            let refused = Status::failure("page not found", "").with_code(code);
            let error = watcher::Error::WatchStartFailed(kube::Error::Api(refused.boxed()));
            let sink = Sink {
                world: Arc::default(),
                expected: Arc::default(),
                changed: mpsc::unbounded_channel().0,
                metrics: Arc::new(Metrics::new().unwrap()),
            };
            let metrics = sink.metrics.clone();
            follow(kind, None, stream::iter([Err(error)]), sink, watch::channel(false).0).await;
            metrics.watch_errors.with_label_values(&[kind.name()]).get()
        };
        assert_eq!(failures(Kind::KueueWorkload, 404).await, 0);
        assert_eq!(failures(Kind::KueueWorkload, 403).await, 1);
        assert_eq!(failures(Kind::Pod, 404).await, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_that_cannot_be_listed_is_named() {
        let (done, synced) = watch::channel(false);
        let mut watches = [(Kind::Pod, synced)];
        let deadline = Duration::from_secs(60);
        let said = wait_synced(&mut watches, Some("team-b"), deadline).await.unwrap_err();
        assert!(said.contains("60 s in namespace team-b: Pod;"), "{said}");
        let said = wait_synced(&mut watches, None, deadline).await.unwrap_err();
        assert!(said.contains("60 s: Pod; may"), "{said}");
        done.send_replace(true);
        assert_eq!(wait_synced(&mut watches, None, deadline).await, Ok(()));
    }

    fn words(jobs: &[&str]) -> Vec<String> {
        jobs.iter().map(|job| (*job).to_owned()).collect()
    }

    #[tokio::test]
    async fn an_object_that_loses_a_label_of_its_job_is_gone_from_it_and_the_job_is_told() {
        let of_a = || seen(json!({"ppojob.dev/job": "a", "ppojob.dev/role": "rollout"}));
        let without_job = || seen(json!({"ppojob.dev/role": "rollout"}));
        let without_role = || seen(json!({"ppojob.dev/job": "a"}));
        let of_b = || seen(json!({"ppojob.dev/job": "b", "ppojob.dev/role": "rollout"}));
        let listed = || vec![Event::Init, Event::InitApply(of_a()), Event::InitDone];
        assert_eq!(after(listed()).await, (words(&["a"]), words(&["a"])));
        let twice = words(&["a", "a"]);
        for lost in [
            Event::Apply(without_job()),
            Event::Apply(without_role()),
            Event::Delete(without_job()),
        ] {
            let mut events = listed();
            events.push(lost);
            assert_eq!(after(events).await, (Vec::new(), twice.clone()));
        }
        let mut events = listed();
        events.push(Event::Apply(of_b()));
        assert_eq!(after(events).await, (words(&["b"]), words(&["a", "a", "b"])));
        // Listed anew without its labels it is told of once.
        let mut events = listed();
        events.extend([Event::Init, Event::InitApply(without_job()), Event::InitDone]);
        assert_eq!(after(events).await, (Vec::new(), twice));
    }
}
