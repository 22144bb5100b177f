//! Jobs that wait for quota.

use kube::ResourceExt as _;

use super::*;

#[test]
fn a_gang_scheduler_that_is_not_installed_is_no_wait_for_quota() {
    let mut queued = job("Queued");
    queued["status"]["conditions"] = json!([{"type": "GangScheduled", "status": "False", "reason": "GangSchedulerMissing",
        "message": "this cluster has no Volcano", "lastTransitionTime": NOW}]);
    says(
        &first(&evidence(queued)),
        Cause::Gang,
        &["this cluster has no Volcano", "set spec.scheduling.gang to auto"],
    );
}

#[test]
fn a_queue_or_a_priority_class_that_is_missing_is_no_wait_for_quota_either() {
    let missing = |reason: &str, message: &str| {
        // One that it had before its class was renamed.
        let pending = condition("QuotaReserved", "False", "Pending", "insufficient unused quota");
        let mut queued = queued(json!({}), json!({"conditions": [pending]}));
        let gang = json!({"type": "GangScheduled", "status": "False", "reason": reason, "message": message,
            "lastTransitionTime": NOW});
        queued.job.status.as_mut().unwrap().conditions = vec![serde_json::from_value(gang).unwrap()];
        let finding = first(&queued);
        assert!(!finding.fix.contains("quota"), "{finding:?}");
        finding
    };
    says(
        &missing(
            "QueueMissing",
            "name a LocalQueue of this namespace in scheduling.queue",
        ),
        Cause::Queued,
        &["names no queue: name a LocalQueue", "set spec.scheduling.queue"],
    );
    says(
        &missing("PriorityClassMissing", "there is no PriorityClass gold"),
        Cause::Queued,
        &[
            "there is no PriorityClass gold",
            "create the class, or correct spec.scheduling.priorityClassName",
        ],
    );
}

#[test]
fn a_queued_job_speaks_with_kueues_words_and_nothing_else() {
    let mut queued = evidence(job("Queued"));
    queued.gang = vec![object(
        json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": {"name": "rloo"},
        "spec": {"queueName": "rl", "active": true},
        "status": {"conditions": [{"type": "QuotaReserved", "status": "False", "reason": "Pending",
        "message": "couldn't assign flavors to pod set rollout: insufficient unused quota for nvidia.com/gpu in flavor h100, 16 more needed"}]}}),
    )];
    let findings = explain(&queued, now());
    assert_eq!(findings.len(), 1, "{findings:?}");
    says(
        &findings[0],
        Cause::Queued,
        &[
            "Queue \"rl\"",
            "insufficient unused quota for nvidia.com/gpu in flavor h100, 16 more needed",
        ],
    );
}

#[test]
fn commands_for_a_workload_name_it() {
    let command = |active: bool| {
        let mut queued = evidence(job("Queued"));
        queued.gang = vec![object(
            json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": {"name": "rloo-12345678"},
            "spec": {"queueName": "rl", "active": active}, "status": {"conditions": [{"type": "QuotaReserved", "status": "True"}]}}),
        )];
        first(&queued).fix
    };
    let patch = "`kubectl patch workloads.kueue.x-k8s.io rloo-12345678 --type merge -p '{\"spec\":{\"active\":true}}'`";
    assert!(command(false).contains(patch), "{}", command(false));
    let get = "`kubectl get workloads.kueue.x-k8s.io rloo-12345678 -o yaml`";
    assert!(command(true).contains(get), "{}", command(true));
}

#[test]
fn a_queue_that_does_not_exist_and_an_eviction_are_told_apart() {
    let workload = |conditions: Value| {
        let mut queued = evidence(job("Queued"));
        queued.gang = vec![object(
            json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
            "metadata": {"name": "rloo"}, "spec": {"queueName": "absent"}, "status": {"conditions": conditions}}),
        )];
        first(&queued)
    };
    let inadmissible = workload(
        json!([{"type": "QuotaReserved", "status": "False", "reason": "Inadmissible", "message": "LocalQueue absent doesn't exist"}]),
    );
    says(
        &inadmissible,
        Cause::Queued,
        &["LocalQueue absent doesn't exist", "kubectl get localqueues"],
    );
    let evicted = workload(
        json!([{"type": "Evicted", "status": "True", "reason": "ClusterQueueStopped", "message": "The ClusterQueue is stopped"},
        {"type": "Admitted", "status": "True", "reason": "Admitted", "message": ""}]),
    );
    says(
        &evicted,
        Cause::Queued,
        &["evicted the job (ClusterQueueStopped)", "start it again"],
    );
}

