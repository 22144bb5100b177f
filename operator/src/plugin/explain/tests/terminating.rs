//! Pods that are ending.

use super::*;

#[test]
fn a_pod_on_a_lost_node_comes_before_what_it_brings_about() {
    let mut evidence = actor(ready());
    evidence.pods[4].metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T02:50:00Z")).unwrap();
    let findings = explain(&evidence, now());
    assert_eq!(findings.len(), 1, "{findings:?}");
    says(
        &findings[0],
        Cause::Terminating,
        &["gone 10m ago", "node gpu-7", "out-of-service"],
    );
    evidence.pods[4].metadata.finalizers = Some(vec!["example.com/hold".into()]);
    says(&first(&evidence), Cause::Terminating, &["example.com/hold"]);
}

/// The actor's pod is on its way out, with so much in its metadata and this status.
fn leaving(more: &Value, status: Value) -> Evidence {
    let mut evidence = actor(status);
    let metadata = &mut evidence.pods[4].metadata;
    metadata.deletion_timestamp = serde_json::from_value(more["until"].clone()).unwrap();
    metadata.deletion_grace_period_seconds = more["grace"].as_i64();
    metadata.finalizers = serde_json::from_value(more["finalizers"].clone()).unwrap();
    evidence
}

#[test]
fn a_pod_that_may_still_save_its_state_is_named_with_since_when_and_until_when() {
    let more = json!({"until": "2026-01-01T03:00:20Z", "grace": 50, "finalizers": ["example.com/log"]});
    let mut in_time = leaving(&more, ready());
    let findings = explain(&in_time, now());
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!((findings[0].cause, findings[0].blocks), (Cause::Terminating, false));
    assert_eq!(findings[0].pods, ["rloo-actor-0"]);
    assert_eq!(
        findings[0].what,
        "The pod is ending since 30s, has until 2026-01-01T03:00:20Z for that (20s more), and its successor needs its name. Beyond that \
         the finalizer example.com/log holds it."
    );
    // Nothing follows a pod of a suspended job, nor one that was scaled away.
    in_time.job.spec.run_policy.suspend = true;
    assert!(
        explain(&in_time, now())
            .iter()
            .all(|finding| finding.cause == Cause::Suspended)
    );
    let mut fewer = actor(ready());
    let mut surplus = pod("rollout", 4, on_node(), ready());
    surplus.metadata.deletion_timestamp = in_time.pods[4].metadata.deletion_timestamp.clone();
    fewer.pods.push(surplus);
    assert_eq!(explain(&fewer, now()), []);
}

#[test]
fn one_that_should_be_gone_is_held_by_its_node_or_by_what_its_finalizers_are_for() {
    let more = json!({"until": "2026-01-01T02:58:00Z", "grace": 60, "finalizers": ["example.com/a", "example.com/b"]});
    says(
        &first(&leaving(&more, ready())),
        Cause::Terminating,
        &[
            "ending since 3m and should have been gone 2m ago",
            "node gpu-7 does not confirm that it stopped, and the finalizers example.com/a, example.com/b hold it",
            "Do not delete the pod by force",
            "is it running?",
        ],
    );
    let stopped = first(&leaving(&more, json!({"phase": "Succeeded"})));
    says(&stopped, Cause::Terminating, &["but the finalizers example.com/a"]);
    assert!(!stopped.fix.contains("by force"), "{stopped:?}");
    let alone = json!({"until": "2026-01-01T02:58:00Z"});
    says(
        &first(&leaving(&alone, ready())),
        Cause::Terminating,
        &[
            "gone or not ready the operator removes the pod by itself",
            "out-of-service",
        ],
    );
}
