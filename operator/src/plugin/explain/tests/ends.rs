//! Jobs that are suspended or over.

use super::*;

#[test]
fn a_suspended_job_says_who_suspended_it_and_where_it_goes_on() {
    let mut suspended = job("Suspended");
    suspended["spec"]["runPolicy"] = json!({"suspend": true});
    suspended["metadata"]["managedFields"] = json!([
        {"manager": "kubectl-client-side-apply", "time": "2026-01-01T01:00:00Z", "fieldsV1": {"f:spec": {"f:model": {}}}},
        {"manager": "kubectl-ppo", "time": "2026-01-01T02:00:00Z", "fieldsV1": {"f:spec": {"f:runPolicy": {"f:suspend": {}}}}}]);
    suspended["status"]["progress"] = json!({"step": 43, "lastCheckpoint": 40});
    says(
        &first(&evidence(suspended.clone())),
        Cause::Suspended,
        &[
            "by kubectl-ppo 60m ago",
            "Its checkpoints went with its pod",
            "start at step 0",
        ],
    );
    suspended["spec"]["checkpoint"] = json!({"pvc": "kept"});
    says(
        &first(&evidence(suspended)),
        Cause::Suspended,
        &[
            "by kubectl-ppo 60m ago",
            "checkpoint of step 40",
            "kubectl ppo resume rloo",
        ],
    );
}

#[test]
fn a_failed_job_says_why_at_which_step_and_what_its_pods_still_show() {
    let mut failed = job("Failed");
    failed["status"]["conditions"] = json!([{"type": "Failed", "status": "True", "reason": "Diverged",
        "message": "The KL of step 12 is 31.5, above algorithm.kl.stopAbove (10).", "lastTransitionTime": NOW}]);
    failed["status"]["progress"] = json!({"step": 12, "summary": "12/150"});
    let mut evidence = evidence(failed);
    let end = json!({"terminated": {"exitCode": 3, "reason": "Error",
        "message": r#"{"reason": "Diverged", "message": "KL 31.5 at step 12"}"#}});
    evidence.pods = vec![pod("actor", 0, on_node(), container(end, json!({})))];
    let findings = explain(&evidence, now());
    says(
        &findings[0],
        Cause::Failed,
        &[
            "Diverged",
            "31.5, above algorithm.kl.stopAbove",
            "step 12/150",
            "actorLearningRate",
            "names a claim or a mounted volume",
        ],
    );
    assert_eq!((findings[1].cause, findings[1].blocks), (Cause::Crashed, false));
    assert!(
        findings[1]
            .what
            .contains("ended with Diverged (exit code 3): KL 31.5 at step 12"),
        "{findings:?}"
    );
}

#[test]
fn every_way_to_fail_has_its_own_help() {
    let cases = [
        ("NotRunningInTime", "preRunningDeadlineSeconds"),
        ("DeadlineExceeded", "activeDeadlineSeconds"),
        ("Hung", "progressDeadlineSeconds"),
        ("RestartsExhausted", "maxRestarts"),
        ("InvalidSpec", "kubectl ppo plan"),
        ("RewardFailed", "servers"),
        ("SomethingNew", "what the message names"),
    ];
    for (reason, help) in cases {
        let fix = remedy::of_failure(reason, "");
        assert!(fix.contains(help), "{reason}: {fix}");
    }
}
