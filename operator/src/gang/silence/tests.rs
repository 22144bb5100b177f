//! Which silences count, and which scheduler each is blamed on.

use std::sync::Arc;

use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::*;
use crate::gang::members;
use crate::smallest_job::smallest_job;
use crate::world::{Children, Kind, SeenPod};

const MADE: &str = "2026-01-01T00:00:00Z";

fn at(seconds: i64) -> Timestamp {
    let made: Timestamp = MADE.parse().unwrap();
    made.checked_add(SignedDuration::from_secs(seconds)).unwrap()
}

/// A pod that asks a scheduler of gangs for a node.
fn pod(name: &str, role: &str, made: Timestamp, condition: Value) -> Arc<PodView> {
    Arc::new(asking("gangs", name, role, made, &condition))
}

fn asking(scheduler: &str, name: &str, role: &str, made: Timestamp, condition: &Value) -> PodView {
    let pod = json!({
        "metadata": {
            "name": name, "creationTimestamp": made.to_string(),
            "labels": {"ppojob.dev/role": role, "ppojob.dev/index": "0"},
            "ownerReferences": [{"apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "name": "a", "uid": "12345678-9",
                "controller": true}],
        },
        "spec": {"schedulerName": scheduler}, "status": {"phase": "Pending", "conditions": condition},
    });
    PodView::of(&serde_json::from_value::<SeenPod>(pod).unwrap()).unwrap()
}

fn refused() -> Value {
    json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}])
}

fn seen(gang: Gang, pods: impl IntoIterator<Item = Arc<PodView>>) -> Snapshot {
    let pods = pods.into_iter().map(|pod| (pod.name.clone(), pod)).collect();
    let children = Children {
        pods,
        ..Children::default()
    };
    Snapshot::plain(children, gang, at(0))
}

fn said(job: &Job, seen: &Snapshot, now: Timestamp) -> Option<String> {
    Silence::of(job, seen)?.words(now)
}

#[test]
fn pods_without_a_word_are_a_silence_once_the_youngest_has_waited_long_enough() {
    let job = smallest_job(&json!({"scheduling": {"queue": "rl"}}));
    let pods = [
        pod("a-actor-0", "actor", at(0), json!([])),
        pod("a-rollout-0", "rollout", at(5), json!([])),
    ];
    let seen = seen(Gang::Volcano, pods);
    assert_eq!(said(&job, &seen, at(34)), None);
    assert_eq!(Silence::of(&job, &seen).unwrap().due(), Some(at(35)));
    let words = said(&job, &seen, at(35)).unwrap();
    for part in [
        "the scheduler gangs",
        "2 pods, a-actor-0 among",
        "volcano-system",
        "queue rl?",
    ] {
        assert!(words.contains(part), "{part:?} is not in {words}");
    }
    // Every look has the same words: they are written once.
    assert_eq!(said(&job, &seen, at(900)), Some(words));
}

#[test]
fn one_word_of_one_pod_breaks_the_silence() {
    let pods = [
        pod("a-actor-0", "actor", at(0), json!([])),
        pod("a-rollout-0", "rollout", at(0), refused()),
    ];
    for gang in [Gang::Volcano, Gang::Coscheduling, Gang::None] {
        assert_eq!(Silence::of(&smallest_job(&json!({})), &seen(gang, pods.clone())), None);
    }
}

#[test]
fn a_job_whose_pods_all_have_nodes_waits_for_no_scheduler() {
    let ready = json!([{"type": "PodScheduled", "status": "True"}]);
    let mut placed = pod("a-actor-0", "actor", at(0), ready).as_ref().clone();
    placed.life = Life::Starting;
    assert_eq!(
        Silence::of(&smallest_job(&json!({})), &seen(Gang::Volcano, [Arc::new(placed)])),
        None
    );
    assert_eq!(Silence::of(&smallest_job(&json!({})), &seen(Gang::Volcano, [])), None);
}

#[test]
fn the_scheduler_that_is_named_is_the_one_that_the_pods_ask_for() {
    let native = Gang::Native(Kind::NativePodGroupAlpha);
    let named = "roles.*.template";
    for (scheduler, gang, look) in [
        ("mine", native, named),
        ("default-scheduler", Gang::Kueue, "kube-system"),
        ("mine", Gang::Kueue, named),
        ("default-scheduler", Gang::Coscheduling, "its profile"),
        ("mine", Gang::Coscheduling, "its profile"),
        ("volcano", Gang::Volcano, "volcano-system"),
    ] {
        let pods = [Arc::new(asking(scheduler, "a-actor-0", "actor", at(0), &json!([])))];
        let words = said(&smallest_job(&json!({})), &seen(gang, pods), at(60)).unwrap();
        let name = format!("the scheduler {scheduler} has said nothing of pod a-actor-0");
        assert!(words.starts_with(&name), "{name:?} is not first in {words}");
        assert!(words.contains(look), "{look:?} is not in {words}");
    }
}

#[test]
fn a_workload_without_a_condition_is_kueues_silence_and_one_with_any_is_not() {
    let job = smallest_job(&json!({"scheduling": {"gang": "kueue", "queue": "rl"}}));
    let workload = |conditions: Value| {
        let mut workload = DynamicObject::new(&members::name(&job), &Kind::KueueWorkload.resource());
        workload.metadata.creation_timestamp = serde_json::from_value(json!(MADE)).unwrap();
        let mut seen = seen(Gang::Kueue, []);
        let key = (Kind::KueueWorkload, members::name(&job));
        let data = json!({"status": {"conditions": conditions}});
        seen.children.objects.insert(key, Arc::new(workload.data(data)));
        seen
    };
    assert_eq!(said(&job, &workload(json!([])), at(29)), None);
    let words = said(&job, &workload(json!([])), at(30)).unwrap();
    assert!(
        words.starts_with("Kueue has said nothing of Workload a-12345678"),
        "{words}"
    );
    let pending = json!([{"type": "QuotaReserved", "status": "False", "reason": "Pending"}]);
    assert_eq!(Silence::of(&job, &workload(pending)), None);
}

#[test]
fn a_webhook_that_does_not_answer_is_a_silence_with_the_api_servers_words() {
    let mut seen = seen(Gang::Kueue, []);
    seen.unapproved = Some(Unapproved {
        since: at(10),
        words: "applying KueueWorkload a: connection refused".into(),
    });
    assert_eq!(said(&smallest_job(&json!({})), &seen, at(39)), None);
    let words = said(&smallest_job(&json!({})), &seen, at(40)).unwrap();
    assert!(words.starts_with("Kueue's webhook does not answer"), "{words}");
    assert!(words.contains("connection refused"), "{words}");
}
