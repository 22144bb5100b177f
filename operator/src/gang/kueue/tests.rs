//! Which of the nodes that Kueue chose a pod goes to, and its priority class.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

use super::*;
use crate::gang::Gang;
use crate::smallest_job::smallest_job;
use crate::world::{Children, Kind, PodView, SeenPod};

/// A job of three engines.
fn job() -> Job {
    smallest_job(&json!({
        "batch": {"rolloutBatchSize": 12}, "roles": {"rollout": {"replicas": 3}},
        "scheduling": {"gang": "kueue", "queue": "rl"},
    }))
}

/// An engine that a queue sent to a node.
fn engine(index: u32, node: &str, ends: bool) -> Arc<PodView> {
    let pod = json!({
        "metadata": {
            "name": format!("a-rollout-{index}"),
            "deletionTimestamp": ends.then_some("2026-01-01T00:00:00Z"),
            "labels": {"ppojob.dev/role": "rollout", "ppojob.dev/index": index.to_string()},
            "annotations": {"ppojob.dev/attempt": "1"},
            "ownerReferences": [{"apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "name": "a", "uid": "12345678-9",
                "controller": true}],
        },
        "spec": {"nodeSelector": {HOSTNAME: node}},
        "status": {"phase": "Running"},
    });
    Arc::new(PodView::of(&serde_json::from_value::<SeenPod>(pod).unwrap()).unwrap())
}

/// The nodes of engines that come where those of `pods` are there and Kueue's assignment is `nodes`.
fn nodes_of<const N: usize>(nodes: &[&str], pods: &[Arc<PodView>], engines: [u32; N]) -> [Option<String>; N] {
    let mut children = Children::default();
    children
        .pods
        .extend(pods.iter().map(|pod| (pod.name.clone(), pod.clone())));
    let seen = Snapshot::plain(children, Gang::Kueue, Timestamp::UNIX_EPOCH);
    let node = |name: &&str| BTreeMap::from([(HOSTNAME.to_owned(), (*name).to_owned())]);
    let place = Place {
        nodes: nodes.iter().map(node).collect(),
        ..Place::default()
    };
    engines.map(|index| {
        let node = chosen(&place, &job(), Role::Rollout, index, &seen)?;
        node.get(HOSTNAME).cloned()
    })
}

fn named<const N: usize>(names: [&str; N]) -> [Option<String>; N] {
    names.map(|name| Some(name.to_owned()))
}

#[test]
fn pods_that_come_together_take_the_nodes_in_order() {
    let nodes = nodes_of(&["n1", "n1", "n2"], &[], [0, 1, 2]);
    assert_eq!(nodes, named(["n1", "n1", "n2"]));
}

#[test]
fn a_pod_that_comes_again_after_its_node_was_replaced_takes_the_new_one() {
    // It was on n2, and the others on n3 and n4: the list was n2, n3, n4.
    let others = [engine(1, "n3", false), engine(2, "n4", false)];
    assert_eq!(nodes_of(&["n3", "n4", "n5"], &others, [0]), named(["n5"]));
}

#[test]
fn a_pod_whose_node_is_lost_leaves_the_nodes_of_others_to_them() {
    // Its pod is still there when engine 1 comes again, which was on n3.
    let others = [engine(0, "n2", false), engine(2, "n4", false)];
    assert_eq!(nodes_of(&["n3", "n4", "n5"], &others, [1]), named(["n5"]));
    let others = [engine(1, "n5", false), engine(2, "n4", false)];
    assert_eq!(nodes_of(&["n3", "n4", "n5"], &others, [0]), named(["n3"]));
}

#[test]
fn a_pod_that_ends_holds_its_node_no_more() {
    let others = [engine(0, "n1", true), engine(1, "n2", false), engine(2, "n3", false)];
    assert_eq!(nodes_of(&["n1", "n2", "n3"], &others, [0]), named(["n1"]));
}

#[test]
fn racks_are_taken_by_index_as_no_pod_says_which_it_is_in() {
    let rack = |name: &str| BTreeMap::from([("rack".to_owned(), name.to_owned())]);
    let place = Place {
        nodes: ["r1", "r1", "r2"].map(rack).into(),
        ..Place::default()
    };
    let seen = Snapshot::plain(Children::default(), Gang::Kueue, Timestamp::UNIX_EPOCH);
    let chosen = chosen(&place, &job(), Role::Rollout, 2, &seen).unwrap();
    assert_eq!(chosen["rack"], "r2");
}

#[test]
fn a_class_of_kueues_alone_is_no_pods_and_the_class_of_a_template_stays_where_the_job_names_none() {
    let class_of_pod = |asked: &str| {
        let mut job = job();
        job.spec.scheduling.priority_class_name = asked.into();
        let class = json!({"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "default"});
        let workload = json!({"metadata": {"name": members::name(&job)}, "spec": {"priorityClassRef": class}});
        let workload: DynamicObject = serde_json::from_value(workload).unwrap();
        let mut children = Children::default();
        let place = (Kind::KueueWorkload, members::name(&job));
        children.objects.insert(place, Arc::new(workload));
        let seen = Snapshot::plain(children, Gang::Kueue, Timestamp::UNIX_EPOCH);
        let pod = json!({"metadata": {"name": "a-rollout-0"}, "spec": {"priorityClassName": "of-pods"}});
        let mut pod: DynamicObject = serde_json::from_value(pod).unwrap();
        join(&mut pod, &job, Role::Rollout, 0, &seen);
        pod.data["spec"]["priorityClassName"].clone()
    };
    assert_eq!(class_of_pod("default"), Value::Null);
    assert_eq!(class_of_pod(""), "of-pods");
}
