//! What happens to a PodGroup that cannot be changed when the job needs a different one.

use k8s_openapi::jiff::Timestamp;
use ppo_crds::status::PpoJobStatus;
use serde_json::Value;

use super::*;
use crate::gang::Gang;
use crate::plan::{Plan, plan};
use crate::smallest_job::smallest_job;
use crate::world::{Children, SeenPod};

const ALPHA: Kind = Kind::NativePodGroupAlpha;

/// One actor and so many engines, all of them needed.
fn job(engines: u32, suspend: bool) -> Job {
    smallest_job(&json!({
        "batch": {"rolloutBatchSize": 32}, "runPolicy": {"suspend": suspend},
        "roles": {"rollout": {"replicas": engines, "minReplicas": engines}},
    }))
}

/// A pod of the first attempt, on that node.
fn pod(role: &str, index: u32, node: Option<&str>) -> PodView {
    let pod = json!({
        "metadata": {
            "name": format!("a-{role}-{index}"),
            "labels": {"ppojob.dev/role": role, "ppojob.dev/index": index.to_string()},
            "annotations": {"ppojob.dev/attempt": "1"},
            "ownerReferences": [{"apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "name": "a", "uid": "12345678-9",
                "controller": true}],
        },
        "spec": {"nodeName": node},
        "status": {"phase": if node.is_some() { "Running" } else { "Pending" }},
    });
    PodView::of(&serde_json::from_value::<SeenPod>(pod).unwrap()).unwrap()
}

/// These pods, and the group of a job of so many engines.
fn seen(pods: Vec<PodView>, group: Option<u32>) -> Snapshot {
    let mut children = Children::default();
    children
        .pods
        .extend(pods.into_iter().map(|pod| (pod.name.clone(), Arc::new(pod))));
    if let Some(engines) = group {
        let job = job(engines, false);
        let key = (ALPHA, members::name(&job));
        let none = Snapshot::plain(Children::default(), Gang::Native(ALPHA), Timestamp::UNIX_EPOCH);
        children.objects.insert(key, Arc::new(pod_group(ALPHA, &job, &none)));
    }
    Snapshot::plain(children, Gang::Native(ALPHA), Timestamp::UNIX_EPOCH)
}

fn look(job: &Job, seen: &Snapshot, previous: &PpoJobStatus) -> Plan {
    plan(job, seen, previous, &Default::default(), Timestamp::UNIX_EPOCH)
}

/// Pods that are made, each with the group that it joins.
fn made(plan: &Plan) -> Vec<(String, Value)> {
    let made = plan.waves.iter().flatten().filter_map(|action| match action {
        Action::Create(Kind::Pod, pod) => Some((
            pod.metadata.name.clone()?,
            pod.data["spec"]["schedulingGroup"]["podGroupName"].clone(),
        )),
        _ => None,
    });
    made.collect()
}

fn deletes(plan: &Plan, kind: Kind) -> usize {
    let is_one = |action: &&Action| matches!(action, Action::Delete(target) if target.kind == kind);
    plan.waves.iter().flatten().filter(is_one).count()
}

/// The floor of a group that is made.
fn floor(plan: &Plan) -> Option<Value> {
    plan.waves.iter().flatten().find_map(|action| match action {
        Action::Create(ALPHA, group) => Some(group.data["spec"]["schedulingPolicy"]["gang"]["minCount"].clone()),
        _ => None,
    })
}

