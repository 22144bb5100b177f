//! Kueue, by owning a Workload with one podSet per role: pods exist while it is admitted. What Kueue's own job framework does
//! (`pkg/controller/jobframework`), for which it has no interface but Go. Seen with Kueue 0.16.1.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::DynamicObject;
use ppo_crds::spec::Role;
use serde_json::{Value, json};

use super::{Admission, Place, Upkeep, members};
use crate::job::Job;
use crate::lifecycle::Intent;
use crate::plan::metadata;
use crate::settings::PodSettings;
use crate::snapshot::Snapshot;
use crate::world::{Children, Kind};

/// Marks a pod so that Kueue's topology accounting does not count it beside its Workload.
const UNCONSTRAINED: &str = "kueue.x-k8s.io/podset-unconstrained-topology";

/// The Workload: what the job asks for.
pub fn workload(job: &Job, settings: &PodSettings) -> DynamicObject {
    let sets: Vec<Value> = job
        .roles
        .iter()
        .map(|role| {
            let mut requests = members::requests_of(job, *role);
            if role.gpus > 0 {
                requests.insert(settings.gpu_resource.clone(), role.gpus.to_string());
            }
            let container = json!({"name": "worker", "image": "none", "resources": {"requests": requests}});
            json!({
                "name": role.role.name(),
                "count": role.pods,
                "minCount": role.floor,
                "template": {"spec": {"containers": [container], "restartPolicy": "Never"}},
            })
        })
        .collect();
    let spec = json!({"queueName": job.spec.scheduling.queue, "podSets": sets});
    let mut workload = DynamicObject::new("", &Kind::KueueWorkload.resource()).data(json!({"spec": spec}));
    workload.metadata = metadata(job, &members::name(job));
    workload
}

/// Whether the Workload is admitted.
pub fn admission(job: &Job, children: &Children) -> Admission {
    let workload = children.objects.get(&(Kind::KueueWorkload, members::name(job)));
    let Some(workload) = workload else {
        return Admission::Waiting {
            reason: "Pending".into(),
            message: "the job is being queued".into(),
        };
    };
    let condition = |name: &str| {
        let conditions = workload.data["status"]["conditions"].as_array();
        conditions
            .into_iter()
            .flatten()
            .find(|condition| condition["type"] == name)
    };
    let is_true = |name: &str| condition(name).is_some_and(|condition| condition["status"] == "True");
    let words = |name: &str| {
        let text = |field: &str| {
            condition(name)
                .and_then(|condition| condition[field].as_str())
                .unwrap_or_default()
                .to_string()
        };
        (text("reason"), text("message"))
    };
    if is_true("Evicted") {
        let (reason, message) = words("Evicted");
        return Admission::Waiting { reason, message };
    }
    if !is_true("Admitted") {
        let (reason, message) = words("QuotaReserved");
        return Admission::Waiting {
            reason: if reason.is_empty() { "Pending".into() } else { reason },
            message: if message.is_empty() {
                "waits for Kueue".into()
            } else {
                message
            },
        };
    }
    Admission::Admitted(places(&workload.data["status"]["admission"]))
}

fn places(admission: &Value) -> BTreeMap<Role, Place> {
    let assigned = admission["podSetAssignments"].as_array().into_iter().flatten();
    assigned
        .filter_map(|assigned| {
            let name = assigned["name"].as_str()?;
            let role = Role::ALL.into_iter().find(|role| role.name() == name)?;
            let count = u32::try_from(assigned["count"].as_u64()?).ok()?;
            let place = Place {
                count,
                ..Place::default()
            };
            Some((role, place))
        })
        .collect()
}

/// Sends a pod to the nodes that its role was given.
pub fn join(pod: &mut DynamicObject, role: Role, index: u32, seen: &Snapshot) {
    pod.annotations_mut().insert(UNCONSTRAINED.into(), "true".into());
    let Admission::Admitted(places) = &seen.admission else {
        return;
    };
    let Some(place) = places.get(&role) else { return };
    let chosen = usize::try_from(index).ok().and_then(|index| place.nodes.get(index));
    for (key, value) in place.node_selector.iter().chain(chosen.into_iter().flatten()) {
        pod.data["spec"]["nodeSelector"][key] = json!(value);
    }
}

/// Returns the quota after an eviction, and at the end.
pub fn upkeep(_job: &Job, _intent: &Intent, _seen: &Snapshot, _now: Timestamp) -> Upkeep {
    Upkeep::default()
}
