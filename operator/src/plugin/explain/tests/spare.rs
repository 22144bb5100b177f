//! Engines that a running job does without.

use super::*;

/// A job that runs with three of its four engines, of which it needs so many, and what is known of the fourth.
fn without_one(needed: u32, engine: Option<Pod>) -> Evidence {
    let mut running = job("Running");
    running["spec"]["roles"]["rollout"]["minReplicas"] = json!(needed);
    running["status"]["roles"] = json!([
        {"name": "rollout", "desired": 4, "ready": 3, "restarts": 1, "attempt": 2, "reason": "Error",
         "message": "rloo-rollout-1 ended with exit code 139."},
        {"name": "actor", "desired": 1, "ready": 1},
    ]);
    let mut evidence = evidence(running);
    evidence.pods = pods(&on_node(), &ready());
    match engine {
        Some(engine) => evidence.pods[1] = engine,
        None => {
            evidence.pods.remove(1);
        }
    }
    evidence
}

/// The fourth engine: without a node, without its image, gone, not ready for long, and of which the operator alone has words.
fn troubles() -> Vec<(Cause, Option<Pod>)> {
    let unscheduled = json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": GPUS}]});
    let image = json!({"waiting": {"reason": "ErrImagePull", "message": "ghcr.io/a/worker:9: not found"}});
    let late = json!({"running": {"startedAt": "2026-01-01T02:30:00Z"}});
    let engine = |spec: Value, status: Value| Some(pod("rollout", 1, spec, status));
    vec![
        (Cause::Unscheduled, engine(json!({"containers": []}), unscheduled)),
        (Cause::Image, engine(on_node(), container(image, json!({})))),
        (Cause::NotReady, engine(on_node(), container(late, json!({})))),
        (Cause::PodsMissing, None),
        (Cause::Role, engine(on_node(), json!({"phase": "Running"}))),
    ]
}

#[track_caller]
fn first_is(evidence: &Evidence, cause: Cause, blocks: bool) {
    let found = first(evidence);
    assert_eq!((found.cause, found.blocks), (cause, blocks), "{found:?}");
}

#[test]
fn an_engine_that_a_running_job_does_without_is_told_and_holds_nothing_up() {
    for (cause, engine) in troubles() {
        let evidence = without_one(3, engine);
        first_is(&evidence, cause, false);
        assert_eq!(explain(&evidence, now()).len(), 1);
    }
}

#[test]
fn an_engine_that_the_job_needs_or_has_never_run_with_holds_it_up() {
    for (cause, engine) in troubles() {
        first_is(&without_one(4, engine.clone()), cause, true);
        let mut restarting = without_one(3, engine);
        restarting.job.status.as_mut().unwrap().phase = Some(Phase::Restarting);
        // An operator that restarts pods makes those that are missing next.
        if cause != Cause::PodsMissing {
            first_is(&restarting, cause, true);
        }
    }
}

#[test]
fn another_role_that_is_not_ready_holds_the_job_up_beside_an_engine_that_is_not() {
    let unready = container(json!({"running": {"startedAt": "2026-01-01T02:30:00Z"}}), json!({}));
    let mut evidence = without_one(3, Some(pod("rollout", 1, on_node(), unready.clone())));
    evidence.pods[4] = pod("actor", 0, on_node(), unready);
    let found = explain(&evidence, now());
    let told: Vec<_> = found.iter().map(|it| (it.blocks, it.pods[0].as_str())).collect();
    assert_eq!(told, [(true, "rloo-actor-0"), (false, "rloo-rollout-1")], "{found:?}");
    evidence.pods.remove(1);
    first_is(&evidence, Cause::PodsMissing, true);
}

#[test]
fn a_run_that_hangs_is_held_up_however_many_engines_are_ready() {
    let mut hung = without_one(3, None);
    let stalled = json!([{"type": "Progressing", "status": "False", "reason": "Stalled",
        "message": "Stage rollout waits.", "lastTransitionTime": "2026-01-01T02:50:00Z"}]);
    hung.job.status.as_mut().unwrap().conditions = serde_json::from_value(stalled).unwrap();
    first_is(&hung, Cause::NoProgress, true);
}

#[test]
fn more_engines_than_the_actor_was_told_of_hold_nothing_up_before_its_next_start() {
    for (cause, engine) in troubles() {
        let mut raised = without_one(4, engine);
        let actor = raised.pods.last_mut().unwrap();
        kube::ResourceExt::annotations_mut(actor).insert("ppojob.dev/min-replicas".into(), "3".into());
        first_is(&raised, cause, false);
    }
}
