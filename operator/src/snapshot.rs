//! Everything that a reconcile looks at, gathered before anything is decided.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use kube::api::DynamicObject;
use ppo_crds::pod::{config_name, pod_name};
use ppo_crds::spec::Role;

use crate::expected::Names;
use crate::gang::admission::Admission;
use crate::gang::kueue::lookups::Lookups;
use crate::gang::scheduler::Gang;
use crate::gang::unapproved::Unapproved;
use crate::job::{Job, RolePods};
use crate::ledger::Ledger;
use crate::reports::Heard;
use crate::world::{Children, Kind, Life, PodView};

/// The observed state of a job.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Its objects.
    pub children: Children,
    /// Objects that were made and that no watch has shown yet.
    pub expected: Names,
    /// What the actor last said of this attempt.
    pub report: Option<Heard>,
    /// Who places its pods.
    pub gang: Gang,
    /// What was looked up for it.
    pub lookups: Lookups,
    /// Whether they may exist.
    pub admission: Admission,
    /// The gang's object, while it cannot be written.
    pub unapproved: Option<Unapproved>,
    /// What the API server last refused of what the job needs, and why.
    pub refused: Option<String>,
    /// Whether the Secret with the token is gone, though pods were made with it.
    pub token_lost: bool,
    /// Nodes that are gone or not ready, of pods that hang terminating and of an actor's that others of its ranks may have lost.
    pub lost_nodes: BTreeSet<String>,
    /// The annotation that asks for a restart.
    pub restart_request: Option<String>,
    /// Since when this process acts, and listens for reports: silence before that says nothing, and no pod that was missing came.
    pub listening_since: Timestamp,
    /// The actor's pods that are gone, and others' that had failed, as they were last seen.
    pub vanished: Vec<Arc<PodView>>,
}

#[cfg(test)]
impl Snapshot {
    /// What is seen of a job whose pods may exist, and of which nothing else is known.
    pub fn plain(children: Children, gang: Gang, listening_since: Timestamp) -> Self {
        Self {
            children,
            expected: Names::default(),
            report: None,
            gang,
            lookups: Lookups::default(),
            admission: Admission::Free,
            unapproved: None,
            refused: None,
            token_lost: false,
            lost_nodes: BTreeSet::new(),
            restart_request: None,
            listening_since,
            vanished: Vec::new(),
        }
    }
}

impl Snapshot {
    /// The job's own pods: those of an earlier job of the name are not.
    pub fn pods<'a>(&'a self, job: &'a Job) -> impl Iterator<Item = &'a PodView> {
        let pods = self.children.pods.values().map(Arc::as_ref);
        pods.filter(|pod| pod.owner.as_deref() == Some(job.uid.as_str()))
    }

    /// One of them.
    pub fn pod(&self, job: &Job, role: Role, index: u32) -> Option<&PodView> {
        let pod = self.children.pods.get(&pod_name(&job.key.name, role, index))?;
        (pod.owner.as_deref() == Some(job.uid.as_str())).then_some(pod.as_ref())
    }

    /// The actor's first pod; where it is gone, as it was last seen: one that is deleted in its last step is removed with its end.
    pub fn first_actor(&self, job: &Job) -> Option<&PodView> {
        let name = pod_name(&job.key.name, Role::Actor, 0);
        let own = |pod: &&PodView| pod.name == name && pod.owner.as_deref() == Some(job.uid.as_str());
        let vanished = || self.vanished.iter().map(Arc::as_ref).find(own);
        self.pod(job, Role::Actor, 0).or_else(vanished)
    }

    /// Whether an object is there, or was made a moment ago.
    pub fn exists(&self, kind: Kind, name: &str) -> bool {
        let there = match kind {
            // One that is nobody's stays: whoever makes another is told that the name is taken.
            Kind::Pod => {
                let pod = self.children.pods.get(name);
                pod.is_some_and(|pod| pod.owner.is_some() || pod.deleting_since.is_some())
            }
            _ => self.object(kind, name).is_some(),
        };
        there || self.expected.contains_key(&(kind, name.to_string()))
    }

    /// The actor's pods that are not there, where fewer are than the `ready` ones that the status knows of: each by its index and name.
    pub fn missed_actors(&self, job: &Job, ready: u32) -> Vec<(u32, String)> {
        let pods = job.role(Role::Actor).map_or(0, |actor| actor.pods);
        let mut gone: Vec<(u32, String)> = (0..pods)
            .map(|index| (index, pod_name(&job.key.name, Role::Actor, index)))
            .collect();
        gone.retain(|(_, name)| !self.exists(Kind::Pod, name));
        if pods as usize - gone.len() >= ready as usize {
            gone.clear();
        }
        gone
    }

    /// Whether what the job runs is fixed: it was accepted once, and its pods read it from there.
    pub fn has_config(&self, job: &Job) -> bool {
        self.exists(Kind::ConfigMap, &config_name(&job.key.name))
    }

    /// An object of the job.
    pub fn object(&self, kind: Kind, name: &str) -> Option<&Arc<DynamicObject>> {
        self.children.objects.get(&(kind, name.to_string()))
    }

    /// Pods of a role that may exist now: fewer than wanted when a queue admitted fewer.
    pub fn count(&self, role: RolePods) -> u32 {
        match &self.admission {
            Admission::Admitted(places) => places
                .get(&role.role)
                .map_or(role.pods, |place| place.count.min(role.pods)),
            _ => role.pods,
        }
    }

    /// Whether the job wants a pod of this one's role and index.
    pub fn wants(&self, job: &Job, pod: &PodView) -> bool {
        job.role(pod.role).is_some_and(|role| pod.index < self.count(role))
    }

    /// Pods that should be there, at the attempt that they should have.
    pub fn current_pods<'a>(&'a self, job: &'a Job, ledger: &'a Ledger) -> impl Iterator<Item = &'a PodView> {
        self.pods(job)
            .filter(move |pod| self.wants(job, pod) && pod.attempt == ledger.attempt_of(pod.role, pod.index))
    }

    /// Ready pods of each role, at the attempt that they should have, with the actor's ranks that have done their part.
    pub fn ready(&self, job: &Job, ledger: &Ledger) -> HashMap<Role, u32> {
        let mut ready = HashMap::new();
        for pod in self.pods(job) {
            let current = pod.attempt == ledger.attempt_of(pod.role, pod.index) && pod.deleting_since.is_none();
            // A rank besides the first ends when that one says that the run is over, and so before it.
            let done = pod.role == Role::Actor && pod.index > 0 && pod.life == Life::Succeeded;
            if current && (pod.life == Life::Ready || done) {
                *ready.entry(pod.role).or_default() += 1;
            }
        }
        ready
    }

    /// Whether every role has as many ready pods as the run needs.
    pub fn roles_ready(&self, job: &Job, ledger: &Ledger) -> bool {
        let ready = self.ready(job, ledger);
        job.roles
            .iter()
            .all(|role| ready.get(&role.role).copied().unwrap_or_default() >= self.floor(job, ledger, *role))
    }

    /// Pods of a role without which the run does not go on. An engines' floor that was raised counts for the actor from its next start; one
    /// that was lowered counts at once, for the actor is made anew for it.
    fn floor(&self, job: &Job, ledger: &Ledger, role: RolePods) -> u32 {
        let actor = self.pod(job, Role::Actor, 0);
        let current = actor.filter(|actor| actor.attempt == ledger.attempt_of(Role::Actor, 0));
        let told = current
            .filter(|_| role.role == Role::Rollout)
            .and_then(|actor| actor.floor);
        told.map_or(role.floor, |told| told.min(role.floor))
    }
}
