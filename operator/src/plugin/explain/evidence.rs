//! What the API server knows of a job, and how the explanations read it.

use std::collections::BTreeMap;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use ppo_crds::PpoJob;
use ppo_crds::spec::Role;
use ppo_crds::status::{Phase, PpoJobStatus};

/// What the API server knows of a job.
#[derive(Clone, Debug)]
pub struct Evidence {
    /// The job.
    pub job: PpoJob,
    /// Its pods, terminating ones included.
    pub pods: Vec<Pod>,
    /// Events of the job, of its pods, and of Workloads of `gang`.
    pub events: Vec<Event>,
    /// The PodGroups and Workloads that belong to it.
    pub gang: Vec<DynamicObject>,
    /// The Leases of operators that could be read, the one renewed last before the others: there may be one for each set of namespaces.
    pub leases: Vec<Lease>,
    /// Last line of the logs of crashed pods, by name of the pod.
    pub last_lines: BTreeMap<String, String>,
}

impl Evidence {
    /// Evidence that has nothing but the job.
    pub fn of(job: PpoJob) -> Self {
        Self {
            job,
            pods: Vec::new(),
            events: Vec::new(),
            gang: Vec::new(),
            leases: Vec::new(),
            last_lines: BTreeMap::new(),
        }
    }

    /// The job's name.
    pub fn name(&self) -> String {
        self.job.name_any()
    }

    /// Where the operator saw the job in its life.
    pub fn phase(&self) -> Option<Phase> {
        self.job.status.as_ref().and_then(|status| status.phase)
    }

    /// The status; empty where there is none.
    pub fn status(&self) -> PpoJobStatus {
        self.job.status.clone().unwrap_or_default()
    }

    /// The condition of this type, when it has this status.
    pub fn condition(&self, kind: &str, status: &str) -> Option<&Condition> {
        let conditions = self.job.status.iter().flat_map(|status| &status.conditions);
        conditions
            .into_iter()
            .find(|condition| condition.type_ == kind && condition.status == status)
    }

    /// Latest event of an object by one of these reasons.
    pub fn latest(&self, kind: &str, name: &str, reasons: &[&str]) -> Option<&Event> {
        let about = |event: &&Event| {
            let object = &event.involved_object;
            object.kind.as_deref() == Some(kind)
                && object.name.as_deref() == Some(name)
                && reasons.contains(&event.reason.as_deref().unwrap_or_default())
        };
        self.events.iter().filter(about).max_by_key(|event| time(event))
    }

    /// Message of the latest such event of a pod of this name.
    pub fn words(&self, pod: &str, reasons: &[&str]) -> Option<String> {
        self.latest("Pod", pod, reasons)
            .and_then(|event| event.message.clone())
            .map(|words| one_line(&words))
    }

    /// Whether the job owns pods or a gang's object: those of an earlier job of its name, or with its label alone, are not its own.
    pub fn has_own_objects(&self) -> bool {
        let uid = self.job.metadata.uid.as_ref();
        let of_gang = self.gang.iter().flat_map(DynamicObject::owner_references);
        let mut owners = self.pods.iter().flat_map(Pod::owner_references).chain(of_gang);
        owners.any(|owner| owner.controller == Some(true) && Some(&owner.uid) == uid)
    }

    /// Pods that are not being deleted.
    pub fn living(&self) -> impl Iterator<Item = &Pod> {
        self.pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none())
    }

    /// Pods of a role that are not being deleted.
    pub fn of_role(&self, role: Role) -> impl Iterator<Item = &Pod> {
        self.living()
            .filter(move |pod| super::super::pods::role(pod) == Some(role))
    }
}

/// When an event last happened.
pub fn time(event: &Event) -> Option<Timestamp> {
    let series = event
        .series
        .as_ref()
        .and_then(|series| series.last_observed_time.as_ref());
    let precise = series.or(event.event_time.as_ref()).map(|time| time.0);
    let coarse = event
        .last_timestamp
        .as_ref()
        .or(event.first_timestamp.as_ref())
        .map(|time| time.0);
    precise
        .max(coarse)
        .or_else(|| event.metadata.creation_timestamp.as_ref().map(|time| time.0))
}

/// A message without line breaks and without a full stop, to stand inside a sentence.
pub fn one_line(message: &str) -> String {
    let words = message.split_whitespace().collect::<Vec<_>>().join(" ");
    words.trim_end_matches('.').to_string()
}
