//! What the API server refuses.

use super::*;

#[test]
fn pods_that_a_quota_forbids_are_counted_by_role_with_the_api_servers_words() {
    let mut evidence = actor(ready());
    evidence.pods.drain(1..4);
    evidence.events = vec![event(
        "PpoJob",
        "rloo",
        "Refused",
        "pods \"rloo-rollout-1\" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, used: 2, limited: 2",
    )];
    says(
        &first(&evidence),
        Cause::PodsMissing,
        &[
            "3 of 4 rollout pods",
            "exceeded quota: gpus",
            "kubectl describe resourcequota",
        ],
    );
}

#[test]
fn what_was_refused_long_ago_or_is_a_budget_is_not_why_pods_are_missing() {
    let said = |words: &str, at: &str| {
        let mut evidence = actor(ready());
        evidence.pods.drain(1..4);
        let mut refused = event("PpoJob", "rloo", "Refused", words);
        refused.last_timestamp.as_mut().unwrap().0 = at.parse().unwrap();
        evidence.events = vec![refused];
        first(&evidence).what
    };
    let quota = "creating Pod rloo-rollout-1: exceeded quota: gpus";
    let budget = "PodDisruptionBudget rloo-actor belongs to nobody; the job does not wait for it";
    assert!(said(quota, "2026-01-01T02:59:00Z").contains("exceeded quota"));
    for (words, at) in [(quota, "2026-01-01T02:40:00Z"), (budget, "2026-01-01T02:59:00Z")] {
        assert_eq!(said(words, at), "3 of 4 rollout pods do not exist.");
    }
}

#[test]
fn an_actor_that_nothing_keeps_from_eviction_is_worth_knowing_and_holds_nothing_up() {
    let mut running = evidence(job("Running"));
    running.pods = pods(&on_node(), &ready());
    let words = "PodDisruptionBudget rloo-actor belongs to nobody; the job does not wait for it";
    running.events = vec![event("PpoJob", "rloo", "Refused", words)];
    let finding = first(&running);
    assert_eq!((finding.cause, finding.blocks), (Cause::Evictable, false));
    assert!(finding.what.contains(words), "{finding:?}");
    assert!(finding.fix.contains("`kubectl ppo suspend rloo --wait`"), "{finding:?}");
}

#[test]
fn what_a_quota_or_a_limit_range_of_the_namespace_refuses_leads_to_it() {
    let cases = [
        (
            "exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, used: 2, limited: 2",
            "`kubectl describe resourcequota gpus`",
        ),
        (
            "failed quota: compute: must specify limits.memory for: worker; requests.cpu for: worker",
            "ResourceQuota compute takes no pod that leaves out",
        ),
        (
            "maximum memory usage per Container is 1Gi, but limit is 2Gi",
            "`kubectl describe limitrange`",
        ),
        (
            "cpu max limit to request ratio per Container is 2, but provided ratio is 4.000000",
            "`kubectl describe limitrange`",
        ),
        (
            "maximum storage usage per PersistentVolumeClaim is 1Gi, but request is 2Gi",
            "spec.checkpoint.volumeClaim.storage",
        ),
    ];
    for (words, help) in cases {
        let fix = remedy::of_creation(words);
        assert!(fix.contains(help), "{words}: {fix}");
    }
}

#[test]
fn pods_that_a_policy_or_a_webhook_holds_up_are_told_with_its_words_and_what_helps() {
    let refused = |words: &str| {
        let mut waiting = evidence(job("Pending"));
        waiting.events = vec![event("PpoJob", "rloo", "Refused", words)];
        first(&waiting)
    };
    let cases = [
        (
            "creating Pod rloo-actor-0: ApiError: pods \"rloo-actor-0\" is forbidden: ValidatingAdmissionPolicy 'images' with binding \
             'images' denied request: no tag",
            "the cluster's policy",
        ),
        (
            "creating Pod rloo-actor-0: ApiError: admission webhook \"validate.kyverno.svc-fail\" denied the request: blocked",
            "the cluster's policy",
        ),
        (
            "creating VolcanoPodGroup rloo-12345678: ApiError: admission webhook \"validatepodgroup.volcano.sh\" denied the request: \
             unable to find queue: queue.scheduling.volcano.sh \"absent\" not found",
            "spec.scheduling.queue",
        ),
        (
            "creating VolcanoPodGroup rloo-12345678: ApiError: admission webhook \"validatepodgroup.volcano.sh\" denied the request: \
             can only submit PodGroup to queue with state `Open`, queue `rl` status is `Closed`",
            "spec.scheduling.queue",
        ),
        (
            "creating Pod rloo-actor-0: Internal error occurred: failed calling webhook \"mpod.kb.io\": connection refused",
            "does not answer",
        ),
        (
            "Pod rloo-actor-0 belongs to nobody; the job waits until it is gone",
            "another name",
        ),
        (
            "Pod rloo-actor-0 is the job's own and has lost labels by which the operator knows it (ppojob.dev/job=rloo); the job waits until \
             they are back or it is gone: `kubectl label pods rloo-actor-0 --overwrite ppojob.dev/job=rloo`, or delete it",
            "put the labels back by that command",
        ),
    ];
    for (words, help) in cases {
        says(
            &refused(words),
            Cause::PodsMissing,
            &["4 of 4 rollout pods, 1 of 1 actor pods", words, help],
        );
    }
    // A failure in words of the same kind is no refusal.
    let mut failed = evidence(job("Restarting"));
    failed.events = vec![event(
        "PpoJob",
        "rloo",
        "Restarting",
        "rloo-actor-0 failed (Error): permission denied",
    )];
    assert!(
        explain(&failed, now())
            .iter()
            .all(|finding| finding.cause != Cause::PodsMissing)
    );
}

