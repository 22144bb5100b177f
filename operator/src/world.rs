//! What the operator knows of the objects it made, by job: fed by watches, read by reconcile, pruned to what decides.

mod actor;
mod job_key;
mod kind;
pub(crate) mod pod;
mod seen;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use kube::ResourceExt;
use kube::api::DynamicObject;
use parking_lot::Mutex;
use ppo_crds::pod::pod_name;
use ppo_crds::spec::Role;

use crate::failure::fails_by_itself;

pub use actor::Actor;
pub use job_key::JobKey;
pub use kind::Kind;
pub use pod::{HOSTNAME, Life, PodView};
pub use seen::{SeenObject, SeenPod};

/// A job's objects as last observed.
#[derive(Clone, Debug, Default)]
pub struct Children {
    /// Its pods, by name.
    pub pods: BTreeMap<String, Arc<PodView>>,
    /// All else, by kind and name; Secrets and ConfigMaps without their content.
    pub objects: BTreeMap<(Kind, String), Arc<DynamicObject>>,
}

/// An observed object.
pub enum Observed {
    /// A pod.
    Pod(Arc<PodView>),
    /// Anything else.
    Object(Box<DynamicObject>),
}

/// The objects of all jobs.
#[derive(Default)]
pub struct World {
    children: Mutex<HashMap<JobKey, Children>>,
    /// Actors' pods that are gone, and others' that had failed, as they were last seen, by job and name.
    vanished: Mutex<HashMap<JobKey, BTreeMap<String, Arc<PodView>>>>,
}

impl World {
    /// What is known of a job's objects.
    pub fn children(&self, key: &JobKey) -> Children {
        self.children.lock().get(key).cloned().unwrap_or_default()
    }

    /// Whether an object that is no pod was observed.
    pub fn knows(&self, key: &JobKey, kind: Kind, name: &str) -> bool {
        let jobs = self.children.lock();
        jobs.get(key)
            .is_some_and(|children| children.objects.contains_key(&(kind, name.to_string())))
    }

    /// Remembers an object as it is now.
    pub fn insert(&self, key: &JobKey, kind: Kind, observed: Observed) {
        let mut jobs = self.children.lock();
        let children = jobs.entry(key.clone()).or_default();
        match observed {
            Observed::Pod(mut pod) => {
                let known = children.pods.get(&pod.name).filter(|known| known.uid == pod.uid);
                // Whoever deletes a pod that has failed takes away the pod and not the failure.
                if known.is_some_and(|known| fails_by_itself(known)) {
                    Arc::make_mut(&mut pod).failed_by_itself = true;
                }
                children.pods.insert(pod.name.clone(), pod);
            }
            Observed::Object(object) => {
                let name = object.name_any();
                children.objects.insert((kind, name), Arc::new(*object));
            }
        }
    }

    /// Forgets a deleted object.
    pub fn remove(&self, key: &JobKey, kind: Kind, name: &str) {
        let mut jobs = self.children.lock();
        let Some(children) = jobs.get_mut(key) else { return };
        match kind {
            Kind::Pod => {
                let gone = children.pods.remove(name);
                if let Some(pod) = gone.filter(|pod| pod.role == Role::Actor || fails_by_itself(pod)) {
                    let mut vanished = self.vanished.lock();
                    vanished.entry(key.clone()).or_default().insert(name.to_owned(), pod);
                }
            }
            _ => drop(children.objects.remove(&(kind, name.to_string()))),
        }
        // A job has objects as long as it is there: what is remembered of one that was deleted goes with its last. A claim of checkpoints
        // outlives its job.
        let of_claims = |(kind, _): &(Kind, String)| *kind == Kind::PersistentVolumeClaim;
        if children.pods.is_empty() && children.objects.keys().all(of_claims) {
            self.vanished.lock().remove(key);
            if children.objects.is_empty() {
                jobs.remove(key);
            }
        }
    }

    /// The actor's pods that are gone, and others' that had failed, as they were last seen.
    pub fn vanished(&self, key: &JobKey) -> Vec<Arc<PodView>> {
        let jobs = self.vanished.lock();
        jobs.get(key).into_iter().flat_map(BTreeMap::values).cloned().collect()
    }

    /// Forgets what is remembered of a deleted job's past; its objects are forgotten as they go.
    pub fn forget(&self, key: &JobKey) {
        self.vanished.lock().remove(key);
    }

