//! Whether an operator looks at the job, and takes it.

use super::*;

#[test]
fn a_job_of_another_controller_is_nothing_but_that() {
    let mut elsewhere = job("Running");
    elsewhere["spec"]["runPolicy"] = json!({"managedBy": "kueue.x-k8s.io/multikueue"});
    elsewhere["status"] = json!({});
    let findings = explain(&evidence(elsewhere), now());
    assert_eq!(findings.len(), 1);
    says(
        &findings[0],
        Cause::ManagedElsewhere,
        &["kueue.x-k8s.io/multikueue", "worker cluster"],
    );
}

#[test]
fn a_job_that_no_operator_looks_at_says_what_became_of_the_operator() {
    let mut unseen = job("Pending");
    unseen["status"] = Value::Null;
    let mut evidence = evidence(unseen.clone());
    says(
        &first(&evidence),
        Cause::OperatorAbsent,
        &[
            "in the 2m since it was created",
            "No Lease",
            "app.kubernetes.io/name=ppo-operator",
        ],
    );
    evidence.leases = serde_json::from_value(
        json!([{"metadata": {"namespace": "ppo-system"}, "spec": {"holderIdentity": "ppo-operator-1",
        "leaseDurationSeconds": 15, "renewTime": "2026-01-01T02:50:00.000000Z"}}]),
    )
    .unwrap();
    says(
        &first(&evidence),
        Cause::OperatorAbsent,
        &["ppo-operator-1 has not renewed its Lease in namespace ppo-system for 10m"],
    );
    unseen["metadata"]["creationTimestamp"] = json!("2026-01-01T02:59:55Z");
    evidence.job = serde_json::from_value(unseen).unwrap();
    evidence.leases = Vec::new();
    assert_eq!(explain(&evidence, now()), [], "five seconds are not long");
}

#[test]
fn a_job_with_objects_of_its_own_has_an_operator_though_its_first_status_is_late() {
    let mut unseen = job("Pending");
    unseen["status"] = Value::Null;
    unseen["metadata"]["uid"] = json!("1");
    let causes = |owner: &str| {
        let mut evidence = evidence(unseen.clone());
        evidence.pods = pods(&on_node(), &ready());
        let owner = json!([{"apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "name": "rloo", "uid": owner, "controller": true}]);
        evidence.pods[0].metadata.owner_references = Some(serde_json::from_value(owner).unwrap());
        let findings = explain(&evidence, now());
        (
            findings.iter().any(|finding| finding.cause == Cause::OperatorAbsent),
            healthy(&evidence, now()),
        )
    };
    let (is_absent, healthy) = causes("1");
    assert!(!is_absent && healthy.contains("has begun with it"), "{healthy}");
    // Those of an earlier job of the name prove nothing.
    assert!(causes("0").0);
}

#[test]
fn an_old_lease_holds_no_job_up_whose_every_change_was_seen() {
    let mut evidence = evidence(job("Running"));
    evidence.leases = serde_json::from_value(
        json!([{"metadata": {"namespace": "ppo-system"}, "spec": {"holderIdentity": "ppo-operator-1",
        "leaseDurationSeconds": 15, "renewTime": "2026-01-01T02:50:00.000000Z"}}]),
    )
    .unwrap();
    let findings = explain(&evidence, now());
    let note = findings
        .iter()
        .find(|finding| finding.cause == Cause::OperatorAbsent)
        .unwrap();
    assert!(!note.blocks, "{note:?}");
    assert!(
        note.what
            .contains("ppo-operator-1 has not renewed its Lease in namespace ppo-system for 10m"),
        "{note:?}"
    );
    assert!(
        note.fix.contains("--leader-election=false, delete the Lease"),
        "{note:?}"
    );
}

#[test]
fn a_change_that_the_operator_has_not_seen_counts_from_the_change() {
    let mut stale = job("Running");
    stale["metadata"]["generation"] = json!(2);
    stale["metadata"]["managedFields"] = json!([{"manager": "kubectl", "time": "2026-01-01T02:55:00Z"},
        {"manager": "ppo-operator", "subresource": "status", "time": NOW}]);
    says(
        &first(&evidence(stale)),
        Cause::OperatorAbsent,
        &["the change of the job 5m ago"],
    );
}

#[test]
fn a_job_that_goes_on_under_a_newer_rule_is_not_held_up_by_it() {
    let mut job = job("Running");
    job["status"]["conditions"] = json!([{"type": "Accepted", "status": "False", "reason": "NoLongerValid",
        "message": "spec.batch: too small", "lastTransitionTime": "2026-01-01T02:59:00Z"}]);
    let mut evidence = evidence(job);
    evidence.pods = pods(&on_node(), &ready());
    let found = first(&evidence);
    assert!(!found.blocks && found.what.contains("too small"), "{found:?}");
}
