//! Pods that are ending: while one is there nothing else can have its name.

use std::sync::Arc;

use k8s_openapi::jiff::SignedDuration;
use ppo_crds::pod::pod_name;

use crate::job::Job;
use crate::snapshot::Snapshot;
use crate::world::PodView;

/// Of the pods that have names which the job needs, the one that may take longest to go, in words: one of its own, or of an earlier job of
/// its name, whose pods outlive it by their grace.
pub fn obstacle(job: &Job, seen: &Snapshot) -> Option<String> {
    let has_its_name =
        |pod: &&PodView| seen.wants(job, pod) && pod.name == pod_name(&job.key.name, pod.role, pod.index);
    let of_earlier = |pod: &PodView| pod.owner.as_ref().is_some_and(|owner| *owner != job.uid);
    let named = || seen.children.pods.values().map(Arc::as_ref).filter(has_its_name);
    if let Some(last) = last(named()) {
        let whose = match of_earlier(last) {
            true => "is of an earlier job of this name, and this one's",
            false => "and its successor",
        };
        return Some(format!("{}, {whose} needs its name", words(last)));
    }
    let left = named().find(|pod| of_earlier(pod))?;
    let name = &left.name;
    Some(format!(
        "{name} is of an earlier job of this name, and Kubernetes' garbage collector has not deleted it yet"
    ))
}

/// Of these pods the one that may take longest to end, in words; None where none is ending.
pub fn slowest<'a>(pods: impl Iterator<Item = &'a PodView>) -> Option<String> {
    last(pods).map(words)
}

fn last<'a>(pods: impl Iterator<Item = &'a PodView>) -> Option<&'a PodView> {
    let ending = pods.filter(|pod| pod.deleting_since.is_some());
    ending.max_by_key(|pod| (pod.deleting_since, &pod.name))
}

/// In times of the clock: what was said stays true, and is not written again every second.
fn words(pod: &PodView) -> String {
    let on = pod
        .node
        .as_ref()
        .map_or_else(String::new, |node| format!(" on node {node}"));
    let deadline = pod.deleting_since;
    let grace = pod.grace_seconds.map(SignedDuration::from_secs);
    let began = deadline.zip(grace).and_then(|(end, grace)| end.checked_sub(grace).ok());
    let since = began.map_or_else(String::new, |began| format!(" since {began}"));
    let until = deadline.map_or_else(String::new, |end| format!(", is to be gone by {end}"));
    let held = match pod.finalizers.as_slice() {
        [] => String::new(),
        held => format!(", is held by its finalizers ({})", held.join(", ")),
    };
    format!("{} is ending{on}{since}{until}{held}", pod.name)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::jiff::Timestamp;
    use serde_json::{Value, json};

    use super::*;
    use crate::gang::Gang;
    use crate::lifecycle::obstacle::first_obstacle;
    use crate::smallest_job::smallest_job;
    use crate::world::{Children, Life, SeenPod};

    /// A ready pod that is ending since 8:00:00, with a minute's grace; of `more` in its metadata.
    fn pod(role: &str, index: u32, more: &Value) -> PodView {
        let mut pod = json!({
            "metadata": {
                "name": format!("a-{role}-{index}"),
                "labels": {"ppojob.dev/role": role, "ppojob.dev/index": index.to_string()},
                "ownerReferences": [{"apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "name": "a", "uid": "12345678-9",
                    "controller": true}],
                "deletionTimestamp": "2026-01-01T08:01:00Z", "deletionGracePeriodSeconds": 60,
            },
            "spec": {"nodeName": "one"},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        });
        for (field, value) in more.as_object().unwrap() {
            pod["metadata"][field] = value.clone();
        }
        PodView::of(&serde_json::from_value::<SeenPod>(pod).unwrap()).unwrap()
    }

    fn seen(pods: impl IntoIterator<Item = PodView>) -> Snapshot {
        let mut children = Children::default();
        children
            .pods
            .extend(pods.into_iter().map(|pod| (pod.name.clone(), Arc::new(pod))));
        Snapshot::plain(children, Gang::None, Timestamp::UNIX_EPOCH)
    }

    fn said(pods: impl IntoIterator<Item = PodView>) -> Option<String> {
        first_obstacle(&smallest_job(&json!({})), &seen(pods))
    }

    #[test]
    fn a_pod_that_is_ending_is_why_its_successor_is_missing_since_when_and_until_when() {
        assert_eq!(
            said([pod("actor", 0, &json!({}))]).unwrap(),
            "a-actor-0 is ending on node one since 2026-01-01T08:00:00Z, is to be gone by 2026-01-01T08:01:00Z, and its successor needs its name"
        );
        let held = said([pod("actor", 0, &json!({"finalizers": ["example.com/log"]}))]).unwrap();
        assert!(held.contains("held by its finalizers (example.com/log)"), "{held}");
    }

    #[test]
    fn of_several_the_one_that_may_take_longest_is_named_and_one_that_was_scaled_away_is_not() {
        let later = json!({"deletionTimestamp": "2026-01-01T08:09:00Z", "deletionGracePeriodSeconds": null});
        let several = said([pod("actor", 0, &json!({})), pod("rollout", 0, &later)]).unwrap();
        assert!(
            several.starts_with("a-rollout-0 is ending on node one, is to be gone by"),
            "{several}"
        );
        assert_eq!(said([pod("rollout", 7, &later)]), None);
    }

    #[test]
    fn a_job_that_is_made_again_at_once_waits_for_the_pods_of_the_one_before_and_says_so() {
        let earlier = |more: &Value| PodView {
            owner: Some("earlier".into()),
            ..pod("actor", 0, more)
        };
        let ending = said([earlier(&json!({}))]).unwrap();
        let end = "2026-01-01T08:01:00Z, is of an earlier job of this name, and this one's needs its name";
        assert!(ending.ends_with(end), "{ending}");
        let left = said([earlier(&json!({"deletionTimestamp": null}))]).unwrap();
        assert!(left.contains("garbage collector has not deleted it yet"), "{left}");
        let elsewhere = PodView {
            name: "b-actor-0".into(),
            ..earlier(&json!({}))
        };
        assert_eq!(said([elsewhere]), None, "its name is not needed");
    }

    #[test]
    fn what_another_pod_says_of_itself_comes_first_unless_it_only_starts() {
        let ending = || pod("actor", 0, &json!({}));
        let starting = |reason: &str| PodView {
            deleting_since: None,
            life: Life::Starting,
            reason: reason.into(),
            message: "no".into(),
            ..pod("rollout", 0, &json!({}))
        };
        let first = said([ending(), starting("ErrImagePull")]).unwrap();
        assert_eq!(first, "a-rollout-0 ErrImagePull: no");
        let first = said([ending(), starting("Starting")]).unwrap();
        assert!(first.starts_with("a-actor-0 is ending"), "{first}");
    }
}