    /// After a watch was begun anew: forgets the objects of `kind` in `namespace` (None: everywhere) that it did not list.
    /// Returns the jobs that lost one.
    pub fn retain(&self, kind: Kind, namespace: Option<&str>, listed: &HashSet<(JobKey, String)>) -> Vec<JobKey> {
        let gone: Vec<(JobKey, String)> = self
            .children
            .lock()
            .iter()
            .filter(|(key, _)| namespace.is_none_or(|namespace| namespace == key.namespace))
            .flat_map(|(key, children)| names(children, kind).into_iter().map(|name| (key.clone(), name)))
            .filter(|entry| !listed.contains(entry))
            .collect();
        for (key, name) in &gone {
            self.remove(key, kind, name);
        }
        gone.into_iter().map(|(key, _)| key).collect()
    }

    /// The first actor pod of each job in `namespace` (None: everywhere) that has an address, with the uid that it names: whether there
    /// is a job of that uid is not known here.
    pub fn actors(&self, namespace: Option<&str>) -> Vec<Actor> {
        let jobs = self.children.lock();
        let here = jobs
            .iter()
            .filter(|(key, _)| namespace.is_none_or(|namespace| namespace == key.namespace));
        here.filter_map(|(key, children)| {
            let pod = children.pods.get(&pod_name(&key.name, Role::Actor, 0))?;
            let asked = pod.life == Life::Ready && pod.deleting_since.is_none();
            Some(Actor {
                key: key.clone(),
                uid: pod.owner.clone()?,
                ip: pod.ip.clone().filter(|_| asked)?,
                attempt: pod.attempt,
            })
        })
        .collect()
    }

    /// Objects known, by kind.
    pub fn count(&self) -> BTreeMap<Kind, usize> {
        let mut counts = BTreeMap::new();
        for children in self.children.lock().values() {
            *counts.entry(Kind::Pod).or_default() += children.pods.len();
            for (kind, _) in children.objects.keys() {
                *counts.entry(*kind).or_default() += 1;
            }
        }
        counts
    }
}

fn names(children: &Children, kind: Kind) -> Vec<String> {
    match kind {
        Kind::Pod => children.pods.keys().cloned().collect(),
        _ => children
            .objects
            .keys()
            .filter(|(of, _)| *of == kind)
            .map(|(_, name)| name.clone())
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn key() -> JobKey {
        JobKey {
            namespace: "n".into(),
            name: "a".into(),
        }
    }

    fn pod(role: &str, uid: &str, exit_code: Option<i32>, deleted: bool) -> Observed {
        let ended = exit_code.map(|code| {
            json!([{"name": "worker", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": {"exitCode": code}}}])
        });
        let pod = json!({
            "metadata": {
                "name": format!("a-{role}-0"), "uid": uid, "labels": {"ppojob.dev/role": role, "ppojob.dev/index": "0"},
                "deletionTimestamp": deleted.then_some("2026-01-01T00:00:00Z"),
            },
            "spec": {"nodeName": "one"},
            "status": {"phase": if exit_code.is_some() { "Failed" } else { "Running" }, "containerStatuses": ended},
        });
        let pod: SeenPod = serde_json::from_value(pod).unwrap();
        Observed::Pod(Arc::new(PodView::of(&pod).unwrap()))
    }

    #[test]
    fn a_pod_that_had_failed_when_it_was_deleted_is_remembered_and_one_that_ended_of_it_is_not() {
        let gone = |looks: Vec<Observed>| {
            let world = World::default();
            world.insert(&key(), Kind::Pod, pod("actor", "1", None, false));
            for look in looks {
                world.insert(&key(), Kind::Pod, look);
            }
            world.remove(&key(), Kind::Pod, "a-rollout-0");
            world.vanished(&key()).iter().any(|pod| pod.failed_by_itself)
        };
        let engine = |uid, exit_code, deleted| pod("rollout", uid, exit_code, deleted);
        assert!(gone(vec![engine("2", Some(1), false), engine("2", Some(1), true)]));
        assert!(!gone(vec![
            engine("2", None, false),
            engine("2", None, true),
            engine("2", Some(143), true),
        ]));
        // Another of its name is another pod.
        assert!(!gone(vec![engine("2", Some(1), false), engine("3", Some(143), true)]));
    }

    #[test]
    fn of_a_deleted_job_whose_claim_stays_no_pod_is_remembered() {
        let world = World::default();
        let object = |kind: Kind, name: &str| Observed::Object(Box::new(DynamicObject::new(name, &kind.resource())));
        let claim = Kind::PersistentVolumeClaim;
        world.insert(&key(), claim, object(claim, "a-runs"));
        world.insert(&key(), Kind::ConfigMap, object(Kind::ConfigMap, "a-config"));
        world.insert(&key(), Kind::Pod, pod("actor", "1", None, false));
        world.remove(&key(), Kind::Pod, "a-actor-0");
        assert_eq!(world.vanished(&key()).len(), 1, "the job may still be there");
        world.remove(&key(), Kind::ConfigMap, "a-config");
        assert!(world.vanished(&key()).is_empty());
        assert!(world.knows(&key(), claim, "a-runs"));
    }
}
