//! Jobs whose pods all run.

use k8s_openapi::api::coordination::v1::Lease;

use super::*;

#[test]
fn a_healthy_job_has_no_findings_and_says_when_the_next_step_is_due() {
    let mut running = job("Running");
    running["status"]["progress"] = json!({"step": 40, "total": 150, "summary": "40/150", "etaSeconds": 1100});
    let mut evidence = evidence(running);
    evidence.pods = pods(&on_node(), &ready());
    assert_eq!(explain(&evidence, now()), []);
    let words = healthy(&evidence, now());
    assert_eq!(
        words,
        "Nothing: it runs, step 40/150; the next report comes within about 10s, the end in 18m."
    );
}

#[test]
fn a_run_without_progress_names_the_stage_and_the_pod_that_it_waits_for() {
    let mut hung = job("Running");
    hung["status"]["conditions"] = json!([{"type": "Progressing", "status": "False", "reason": "Stalled",
        "message": "Stage rollout has waited 12 min for rloo-rollout-2.", "lastTransitionTime": "2026-01-01T02:50:00Z"}]);
    let mut evidence = evidence(hung);
    evidence.pods = pods(&on_node(), &ready());
    says(
        &first(&evidence),
        Cause::NoProgress,
        &[
            "for 10m",
            "Stage rollout has waited 12 min for rloo-rollout-2",
            "restart-role",
        ],
    );
}

#[test]
fn a_run_whose_actor_the_operator_cannot_ask_is_told_so_and_not_held_up() {
    let mut silent = job("Running");
    silent["status"]["conditions"] = json!([{"type": "Progressing", "status": "False", "reason": "Silent",
        "message": "the actor's report could not be read for over 300 s", "lastTransitionTime": "2026-01-01T02:50:00Z"}]);
    let mut evidence = evidence(silent);
    evidence.pods = pods(&on_node(), &ready());
    let finding = first(&evidence);
    assert_eq!((finding.cause, finding.blocks), (Cause::NoProgress, false));
    assert!(finding.what.contains("could not be read"), "{}", finding.what);
    assert!(finding.fix.contains("NetworkPolicy"), "{}", finding.fix);
}

#[test]
fn a_role_whose_failed_pod_is_gone_is_told_in_the_operators_words() {
    let mut restarting = job("Restarting");
    restarting["status"]["roles"] = json!([{"name": "actor", "desired": 1, "ready": 0, "restarts": 2, "attempt": 3,
        "reason": "Error", "message": "rloo-actor-0 ended with exit code 139."}]);
    restarting["spec"]["failurePolicy"] = json!({"maxRestarts": 5, "maxRestartsPerRole": {"actor": 2}});
    says(
        &first(&evidence(restarting)),
        Cause::Role,
        &["exit code 139", "attempt 3; 2 of 2 restarts are used", "--role actor"],
    );
}

#[test]
fn a_role_whose_pods_became_ready_since_the_operator_looked_holds_nothing_up() {
    let mut running = job("Running");
    running["spec"]["roles"]["rollout"]["minReplicas"] = json!(4);
    running["status"]["roles"] = json!([{"name": "rollout", "desired": 4, "ready": 3, "restarts": 0, "attempt": 1,
        "reason": "Starting", "message": "rloo-rollout-1: not ready yet."}]);
    let mut evidence = evidence(running);
    evidence.pods = pods(&on_node(), &ready());
    assert_eq!(explain(&evidence, now()), []);
    // It is not: the operator's words are all there is.
    evidence.pods[1] = pod("rollout", 1, on_node(), json!({"phase": "Running"}));
    says(
        &first(&evidence),
        Cause::Role,
        &["3 of 4 pods ready", "rloo-rollout-1: not ready yet"],
    );
}

#[test]
fn used_up_restarts_and_near_deadlines_are_notes() {
    let mut running = job("Running");
    running["status"]["restarts"] = json!(3);
    running["status"]["startTime"] = json!("2026-01-01T02:58:30Z");
    running["spec"]["runPolicy"] = json!({"activeDeadlineSeconds": 130});
    let mut evidence = evidence(running);
    evidence.pods = pods(&on_node(), &ready());
    let findings = explain(&evidence, now());
    let causes: Vec<_> = findings.iter().map(|finding| (finding.cause, finding.blocks)).collect();
    assert_eq!(causes, [(Cause::Budget, false), (Cause::Deadline, false)]);
    assert!(
        findings[1]
            .what
            .contains("fails in 10s, by spec.runPolicy.activeDeadlineSeconds"),
        "{findings:?}"
    );
}

