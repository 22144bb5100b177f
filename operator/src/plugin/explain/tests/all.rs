//! What every finding has: its place among others, and commands to copy.

use super::*;

#[test]
fn commands_name_the_job_the_pod_and_its_workload() {
    let fix = |evidence: &Evidence, command: &str| {
        let fix = first(evidence).fix;
        assert!(fix.contains(&format!("`{command}`")), "{fix}");
    };
    let mut failed = job("Failed");
    failed["status"]["conditions"] = json!([{"type": "Failed", "status": "True", "reason": "NotRunningInTime",
        "message": "not all roles were ready", "lastTransitionTime": NOW}]);
    fix(&evidence(failed), "kubectl ppo plan rloo");
    let status = json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no"}]});
    let mut waiting = evidence(job("Scheduling"));
    waiting.pods = pods(&json!({"containers": []}), &status);
    fix(&waiting, "kubectl ppo plan rloo");
    let unknown = json!({"waiting": {"reason": "StartError", "message": "no"}});
    fix(
        &actor(container(unknown, json!({}))),
        "kubectl describe pod rloo-actor-0",
    );
    let mut elsewhere = job("Running");
    elsewhere["spec"]["runPolicy"] = json!({"managedBy": "kueue.x-k8s.io/multikueue"});
    let mut elsewhere = evidence(elsewhere);
    fix(&elsewhere, "kubectl get workloads.kueue.x-k8s.io");
    elsewhere.gang = vec![object(
        json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": {"name": "rloo-1"}}),
    )];
    fix(&elsewhere, "kubectl describe workloads.kueue.x-k8s.io rloo-1");
}

#[test]
fn findings_that_hold_the_job_up_come_first_and_in_the_order_of_causes() {
    let mut evidence = actor(container(
        json!({"waiting": {"reason": "ErrImagePull", "message": "unauthorized"}}),
        json!({}),
    ));
    evidence.pods[0].metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T02:50:00Z")).unwrap();
    let again = container(json!({"running": {}}), json!({"terminated": {"exitCode": 1}}));
    let mut status = ready();
    status["containerStatuses"] = again["containerStatuses"].clone();
    evidence.pods[1] = pod("rollout", 1, on_node(), status);
    let causes: Vec<_> = explain(&evidence, now())
        .iter()
        .map(|finding| (finding.cause, finding.blocks))
        .collect();
    assert_eq!(
        causes,
        [
            (Cause::Terminating, true),
            (Cause::Image, true),
            (Cause::Crashed, false)
        ]
    );
}
