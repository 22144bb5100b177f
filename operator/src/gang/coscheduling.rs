//! The coscheduling plugin of scheduler-plugins: one PodGroup for all roles. Seen with 0.34.7.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use kube::api::DynamicObject;
use serde_json::json;

use super::members;
use super::upkeep::Upkeep;
use crate::job::Job;
use crate::lifecycle::decision::Intent;
use crate::plan::action::Action;
use crate::plan::object::metadata;
use crate::settings::PodSettings;
use crate::snapshot::Snapshot;
use crate::world::{Kind, Life};

const GROUP_LABEL: &str = "scheduling.x-k8s.io/pod-group";
const TOUCHED: &str = "ppojob.dev/touched";

/// Between two touches of a gang that waits. The plugin does not hear of new nodes by itself for 5 minutes.
const TOUCH_SECONDS: i64 = 20;

/// Seconds that placed members wait for the others before they give their nodes back.
const SCHEDULE_TIMEOUT_SECONDS: u32 = 60;

/// The gang.
pub fn pod_group(job: &Job, settings: &PodSettings) -> DynamicObject {
    let spec = json!({
        "minMember": members::floor(job),
        // Without it the plugin tries thousands of times a second while a part of the gang would fit.
        "minResources": members::min_resources(job, settings),
        "scheduleTimeoutSeconds": SCHEDULE_TIMEOUT_SECONDS,
    });
    let mut group = DynamicObject::new("", &Kind::CoschedulingPodGroup.resource()).data(json!({"spec": spec}));
    group.metadata = metadata(job, &members::name(job));
    group
}

/// Makes a pod a member, or leaves it to the same scheduler alone: the one that its template names, else the administrator's.
pub fn join(pod: &mut DynamicObject, job: &Job, member: bool, settings: &PodSettings) {
    if member {
        pod.labels_mut().insert(GROUP_LABEL.into(), members::name(job));
    }
    let scheduler = &mut pod.data["spec"]["schedulerName"];
    if scheduler.as_str().is_none_or(str::is_empty) {
        *scheduler = json!(settings.coscheduling_scheduler);
    }
}

/// Touches the PodGroup of a gang that waits, so that the plugin tries again.
pub fn upkeep(job: &Job, intent: &Intent, seen: &Snapshot, now: Timestamp) -> Upkeep {
    let waits = seen.pods(job).any(|pod| {
        let member = job.role(pod.role).is_some_and(|role| pod.index < role.floor);
        member && pod.life == Life::Unscheduled && pod.deleting_since.is_none()
    });
    let name = members::name(job);
    let group = seen.object(Kind::CoschedulingPodGroup, &name);
    let (Intent::Run, true, Some(group)) = (intent, waits, group) else {
        return Upkeep::default();
    };
    let touched = group
        .annotations()
        .get(TOUCHED)
        .and_then(|text| text.parse::<Timestamp>().ok());
    let made = group.creation_timestamp().map(|time| time.0);
    let due = touched
        .or(made)
        .and_then(|last| last.checked_add(SignedDuration::from_secs(TOUCH_SECONDS)).ok());
    if let Some(due) = due.filter(|due| *due > now) {
        return Upkeep {
            actions: Vec::new(),
            wake: Some(due),
        };
    }
    let touch = json!({"metadata": {"annotations": {TOUCHED: now.to_string()}}});
    Upkeep {
        actions: vec![Action::Merge(Kind::CoschedulingPodGroup, name, touch)],
        wake: now.checked_add(SignedDuration::from_secs(TOUCH_SECONDS)).ok(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ppo_crds::status::PpoJobStatus;
    use serde_json::Value;

    use super::*;
    use crate::gang::Gang;
    use crate::plan::plan;
    use crate::smallest_job::smallest_job;
    use crate::world::Children;

    /// The scheduler that each pod asks for of a job of one actor, whose template has this spec, and one engine.
    fn asked(actor: &Value, settings: &PodSettings) -> BTreeMap<String, Value> {
        let job = smallest_job(&json!({"roles": {"actor": {"template": {"spec": actor}}}}));
        let now = Timestamp::UNIX_EPOCH;
        let seen = Snapshot::plain(Children::default(), Gang::Coscheduling, now);
        let made = plan(&job, &seen, &PpoJobStatus::default(), settings, now).waves;
        let pods = made.into_iter().flatten().filter_map(|action| match action {
            Action::Create(Kind::Pod, pod) => Some((pod.name_any(), pod.data["spec"]["schedulerName"].clone())),
            _ => None,
        });
        pods.collect()
    }

    #[test]
    fn pods_ask_for_the_scheduler_of_their_template_and_else_for_the_administrators() {
        let pods = |actor: &str, engine: &str| {
            BTreeMap::from([
                ("a-actor-0".to_owned(), json!(actor)),
                ("a-rollout-0".to_owned(), json!(engine)),
            ])
        };
        let plain = PodSettings::default();
        let chosen = PodSettings {
            coscheduling_scheduler: "gangs".into(),
            ..PodSettings::default()
        };
        let standard = "scheduler-plugins-scheduler";
        assert_eq!(asked(&json!({}), &plain), pods(standard, standard));
        assert_eq!(asked(&json!({}), &chosen), pods("gangs", "gangs"));
        let own = json!({"schedulerName": "default-scheduler", "containers": []});
        assert_eq!(asked(&own, &chosen), pods("default-scheduler", "gangs"));
        let empty = json!({"schedulerName": "", "containers": []});
        assert_eq!(asked(&empty, &chosen), pods("gangs", "gangs"));
    }
}
