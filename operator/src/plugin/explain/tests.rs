//! Words of kube-scheduler, kubelet, Kueue, Volcano and coscheduling in the form their sources have;
//! `tests/tests/plugin.rs` has the real scheduler say its own.

mod all;
mod autoscaler;
mod containers;
mod deletion;
mod ends;
mod operator;
mod progress;
mod queue;
mod refusals;
mod scheduling;
mod spare;
mod taints;
mod terminating;

use k8s_openapi::api::core::v1::{Event, Pod};
use ppo_crds::PpoJob;
use serde_json::{Value, json};

use super::*;

const NOW: &str = "2026-01-01T03:00:00Z";
const GPUS: &str = "0/5 nodes are available: 5 Insufficient nvidia.com/gpu. preemption: 0/5 nodes are available: 5 No \
                    preemption victims found for incoming pod.";

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

/// A job that the operator has seen, of five pods: four of rollout and one actor.
fn job(phase: &str) -> Value {
    json!({
        "apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob",
        "metadata": {"name": "rloo", "namespace": "ml", "generation": 1, "creationTimestamp": "2026-01-01T02:58:00Z"},
        "spec": {"model": {"policy": {"path": "/m"}}, "prompts": {"source": {"path": "/p.jsonl"}},
                 "roles": {"reward": {"rules": [{"json": {}}]}, "rollout": {"replicas": 4}},
                 "algorithm": {"kl": {"coef": 0}}},
        "status": {"phase": phase, "observedGeneration": 1, "attempt": 1, "ready": "0/5",
                   "activeSince": "2026-01-01T02:58:00Z",
                   "roles": [{"name": "rollout", "desired": 4, "ready": 0}, {"name": "actor", "desired": 1, "ready": 0}]},
    })
}

fn evidence(job: Value) -> Evidence {
    Evidence::of(serde_json::from_value::<PpoJob>(job).unwrap())
}

fn pod(role: &str, index: u32, spec: Value, status: Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": format!("rloo-{role}-{index}"), "uid": format!("{role}{index}"),
                     "creationTimestamp": "2026-01-01T02:58:00Z",
                     "labels": {"ppojob.dev/job": "rloo", "ppojob.dev/role": role, "ppojob.dev/index": index.to_string()}},
        "spec": spec, "status": status,
    }))
    .unwrap()
}

/// The five pods of the job, all in one state.
fn pods(spec: &Value, status: &Value) -> Vec<Pod> {
    let rollout = (0..4).map(|index| pod("rollout", index, spec.clone(), status.clone()));
    rollout.chain([pod("actor", 0, spec.clone(), status.clone())]).collect()
}

fn on_node() -> Value {
    json!({"nodeName": "gpu-7", "containers": [{"name": "worker"}]})
}

fn ready() -> Value {
    json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]})
}

fn container(state: Value, last: Value) -> Value {
    json!({"phase": "Running", "startTime": "2026-01-01T02:58:00Z", "containerStatuses": [{
        "name": "worker", "image": "ghcr.io/a/worker:9", "imageID": "", "ready": false, "restartCount": 4,
        "state": state, "lastState": last}]})
}

fn event(kind: &str, name: &str, reason: &str, message: &str) -> Event {
    serde_json::from_value(json!({
        "metadata": {}, "involvedObject": {"kind": kind, "name": name}, "type": "Warning", "reason": reason,
        "message": message, "lastTimestamp": "2026-01-01T02:59:00Z"
    }))
    .unwrap()
}

fn object(value: Value) -> kube::api::DynamicObject {
    serde_json::from_value(value).unwrap()
}

fn first(evidence: &Evidence) -> Finding {
    explain(evidence, now()).into_iter().next().unwrap()
}

#[track_caller]
fn says(finding: &Finding, cause: Cause, parts: &[&str]) {
    let text = format!("{} | {}", finding.what, finding.fix);
    assert_eq!((finding.cause, finding.blocks), (cause, true), "{text}");
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

/// One actor pod on a node in this state; the engines are ready.
fn actor(status: Value) -> Evidence {
    let mut evidence = evidence(job("Initializing"));
    evidence.pods = pods(&on_node(), &ready());
    evidence.pods[4] = pod("actor", 0, on_node(), status);
    evidence
}