#[test]
fn a_pod_that_kueue_queues_by_itself_says_so_and_one_with_other_gates_does_not() {
    let gated = json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
        "message": "Scheduling is blocked due to non-empty scheduling gates"}]});
    let spec = json!({"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}], "containers": []});
    let mut waiting = evidence(job("Scheduling"));
    waiting.pods = pods(&spec, &gated);
    says(&first(&waiting), Cause::Unscheduled, &["kueue.x-k8s.io/admission"]);
    for pod in &mut waiting.pods {
        let labels = [
            ("kueue.x-k8s.io/managed", "true"),
            ("kueue.x-k8s.io/queue-name", "default"),
        ];
        pod.labels_mut()
            .extend(labels.map(|(key, value)| (key.to_string(), value.to_string())));
    }
    let finding = first(&waiting);
    says(
        &finding,
        Cause::Queued,
        &[
            "queue \"default\"",
            "PpoJob.v1alpha1.ppojob.dev",
            "integrations.frameworks",
        ],
    );
    assert_eq!(finding.pods.len(), 5);
}

#[test]
fn engines_that_kueue_has_not_admitted_are_no_missing_pods() {
    let mut job = job("Running");
    job["status"]["roles"] = json!([
        {"name": "rollout", "desired": 4, "ready": 2, "reason": "QuotaForFewer", "message": "Kueue admitted 2 of 4 engines"},
        {"name": "actor", "desired": 1, "ready": 1},
    ]);
    let mut evidence = evidence(job);
    evidence.pods = pods(&on_node(), &ready());
    evidence.pods.drain(2..4);
    let found = explain(&evidence, now());
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        !found[0].blocks && found[0].what.contains("2 of 4 engines"),
        "{found:?}"
    );
    assert!(found[0].fix.contains("kubectl ppo resume rloo"), "{found:?}");
}

/// A job that waits with this Workload.
fn queued(spec: Value, status: Value) -> Evidence {
    let mut queued = evidence(job("Queued"));
    let mut workload =
        json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": {"name": "rloo-1"}});
    workload["spec"] = spec;
    workload["spec"]["queueName"] = json!("rl");
    workload["status"] = status;
    queued.gang = vec![object(workload)];
    queued
}

fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": message})
}

#[test]
fn an_admission_check_that_holds_or_rejects_the_job_is_told_in_its_own_words() {
    let held = |state: &str| {
        let checks = json!([{"name": "budget", "state": "Ready", "message": ""},
            {"name": "machines", "state": state, "message": "no H100 is left."}]);
        let reserved = condition("QuotaReserved", "True", "QuotaReserved", "");
        first(&queued(
            json!({"active": true}),
            json!({"conditions": [reserved], "admissionChecks": checks}),
        ))
    };
    says(
        &held("Pending"),
        Cause::Queued,
        &[
            "has reserved quota; admission check machines is Pending: no H100 is left.",
            "status.admissionChecks",
        ],
    );
    says(
        &held("Rejected"),
        Cause::Queued,
        &[
            "machines is Rejected: no H100 is left.",
            "what the check objects to",
            "kubectl patch",
        ],
    );
}

#[test]
fn a_workload_that_kueue_deactivated_says_why_and_what_the_check_said() {
    let words = "The workload is deactivated due to Admission check(s): machines, were rejected";
    let evicted = condition("Evicted", "True", "DeactivatedDueToAdmissionCheck", words);
    let mut rejected = queued(json!({"active": false}), json!({"conditions": [evicted]}));
    says(
        &first(&rejected),
        Cause::Queued,
        &[words, "put right what it says, then set it active again"],
    );
    let said = "Deactivating workload because AdmissionCheck for machines was Rejected: no H100 is left";
    rejected.events = vec![event("Workload", "rloo-1", "AdmissionCheckRejected", said)];
    says(
        &first(&rejected),
        Cause::Queued,
        &["does not admit it: Deactivating", said],
    );
    // A person did it.
    let by_hand = first(&queued(json!({"active": false}), json!({})));
    says(&by_hand, Cause::Queued, &["does not admit it."]);
    assert!(by_hand.fix.starts_with("set it active again"), "{by_hand:?}");
}

#[test]
fn a_finished_workload_holds_up_a_job_that_waits_and_no_other() {
    let finished = condition("Finished", "True", "OutOfSync", "the prebuilt workload is not in sync");
    let mut over = queued(json!({}), json!({"conditions": [finished]}));
    says(
        &first(&over),
        Cause::Queued,
        &[
            "is finished (OutOfSync): the prebuilt workload is not in sync",
            "`kubectl delete workloads.kueue.x-k8s.io rloo-1`",
        ],
    );
    over.job.status.as_mut().unwrap().phase = Some(Phase::Running);
    over.pods = pods(&on_node(), &ready());
    assert_eq!(explain(&over, now()), []);
}

#[test]
fn what_a_queue_says_after_an_eviction_is_told_beside_it() {
    let evicted = condition("Evicted", "True", "Preempted", "for a job of higher priority");
    let since = |message: &str| {
        let now = condition("QuotaReserved", "False", "Pending", message);
        first(&queued(json!({}), json!({"conditions": [evicted.clone(), now]}))).what
    };
    let what = since("insufficient unused quota for nvidia.com/gpu");
    assert_eq!(
        what,
        "Kueue evicted the job (Preempted): for a job of higher priority. Queue \"rl\" says now: insufficient unused quota for \
         nvidia.com/gpu."
    );
    assert!(!since("for a job of higher priority").contains("says now"));
}
