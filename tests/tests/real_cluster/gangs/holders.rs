//! Who held the node, at every moment of a test.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::{StreamExt as _, pin_mut};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt as _};
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use crate::job::NAME;

/// Pods that have a node and are not on their way out, of some namespaces, since the watch began.
pub struct Holders {
    seen: Arc<Mutex<Seen>>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Seen {
    /// Names of the pods that hold the node now, by namespace.
    now: BTreeMap<String, BTreeSet<String>>,
    /// The most that a namespace ever held.
    most: BTreeMap<String, usize>,
    /// Moments at which more than one namespace held the node.
    met: Vec<String>,
    /// Why the watch ended.
    broken: Option<String>,
}

impl Holders {
    /// Begins to watch. One watch of all namespaces: of two watches nobody would know what was first.
    pub fn watch(client: Client, namespaces: BTreeSet<String>) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let kept = Arc::clone(&seen);
        let pods: Api<Pod> = Api::all(client);
        let task = tokio::spawn(async move {
            let labelled = watcher::Config::default().labels(&format!("ppojob.dev/job={NAME}"));
            let events = watcher(pods, labelled);
            pin_mut!(events);
            while let Some(event) = events.next().await {
                let mut seen = kept.lock();
                match event {
                    Ok(Event::Apply(pod) | Event::InitApply(pod)) => seen.note(&namespaces, &pod, holds(&pod)),
                    Ok(Event::Delete(pod)) => seen.note(&namespaces, &pod, false),
                    Ok(Event::Init | Event::InitDone) => {}
                    Err(error) => {
                        // A client whose runtime ends answers every poll at once: to go on would never let go of the thread.
                        seen.broken = Some(error.to_string());
                        return;
                    }
                }
            }
        });
        Self { seen, task }
    }

    /// No two namespaces ever held the node at once, and each held it with `gang` pods at some time.
    pub fn never_met(&self, gang: usize) {
        let seen = self.seen.lock();
        assert_eq!(seen.broken, None, "the watch of pods broke");
        assert!(seen.met.is_empty(), "two jobs held the node at once: {:#?}", seen.met);
        let whole = seen.most.values().filter(|most| **most == gang).count();
        assert!(whole >= 2, "not every job was placed whole: {:?}", seen.most);
    }
}

impl Seen {
    fn note(&mut self, namespaces: &BTreeSet<String>, pod: &Pod, holds: bool) {
        let namespace = pod.namespace().unwrap_or_default();
        if !namespaces.contains(&namespace) {
            return;
        }
        let held = self.now.entry(namespace.clone()).or_default();
        match holds {
            true => held.insert(pod.name_any()),
            false => held.remove(&pod.name_any()),
        };
        let most = self.most.entry(namespace).or_default();
        *most = held.len().max(*most);
        if self.now.values().filter(|held| !held.is_empty()).count() > 1 {
            self.met.push(format!("{:?}", self.now));
        }
    }
}

/// A pod that ends holds its node no longer than its grace period: a successor may be placed meanwhile, where there is room.
/// A kubelet says that the container has ended before it says that the pod has (`mergePodStatus` of its status manager).
fn holds(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let over = matches!(
        status.and_then(|status| status.phase.as_deref()),
        Some("Succeeded" | "Failed")
    );
    let mut containers = status
        .and_then(|status| status.container_statuses.as_ref())
        .into_iter()
        .flatten();
    let worked = containers.any(|container| container.name == "worker" && has_ended(container));
    let leaves = pod.metadata.deletion_timestamp.is_some() || over || worked;
    !leaves && pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some())
}

fn has_ended(container: &ContainerStatus) -> bool {
    container.state.as_ref().is_some_and(|state| state.terminated.is_some())
}

impl Drop for Holders {
    fn drop(&mut self) {
        self.task.abort();
    }
}
