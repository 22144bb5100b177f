//! Volcano: one PodGroup with a floor per role (`minTaskMember`). Seen with Volcano 1.14.1.

use std::collections::BTreeMap;

use kube::ResourceExt;
use kube::api::DynamicObject;
use ppo_crds::spec::Role;
use serde_json::json;

use super::members;
use super::upkeep::Upkeep;
use crate::job::Job;
use crate::lifecycle::decision::Intent;
use crate::plan::action::Action;
use crate::plan::object::metadata;
use crate::settings::PodSettings;
use crate::snapshot::Snapshot;
use crate::world::Kind;

const SCHEDULER: &str = "volcano";
const GROUP_ANNOTATION: &str = "scheduling.k8s.io/group-name";
const TASK_ANNOTATION: &str = "volcano.sh/task-spec";

/// The gang.
pub fn pod_group(job: &Job, settings: &PodSettings) -> DynamicObject {
    let floors: BTreeMap<&str, u32> = job.roles.iter().map(|role| (role.role.name(), role.floor)).collect();
    let scheduling = &job.spec.scheduling;
    let mut spec = json!({
        // Below the sum of the floors Volcano ignores minTaskMember.
        "minMember": members::floor(job),
        "minTaskMember": floors,
        "minResources": members::min_resources(job, settings),
        "queue": if scheduling.queue.is_empty() { "default" } else { &scheduling.queue },
    });
    if !scheduling.priority_class_name.is_empty() {
        spec["priorityClassName"] = json!(scheduling.priority_class_name);
    }
    let mut group = DynamicObject::new("", &Kind::VolcanoPodGroup.resource()).data(json!({"spec": spec}));
    group.metadata = metadata(job, &members::name(job));
    group
}

/// Takes the gang of a job that wants no pods away, once they are gone. To Volcano a group without pods still waits for its
/// `minResources` (plugin overcommit, `inqueueResource`): the next job would never be let into the queue.
pub fn upkeep(job: &Job, intent: &Intent, seen: &Snapshot) -> Upkeep {
    let group = seen.object(Kind::VolcanoPodGroup, &members::name(job));
    let wants_pods = matches!(intent, Intent::Run | Intent::Queue(_));
    let (false, false, Some(group)) = (wants_pods, seen.pods(job).any(|pod| pod.alive), group) else {
        return Upkeep::default();
    };
    Upkeep {
        actions: Action::removal(Kind::VolcanoPodGroup, group).into_iter().collect(),
        wake: None,
    }
}

/// Makes a pod a member of its role.
pub fn join(pod: &mut DynamicObject, job: &Job, role: Role) {
    let annotations = pod.annotations_mut();
    annotations.insert(GROUP_ANNOTATION.into(), members::name(job));
    annotations.insert(TASK_ANNOTATION.into(), role.name().into());
    pod.data["spec"]["schedulerName"] = json!(SCHEDULER);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Timestamp;

    use super::*;
    use crate::gang::Gang;
    use crate::smallest_job::smallest_job;
    use crate::world::Children;

    #[test]
    fn the_gang_of_a_job_that_wants_no_pods_is_taken_away_and_once() {
        let job = smallest_job(&json!({}));
        let deletions = |intent: Intent, going: bool| {
            let mut group = pod_group(&job, &PodSettings::default());
            group.metadata.deletion_timestamp = going.then_some(Time(Timestamp::UNIX_EPOCH));
            let mut children = Children::default();
            let key = (Kind::VolcanoPodGroup, members::name(&job));
            children.objects.insert(key, Arc::new(group));
            let seen = Snapshot::plain(children, Gang::Volcano, Timestamp::UNIX_EPOCH);
            upkeep(&job, &intent, &seen).actions.len()
        };
        assert_eq!(deletions(Intent::Run, false), 0);
        assert_eq!(deletions(Intent::Suspend, false), 1);
        assert_eq!(deletions(Intent::Suspend, true), 0, "it goes already");
    }
}
