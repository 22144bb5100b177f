//! A job that was deleted and is still there.

use super::*;

fn deleted(finalizers: Value) -> Evidence {
    let mut job = job("Running");
    job["metadata"]["deletionTimestamp"] = json!("2026-01-01T02:50:00Z");
    job["metadata"]["finalizers"] = finalizers;
    evidence(job)
}

#[test]
fn a_deleted_job_waits_for_its_pods_and_not_for_quota_or_nodes() {
    let mut evidence = deleted(json!(["foregroundDeletion"]));
    evidence.pods = pods(&json!({"containers": []}), &json!({"phase": "Pending"}));
    let findings = explain(&evidence, now());
    says(
        &findings[0],
        Cause::Deleted,
        &["deleted 10m ago", "foregroundDeletion", "its 5 pods are gone"],
    );
    assert_eq!(findings.len(), 1, "{findings:?}");
    // One of them hangs: that is what there is to do.
    evidence.pods[0].metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T02:51:00Z")).unwrap();
    let causes: Vec<Cause> = explain(&evidence, now()).iter().map(|finding| finding.cause).collect();
    assert_eq!(causes, [Cause::Deleted, Cause::Terminating]);
}

#[test]
fn a_finalizer_of_others_is_named_with_who_must_take_it_away() {
    says(
        &first(&deleted(json!(["example.com/audit"]))),
        Cause::Deleted,
        &["example.com/audit", "is it running?"],
    );
}
