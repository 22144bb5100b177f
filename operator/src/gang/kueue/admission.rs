//! Whether the Workload is admitted, and where its pods go.

use std::collections::{BTreeMap, BTreeSet};

use kube::api::DynamicObject;
use ppo_crds::spec::Role;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::conditions::{ADMITTED, EVICTED, QUOTA_RESERVED, holds, words};
use super::lookups::{Lookups, Priority};
use super::{refusal, topology, workload};
use crate::gang::admission::{Admission, Place};
use crate::gang::stuck;
use crate::job::Job;
use crate::world::Children;

/// Kueue's word on the job.
pub fn admission(job: &Job, children: &Children, lookups: &Lookups) -> Admission {
    let scheduling = &job.spec.scheduling;
    if scheduling.queue.is_empty() {
        let message = "scheduling.gang is kueue: name a LocalQueue of this namespace in scheduling.queue";
        return waiting(stuck::QUEUE_MISSING, message);
    }
    if lookups.priority == Some(Priority::NoSuchClass) {
        let name = &scheduling.priority_class_name;
        let message =
            format!("there is no WorkloadPriorityClass or PriorityClass {name} (scheduling.priorityClassName)");
        return waiting(stuck::PRIORITY_CLASS_MISSING, &message);
    }
    let Some(workload) = workload::observed(job, children) else {
        return waiting("Pending", "the job is being queued");
    };
    let (evicted, reserved) = (holds(workload, EVICTED), holds(workload, QUOTA_RESERVED));
    if !evicted && holds(workload, ADMITTED) {
        return Admission::Admitted(places(workload, lookups));
    }
    if let Some((reason, message)) = refusal::of(workload) {
        return waiting(reason, &message);
    }
    if evicted && reserved {
        let (reason, message) = words(workload, EVICTED);
        return Admission::Waiting { reason, message };
    }
    let (reason, message) = words(workload, if reserved { ADMITTED } else { QUOTA_RESERVED });
    let or = |text: String, fallback: &str| if text.is_empty() { fallback.into() } else { text };
    waiting(&or(reason, "Pending"), &or(message, "waits for Kueue to answer"))
}

/// The job's Workload, while Kueue has said nothing of it.
pub fn unanswered<'a>(job: &Job, children: &'a Children) -> Option<&'a DynamicObject> {
    let conditions = |workload: &&DynamicObject| list(&workload.data["status"]["conditions"]).next().is_some();
    workload::observed(job, children).filter(|workload| !conditions(workload))
}

fn waiting(reason: &str, message: &str) -> Admission {
    Admission::Waiting {
        reason: reason.into(),
        message: message.into(),
    }
}

/// The flavors that the Workload was given.
pub fn flavors(workload: &DynamicObject) -> BTreeSet<String> {
    let flavors = assignments(workload).flat_map(|assigned| read::<BTreeMap<String, String>>(&assigned["flavors"]));
    flavors.map(|(_, flavor)| flavor).collect()
}

fn places(workload: &DynamicObject, lookups: &Lookups) -> BTreeMap<Role, Place> {
    let named = assignments(workload).filter_map(|assigned| {
        let name = assigned["name"].as_str()?;
        let role = Role::ALL.into_iter().find(|role| role.name() == name)?;
        Some((role, place(workload, name, assigned, lookups)))
    });
    named.collect()
}

fn place(workload: &DynamicObject, name: &str, assigned: &Value, lookups: &Lookups) -> Place {
    let mut place = Place {
        // As Kueue counts it (`totalRequestsFromAdmission` in its `pkg/workload/workload.go`).
        count: read::<u32>(&assigned["count"]).min(asked(workload, name).saturating_sub(reclaimed(workload, name))),
        nodes: topology::nodes(&assigned["topologyAssignment"]),
        ..Place::default()
    };
    let given = read::<BTreeMap<String, String>>(&assigned["flavors"]);
    let given: BTreeSet<String> = given.into_values().collect();
    for flavor in given.iter().filter_map(|name| lookups.flavors.get(name)) {
        place.node_selector.extend(flavor.node_labels.clone());
        place.tolerations.extend(flavor.tolerations.clone());
    }
    // What admission checks ask for, such as the annotation of a provisioning request.
    let checks = list(&workload.data["status"]["admissionChecks"]);
    let updates = checks.flat_map(|check| list(&check["podSetUpdates"]));
    for update in updates.filter(|update| update["name"] == name) {
        place
            .node_selector
            .extend(read::<BTreeMap<_, _>>(&update["nodeSelector"]));
        place.tolerations.extend(read::<Vec<Value>>(&update["tolerations"]));
        place.labels.extend(read::<BTreeMap<_, _>>(&update["labels"]));
        place.annotations.extend(read::<BTreeMap<_, _>>(&update["annotations"]));
    }
    place
}

/// Pods of a podSet that the Workload asks for. It may have been admitted with fewer.
pub fn asked(workload: &DynamicObject, name: &str) -> u32 {
    let mut all = list(&workload.data["spec"]["podSets"]);
    all.find(|set| set["name"] == name).map_or(0, |set| read(&set["count"]))
}

/// Pods of a podSet whose quota is not needed, of those that it asks for: a podSet that was admitted with fewer gives quota back only
/// with more of them than it was denied.
pub fn reclaimed(workload: &DynamicObject, name: &str) -> u32 {
    let mut all = list(&workload.data["status"]["reclaimablePods"]);
    all.find(|entry| entry["name"] == name)
        .map_or(0, |entry| read(&entry["count"]))
}

/// What was assigned to each podSet.
pub fn assignments(workload: &DynamicObject) -> impl Iterator<Item = &Value> {
    list(&workload.data["status"]["admission"]["podSetAssignments"])
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// A part of an object; its default where it is absent.
fn read<T: DeserializeOwned + Default>(value: &Value) -> T {
    T::deserialize(value).unwrap_or_default()
}