/// The Lease of an operator that acts since then.
fn held(since: &str) -> Vec<Lease> {
    serde_json::from_value(
        json!([{"metadata": {"namespace": "ppo-system"}, "spec": {"holderIdentity": "ppo-operator-1",
        "leaseDurationSeconds": 15, "acquireTime": since, "renewTime": "2026-01-01T02:59:59.000000Z"}}]),
    )
    .unwrap()
}

/// What is said of the deadline of a job that has wanted its pods for ten minutes, and may for ten and a half.
fn of_deadline(conditions: &Value, leases: Vec<Lease>) -> Option<String> {
    let mut waits = job("Initializing");
    waits["status"]["activeSince"] = json!("2026-01-01T02:50:00Z");
    waits["status"]["conditions"] = conditions.clone();
    waits["spec"]["runPolicy"] = json!({"preRunningDeadlineSeconds": 630});
    let mut evidence = evidence(waits);
    evidence.leases = leases;
    let findings = explain(&evidence, now());
    let found = findings.into_iter().find(|finding| finding.cause == Cause::Deadline);
    found.map(|finding| finding.what)
}

#[test]
fn the_time_for_readiness_counts_from_when_the_operator_began_that_acts_now() {
    let late = "The job fails in 30s, by spec.runPolicy.preRunningDeadlineSeconds (10m).";
    let none = json!([]);
    assert_eq!(
        of_deadline(&none, held("2026-01-01T02:40:00.000000Z")).as_deref(),
        Some(late)
    );
    assert_eq!(of_deadline(&none, held("2026-01-01T02:55:00.000000Z")), None);
    // Nobody knows when it began: no sooner than then.
    let mut given_up = held("2026-01-01T02:40:00.000000Z");
    given_up[0].spec.as_mut().unwrap().holder_identity = Some(String::new());
    let two = [held("2026-01-01T02:40:00.000000Z"), held("2026-01-01T02:55:00.000000Z")].concat();
    for leases in [Vec::new(), given_up, two] {
        let sooner = of_deadline(&none, leases).unwrap();
        assert!(sooner.starts_with("The job fails in 30s or later, "), "{sooner}");
    }
}

#[test]
fn the_time_for_readiness_counts_from_when_the_roles_were_lost_and_not_while_they_are_ready() {
    let condition = |status: &str, since: &str| json!([{"type": "RolesReady", "status": status, "reason": "x", "message": "", "lastTransitionTime": since}]);
    let lease = || held("2026-01-01T02:40:00.000000Z");
    assert!(of_deadline(&condition("False", "2026-01-01T02:50:00Z"), lease()).is_some());
    assert_eq!(of_deadline(&condition("False", "2026-01-01T02:55:00Z"), lease()), None);
    assert_eq!(of_deadline(&condition("True", "2026-01-01T02:50:00Z"), lease()), None);
}

#[test]
fn of_two_deadlines_the_one_that_comes_first_is_told_and_one_that_may_come_later_beside_it() {
    let mut waits = job("Initializing");
    waits["spec"]["runPolicy"] = json!({"preRunningDeadlineSeconds": 122, "activeDeadlineSeconds": 121});
    let told = |leases: Vec<Lease>| -> Vec<String> {
        let mut evidence = evidence(waits.clone());
        evidence.leases = leases;
        let findings = explain(&evidence, now()).into_iter();
        findings
            .filter(|finding| finding.cause == Cause::Deadline)
            .map(|finding| finding.what)
            .collect()
    };
    let (first, second) = (
        "The job fails in 1s, by spec.runPolicy.activeDeadlineSeconds (2m1s).",
        "The job fails in 2s or later, by spec.runPolicy.preRunningDeadlineSeconds (2m2s).",
    );
    assert_eq!(told(held("2026-01-01T02:40:00.000000Z")), [first]);
    assert_eq!(told(Vec::new()), [first, second]);
}