#[test]
fn pods_that_wait_in_a_group_for_more_than_the_job_needs_go_and_come_back_in_another() {
    let job = job(2, false);
    let waiting = ["actor", "rollout"].into_iter().map(|role| pod(role, 0, None));
    let first = look(&job, &seen(waiting.collect(), Some(4)), &PpoJobStatus::default());
    assert_eq!((first.status.attempt, first.status.restarts), (2, 0));
    assert_eq!(made(&first), []);

    let old = vec![pod("actor", 0, None), pod("rollout", 0, None)];
    let second = look(&job, &seen(old, Some(4)), &first.status);
    assert_eq!((second.status.attempt, deletes(&second, Kind::Pod)), (2, 2));
    assert_eq!((made(&second), deletes(&second, ALPHA)), (Vec::new(), 0));

    let third = look(&job, &seen(Vec::new(), Some(4)), &second.status);
    assert_eq!((made(&third), deletes(&third, ALPHA)), (Vec::new(), 1));

    let last = look(&job, &seen(Vec::new(), None), &third.status);
    assert_eq!((last.status.attempt, floor(&last)), (2, Some(json!(3))));
    assert_eq!(made(&last).len(), 3);
    assert!(made(&last).iter().all(|(_, group)| *group == members::name(&job)));
}

#[test]
fn a_pod_that_comes_back_to_a_gang_that_was_placed_for_more_is_placed_alone() {
    let pods = vec![pod("actor", 0, Some("one")), pod("rollout", 1, Some("two"))];
    let plan = look(&job(2, false), &seen(pods, Some(4)), &PpoJobStatus::default());
    assert_eq!((plan.status.attempt, deletes(&plan, ALPHA)), (1, 0));
    assert_eq!(made(&plan), [("a-rollout-0".to_string(), Value::Null)]);
}

#[test]
fn a_suspended_job_keeps_no_group_of_the_floor_that_it_had() {
    let plan = look(&job(4, true), &seen(Vec::new(), Some(4)), &PpoJobStatus::default());
    assert_eq!(deletes(&plan, ALPHA), 1);
    let plan = look(&job(4, true), &seen(Vec::new(), None), &PpoJobStatus::default());
    assert_eq!(floor(&plan), None);
}

/// Priority class of the group that a job of this class should have, where `group` is there.
fn class_of(class: &str, group: Option<Value>) -> Value {
    const BETA: Kind = Kind::NativePodGroupBeta;
    let mut job = job(2, false);
    job.spec.scheduling.priority_class_name = class.to_owned();
    let mut children = Children::default();
    if let Some(spec) = group {
        let name = members::name(&job);
        let group = DynamicObject::new(&name, &BETA.resource()).data(json!({"spec": spec}));
        children.objects.insert((BETA, name), Arc::new(group));
    }
    let seen = Snapshot::plain(children, Gang::Native(BETA), Timestamp::UNIX_EPOCH);
    pod_group(BETA, &job, &seen).data["spec"]["priorityClassName"].clone()
}

#[test]
fn a_group_has_the_priority_of_its_pods_and_keeps_the_one_that_it_was_made_with() {
    assert_eq!(class_of("high", None), json!("high"));
    assert_eq!(class_of("", None), Value::Null);
    assert_eq!(
        class_of("high", Some(json!({"priorityClassName": "low"}))),
        json!("low")
    );
    // One that an operator made who knew nothing of it.
    assert_eq!(class_of("high", Some(json!({}))), Value::Null);
}

#[test]
fn a_suspended_job_keeps_no_group_of_the_priority_that_it_had() {
    let kind = Kind::NativePodGroupBeta;
    let job = job(2, true);
    let mut children = Children::default();
    let name = members::name(&job);
    let group = DynamicObject::new(&name, &kind.resource());
    children.objects.insert((kind, name), Arc::new(group));
    let with = Snapshot::plain(children, Gang::Native(kind), Timestamp::UNIX_EPOCH);
    assert_eq!(deletes(&look(&job, &with, &PpoJobStatus::default()), kind), 1);

    let without = Snapshot::plain(Children::default(), Gang::Native(kind), Timestamp::UNIX_EPOCH);
    let plan = look(&job, &without, &PpoJobStatus::default());
    let makes = |action: &Action| matches!(action, Action::Create(made, _) if *made == kind);
    assert!(!plan.waves.iter().flatten().any(makes));
}
