//! The Workload: what the job asks for, one podSet per role.

use kube::ResourceExt;
use kube::api::DynamicObject;
use ppo_crds::spec::Role;
use serde_json::{Value, json};

use super::conditions::{QUOTA_RESERVED, holds};
use super::lookups::Priority;
use crate::gang::members;
use crate::job::{Job, RolePods};
use crate::lifecycle::decision::Intent;
use crate::plan::action::Action;
use crate::plan::object::metadata;
use crate::plan::shape::{role_template, shape};
use crate::settings::PodSettings;
use crate::snapshot::Snapshot;
use crate::world::{Children, Kind};

/// The job's generation that a Workload says. Kueue and the API server rewrite parts of what is sent (quantities, podSets
/// that may not shrink), so that the two cannot be compared field by field.
const GENERATION: &str = "ppojob.dev/generation";

/// On a Workload that is inactive because the job is suspended; one that somebody else made inactive is left so.
const SUSPENDED: &str = "ppojob.dev/suspended";

/// The job's Workload as last observed.
pub fn observed<'a>(job: &Job, children: &'a Children) -> Option<&'a DynamicObject> {
    let key = (Kind::KueueWorkload, members::name(job));
    children.objects.get(&key).map(AsRef::as_ref)
}

/// Whether somebody else made it inactive: a person, or Kueue, which then admits it no more.
pub fn is_deactivated(observed: &DynamicObject) -> bool {
    observed.data["spec"]["active"] == false && !observed.annotations().contains_key(SUSPENDED)
}

/// Whether it is missing or says what the job said once. While it holds quota it cannot change: Kueue refuses that.
pub fn is_due(job: &Job, observed: Option<&DynamicObject>) -> bool {
    observed.is_none_or(|observed| {
        let same = observed.annotations().get(GENERATION) == Some(&job.generation.to_string());
        !same && !holds(observed, QUOTA_RESERVED)
    })
}

/// What brings the Workload to what it should be.
pub fn repair(job: &Job, intent: &Intent, seen: &Snapshot, settings: &PodSettings) -> Vec<Action> {
    let observed = observed(job, &seen.children);
    let suspend = *intent == Intent::Suspend;
    let mut actions = Vec::new();
    let priority = seen.lookups.priority.as_ref();
    // A suspended job queues when it is resumed.
    if let Some(Priority::Of(value, class)) = priority
        && (observed.is_some() || !suspend)
        && !job.spec.scheduling.queue.is_empty()
    {
        let workload = desired(job, *value, class.as_ref(), settings);
        actions.push(Action::Apply(Kind::KueueWorkload, Box::new(workload)));
    }
    let marked = observed.map(|observed| observed.annotations().contains_key(SUSPENDED));
    if marked.is_some_and(|marked| marked != suspend) {
        let mark = if suspend { json!("true") } else { Value::Null };
        let patch = json!({"metadata": {"annotations": {SUSPENDED: mark}}, "spec": {"active": !suspend}});
        actions.push(Action::Merge(Kind::KueueWorkload, members::name(job), patch));
    }
    actions
}

fn desired(job: &Job, priority: i32, class: Option<&Value>, settings: &PodSettings) -> DynamicObject {
    let sets: Vec<Value> = job.roles.iter().map(|role| pod_set(job, *role, settings)).collect();
    let mut spec = json!({"queueName": job.spec.scheduling.queue, "priority": priority, "podSets": sets});
    if let Some(class) = class {
        spec["priorityClassRef"] = class.clone();
    }
    let mut workload = DynamicObject::new("", &Kind::KueueWorkload.resource()).data(json!({"spec": spec}));
    workload.metadata = metadata(job, &members::name(job));
    workload
        .annotations_mut()
        .insert(GENERATION.into(), job.generation.to_string());
    workload
}

fn pod_set(job: &Job, role: RolePods, settings: &PodSettings) -> Value {
    let mut set = json!({
        "name": role.role.name(),
        "count": role.pods,
        "template": {"spec": shape(job, role, settings)},
    });
    // Kueue refuses a Workload with two of them; only engines can be fewer.
    if role.role == Role::Rollout && role.floor < role.pods {
        set["minCount"] = json!(role.floor);
    }
    if let Some(topology) = topology(job, role.role, settings) {
        set["topologyRequest"] = topology;
    }
    set
}

/// Where pods of a role are to lie close together, by the annotations that Kueue reads on the pod templates of jobs
/// (`pkg/controller/jobframework/tas.go`).
fn topology(job: &Job, role: Role, settings: &PodSettings) -> Option<Value> {
    let annotations = role_template(job, role, settings).metadata?.annotations?;
    let read = |word: &str| annotations.get(&format!("kueue.x-k8s.io/podset-{word}"));
    let mut request = match (
        read("required-topology"),
        read("preferred-topology"),
        read("unconstrained-topology"),
    ) {
        (Some(level), ..) => json!({"required": level}),
        (None, Some(level), _) => json!({"preferred": level}),
        (None, None, Some(word)) => json!({"unconstrained": word == "true"}),
        (None, None, None) => json!({}),
    };
    if let (Some(level), Some(size)) = (read("slice-required-topology"), read("slice-size")) {
        request["podSetSliceRequiredTopology"] = json!(level);
        // What is no number goes as it is, for the API server to name.
        request["podSetSliceSize"] = size.parse::<u32>().map_or_else(|_| json!(size), |size| json!(size));
    }
    let has_level = request.get("required").or(request.get("preferred")).is_some();
    if let Some(group) = read("group-name").filter(|_| has_level) {
        request["podSetGroupName"] = json!(group);
    }
    let says_something = request.as_object().is_some_and(|request| !request.is_empty());
    says_something.then_some(request)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smallest_job::smallest_job;

    /// The topology that engines of a template with these annotations ask for.
    fn asked(annotations: &Value) -> Option<Value> {
        let job = smallest_job(&json!({
            "roles": {"rollout": {"template": {"metadata": {"annotations": annotations}}}},
            "scheduling": {"gang": "kueue", "queue": "rl"},
        }));
        topology(&job, Role::Rollout, &PodSettings::default())
    }

    #[test]
    fn slices_and_groups_of_a_topology_are_asked_for_as_kueue_asks_for_a_jobs() {
        assert_eq!(
            asked(
                &json!({"kueue.x-k8s.io/podset-preferred-topology": "block", "kueue.x-k8s.io/podset-group-name": "all"})
            ),
            Some(json!({"preferred": "block", "podSetGroupName": "all"}))
        );
        let slices = json!({
            "kueue.x-k8s.io/podset-slice-required-topology": "rack", "kueue.x-k8s.io/podset-slice-size": "2",
            "kueue.x-k8s.io/podset-group-name": "all",
        });
        let expected = json!({"podSetSliceRequiredTopology": "rack", "podSetSliceSize": 2});
        assert_eq!(asked(&slices), Some(expected), "a group is one of a level");
        assert_eq!(asked(&json!({"example.org/team": "rl"})), None);
    }
}