#[test]
fn a_refusal_is_told_once_though_the_gangs_condition_has_it_too() {
    let quota = "pods \"rloo-actor-0\" is forbidden: exceeded quota: gpus";
    let mut pending = job("Pending");
    pending["status"]["conditions"] = json!([{"type": "GangScheduled", "status": "False", "reason": "WaitsForNodes",
        "message": format!("0 of 5 pods have nodes; creating Pod rloo-actor-0: {quota}"), "lastTransitionTime": NOW}]);
    let mut refused = evidence(pending);
    let words = format!("creating Pod rloo-actor-0: ApiError: {quota}");
    refused.events = vec![event("PpoJob", "rloo", "Refused", &words)];
    let findings = explain(&refused, now());
    assert_eq!(findings.len(), 1, "{findings:?}");
    says(&findings[0], Cause::PodsMissing, &[quota, "resourcequota"]);
    // Where no event can be read the condition has it alone.
    refused.events.clear();
    says(&first(&refused), Cause::Gang, &[quota]);
}

#[test]
fn what_is_refused_while_pods_of_the_name_are_going_has_its_own_remedy_and_is_no_want_of_room() {
    let words = "ConfigMap rloo-config belongs to nobody; the job waits until it is gone";
    let mut pending = job("Pending");
    pending["status"]["conditions"] = json!([{"type": "GangScheduled", "status": "False", "reason": "WaitsForNodes",
        "message": format!("0 of 5 pods have nodes; {words}"), "lastTransitionTime": NOW}]);
    let mut going = evidence(pending);
    going.pods = pods(&on_node(), &ready());
    for pod in &mut going.pods {
        pod.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T03:00:10Z")).unwrap();
    }
    says(&first(&going), Cause::Gang, &[words, "make room"]);
    going.events = vec![event("PpoJob", "rloo", "Refused", words)];
    says(
        &first(&going),
        Cause::Gang,
        &[
            words,
            "delete the object that has the name, or give the job another name",
        ],
    );
}

#[test]
fn what_a_limit_range_refuses_is_told_with_the_field_and_its_bound() {
    let cases = [
        (
            "minimum cpu usage per Container is 100m, but request is 50m",
            "raise requests.cpu of a container in resources of spec.roles.<role>.template from 50m to at least 100m",
        ),
        (
            "maximum cpu usage per Container is 2.  No limit is specified",
            "give limits.cpu of a container in resources of spec.roles.<role>.template, at most 2;",
        ),
        (
            "cpu max limit to request ratio per Container is 2, but provided ratio is 4.000000",
            "let limits.cpu be at most 2 times requests.cpu of a container",
        ),
        (
            "memory max limit to request ratio per Pod is 1, but no request is specified or request is 0",
            "give both, and let limits.memory be at most 1 times requests.memory of all containers together",
        ),
        (
            "maximum nvidia.com/gpu usage per Container is 4, but limit is 8",
            "ask for at most 4 nvidia.com/gpu of a container: by gpusPerNode or gpusPerReplica",
        ),
        (
            "maximum storage usage per PersistentVolumeClaim is 1Gi, but request is 2Gi",
            "at most 1Gi in spec.checkpoint.volumeClaim.storage",
        ),
    ];
    for (words, help) in cases {
        let fix = remedy::of_creation(&format!("pods \"rloo-actor-0\" is forbidden: {words}"));
        assert!(fix.contains(help), "{words}: {fix}");
    }
}

#[test]
fn all_that_a_limit_range_refuses_of_a_pod_is_told_of_the_template_of_its_role() {
    let mut waiting = evidence(job("Pending"));
    let words = "creating Pod rloo-actor-0: ApiError: pods \"rloo-actor-0\" is forbidden: [maximum cpu usage per Container is 2, but limit \
                 is 4, maximum cpu usage per Container is 2, but limit is 4, maximum memory usage per Pod is 1Gi, but limit is 2Gi]";
    waiting.events = vec![event("PpoJob", "rloo", "Refused", words)];
    let finding = first(&waiting);
    assert_eq!(finding.cause, Cause::PodsMissing);
    assert_eq!(
        finding.fix,
        "lower limits.cpu of a container in resources of spec.roles.actor.template from 4 to at most 2; lower limits.memory of all \
         containers together in resources of spec.roles.actor.template from 2Gi to at most 1Gi; or have the namespace's LimitRange \
         changed: `kubectl describe limitrange`"
    );
}
