//! Words of kube-scheduler, kubelet, Kueue, Volcano and coscheduling in the form their sources have;
//! `tests/tests/plugin.rs` has the real scheduler say its own.

use k8s_openapi::api::core::v1::{Event, Pod};
use kube::ResourceExt as _;
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
fn a_gang_without_room_is_one_finding_in_the_schedulers_words_with_the_gpus_asked_for() {
    let mut waiting = evidence(job("Scheduling"));
    let spec = json!({"schedulerName": "coscheduling", "containers": [{"name": "worker", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]});
    let status = json!({"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": GPUS}]});
    waiting.pods = pods(&spec, &status);
    waiting.gang = vec![object(
        json!({"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": "rloo"}}),
    )];
    let findings = explain(&waiting, now());
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(findings[0].pods.len(), 5);
    says(
        &findings[0],
        Cause::Gang,
        &[
            "coscheduling says: 0/5 nodes are available: 5 Insufficient nvidia.com/gpu",
            "up to 8 on one node",
            "all of them at once",
        ],
    );
}

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
fn a_scheduler_that_does_not_run_is_one_finding_whoever_waits_for_it() {
    let status = |phase: &str| {
        let mut waiting = job(phase);
        waiting["status"]["conditions"] = json!([{"type": "GangScheduled", "status": "False", "reason": "SchedulerSilent",
            "message": "the scheduler volcano has said nothing of rloo-actor-0: does it run?", "lastTransitionTime": NOW}]);
        evidence(waiting)
    };
    let mut placed = status("Scheduling");
    placed.pods = pods(
        &json!({"schedulerName": "volcano", "containers": []}),
        &json!({"phase": "Pending"}),
    );
    placed.gang = vec![object(
        json!({"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": {"name": "rloo"}}),
    )];
    says(
        &first(&placed),
        Cause::SchedulerAbsent,
        &["no open queue default", "spec.scheduling.queue"],
    );
    for waiting in [placed, status("Queued")] {
        assert_eq!(explain(&waiting, now()).len(), 1);
        says(
            &first(&waiting),
            Cause::SchedulerAbsent,
            &["the scheduler volcano has said nothing of rloo-actor-0", "start it"],
        );
    }
}

#[test]
fn words_of_the_operator_do_not_repeat_those_of_the_pods_but_replace_them_when_pods_say_nothing() {
    let mut waiting = job("Scheduling");
    waiting["status"]["conditions"] = json!([{"type": "GangScheduled", "status": "False", "reason": "WaitsForNodes",
        "message": "scheduling.gang asks for volcano, which this cluster does not have.", "lastTransitionTime": NOW}]);
    let silent = evidence(waiting.clone());
    says(
        &first(&silent),
        Cause::Gang,
        &["asks for volcano, which this cluster does not have"],
    );
    let mut talking = evidence(waiting);
    let status = json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": GPUS}]});
    talking.pods = pods(&json!({"containers": []}), &status);
    assert_eq!(explain(&talking, now()).len(), 1);
}

#[test]
fn volcanos_words_count_only_while_its_group_is_pending() {
    let group = |phase: &str| {
        object(
            json!({"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": {"name": "rloo"},
            "status": {"phase": phase, "conditions": [{"type": "Unschedulable", "status": "True", "reason": "NotEnoughResources",
            "message": "5/5 tasks in gang unschedulable: pod group is not ready, 5 Pending, 5 minAvailable"}]}}),
        )
    };
    let mut waiting = evidence(job("Scheduling"));
    waiting.gang = vec![group("Inqueue")];
    let status = json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "pod group is not ready, 5 Pending, 5 minAvailable"}]});
    waiting.pods = pods(&json!({"schedulerName": "volcano", "containers": []}), &status);
    assert_eq!(explain(&waiting, now()).len(), 1, "the pods say the same");
    says(&first(&waiting), Cause::Gang, &["volcano says: pod group is not ready"]);
    waiting.pods.clear();
    waiting.job.status.as_mut().unwrap().roles.clear();
    says(&first(&waiting), Cause::Gang, &["5/5 tasks in gang unschedulable"]);
    let mut running = actor(ready());
    running.gang = vec![group("Running")];
    assert_eq!(explain(&running, now()), []);
}

#[test]
fn scheduling_words_lead_to_what_helps() {
    let cases = [
        (
            "0/3 nodes are available: 3 node(s) had untolerated taint {nvidia.com/gpu: present}.",
            "toleration",
        ),
        (
            "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.",
            "--show-labels",
        ),
        (
            "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
            "StorageClass",
        ),
        (
            r#"0/3 nodes are available: persistentvolumeclaim "ckpts" not found."#,
            "create the claim",
        ),
        ("0/3 nodes are available: 3 node(s) were unschedulable.", "uncordon"),
        (
            "0/3 nodes are available: 1 Insufficient memory, 2 Insufficient nvidia.com/gpu.",
            "free or add nodes with nvidia.com/gpu",
        ),
        ("no nodes available to schedule pods", "add some"),
        ("0/3 nodes are available: 3 Insufficient cpu.", "free CPUs"),
    ];
    for (words, help) in cases {
        let fix = remedy::of_scheduling(words, &evidence(job("Scheduling")));
        assert!(fix.contains(help), "{words}: {fix}");
    }
}

#[test]
fn a_scheduler_that_is_not_there_is_named() {
    let mut waiting = evidence(job("Scheduling"));
    waiting.pods = pods(
        &json!({"schedulerName": "volcano", "containers": []}),
        &json!({"phase": "Pending"}),
    );
    says(
        &first(&waiting),
        Cause::Unscheduled,
        &[
            "volcano has not looked at the pod",
            "spec.scheduling.gang",
            "no open queue default",
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
    evidence.lease = serde_json::from_value(
        json!({"metadata": {"namespace": "ppo-system"}, "spec": {"holderIdentity": "ppo-operator-1",
        "leaseDurationSeconds": 15, "renewTime": "2026-01-01T02:50:00.000000Z"}}),
    )
    .unwrap();
    says(
        &first(&evidence),
        Cause::OperatorAbsent,
        &["ppo-operator-1 has not renewed its Lease in namespace ppo-system for 10m"],
    );
    unseen["metadata"]["creationTimestamp"] = json!("2026-01-01T02:59:55Z");
    evidence.job = serde_json::from_value(unseen).unwrap();
    evidence.lease = None;
    assert_eq!(explain(&evidence, now()), [], "five seconds are not long");
}

#[test]
fn an_old_lease_holds_no_job_up_whose_every_change_was_seen() {
    let mut evidence = evidence(job("Running"));
    evidence.lease = serde_json::from_value(
        json!({"metadata": {"namespace": "ppo-system"}, "spec": {"holderIdentity": "ppo-operator-1",
        "leaseDurationSeconds": 15, "renewTime": "2026-01-01T02:50:00.000000Z"}}),
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

#[test]
fn an_image_that_cannot_be_pulled_shows_the_registrys_answer_even_while_backing_off() {
    let mut evidence = actor(container(
        json!({"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image \"ghcr.io/a/worker:9\""}}),
        json!({}),
    ));
    evidence.events = vec![event(
        "Pod",
        "rloo-actor-0",
        "Failed",
        "Failed to pull image \"ghcr.io/a/worker:9\": rpc error: code = NotFound desc = failed to resolve reference: ghcr.io/a/worker:9: not found",
    )];
    let finding = first(&evidence);
    says(
        &finding,
        Cause::Image,
        &[
            "ImagePullBackOff",
            "failed to resolve reference: ghcr.io/a/worker:9: not found",
            "tag",
        ],
    );
    assert_eq!(finding.pods, ["rloo-actor-0"]);
}

#[test]
fn an_image_that_the_template_does_not_name_is_the_one_that_the_job_began_with() {
    let waiting = json!({"waiting": {"reason": "ErrImagePull", "message": "ghcr.io/a/worker:9: not found"}});
    let mut pinned = actor(container(waiting, json!({})));
    says(
        &first(&pinned),
        Cause::Image,
        &[
            "naming one for container worker in spec.roles.actor.template",
            "annotation ppojob.dev/worker-image of ConfigMap rloo-config",
            "--worker-image is for jobs that begin later",
            "`kubectl ppo restart-role rloo actor`",
        ],
    );
    let template = json!({"spec": {"containers": [{"name": "worker", "image": "ghcr.io/a/worker:9"}]}});
    pinned.job.spec.roles.actor.template = serde_json::from_value(template).unwrap();
    assert_eq!(
        first(&pinned).fix,
        "correct the image's name or tag of container worker in spec.roles.actor.template; pods that wait take an edited template up by \
         `kubectl ppo restart-role rloo actor`"
    );
}

#[test]
fn a_role_is_to_be_restarted_where_its_pods_wait_as_an_older_template_made_them() {
    let unscheduled = |words: &str| {
        let status = json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words}]});
        let mut waiting = evidence(job("Scheduling"));
        waiting.pods = pods(&json!({"containers": []}), &status);
        first(&waiting)
    };
    let tainted = unscheduled("0/3 nodes are available: 3 node(s) had untolerated taint {a: b}.");
    assert_eq!(tainted.pods.len(), 5);
    says(
        &tainted,
        Cause::Unscheduled,
        &[
            "spec.roles.<role>.template",
            "`kubectl ppo restart-role rloo rollout`",
            "`kubectl ppo restart-role rloo actor`",
        ],
    );
    // No template helps.
    assert!(!unscheduled(GPUS).fix.contains("restart-role"));
    // A pod that ended is made anew, from the template of then.
    let killed = json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}});
    let fix = first(&actor(container(killed, json!({})))).fix;
    assert!(
        fix.contains("spec.roles.actor.template") && !fix.contains("restart-role"),
        "{fix}"
    );
}

#[test]
fn a_crash_loop_shows_exit_code_last_words_and_restarts() {
    let waiting = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container=worker"}});
    let mut evidence = actor(container(
        waiting,
        json!({"terminated": {"exitCode": 2, "reason": "Error"}}),
    ));
    evidence
        .last_lines
        .insert("rloo-actor-0".into(), "error: /data/train.jsonl: no such file".into());
    says(
        &first(&evidence),
        Cause::Crashed,
        &[
            "exit code 2",
            "its last words: error: /data/train.jsonl: no such file",
            "restarted 4 times",
            "correct the manifest",
        ],
    );
}

#[test]
fn a_process_killed_for_its_memory_says_what_to_make_smaller() {
    let end = json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}});
    says(
        &first(&actor(container(end.clone(), json!({})))),
        Cause::OutOfMemory,
        &["OOMKilled", "microTrainBatchSize"],
    );
    // Once it runs again it is worth knowing, and no longer what holds the job up.
    let mut again = ready();
    again["containerStatuses"] = container(json!({"running": {}}), end)["containerStatuses"].clone();
    let findings = explain(&actor(again), now());
    assert_eq!(
        (findings.len(), findings[0].cause, findings[0].blocks),
        (1, Cause::OutOfMemory, false)
    );
}

#[test]
fn a_missing_secret_and_a_volume_that_cannot_be_attached_are_named() {
    let secret =
        json!({"waiting": {"reason": "CreateContainerConfigError", "message": "secret \"hub-token\" not found"}});
    says(
        &first(&actor(container(secret, json!({})))),
        Cause::Preparation,
        &["secret \"hub-token\" not found", "create the secret"],
    );
    let mut evidence = actor(container(
        json!({"waiting": {"reason": "ContainerCreating"}}),
        json!({}),
    ));
    assert_eq!(explain(&evidence, now()), [], "two minutes are normal");
    evidence.events = vec![event(
        "Pod",
        "rloo-actor-0",
        "FailedAttachVolume",
        "Multi-Attach error for volume \"pvc-1\" Volume is already exclusively attached to one node and can't be attached to another",
    )];
    says(
        &first(&evidence),
        Cause::Preparation,
        &["Multi-Attach", "ReadWriteMany"],
    );
}

#[test]
fn a_pod_that_loads_its_model_is_normal_and_one_that_does_so_for_ever_is_not() {
    let running = |started: &str| actor(container(json!({"running": {"startedAt": started}}), json!({})));
    let findings = explain(&running("2026-01-01T02:59:00Z"), now());
    assert_eq!((findings.len(), findings[0].blocks), (1, false), "{findings:?}");
    let mut late = running("2026-01-01T02:30:00Z");
    late.events = vec![event(
        "Pod",
        "rloo-actor-0",
        "Unhealthy",
        "Readiness probe failed: HTTP probe failed with statuscode: 503",
    )];
    says(
        &first(&late),
        Cause::NotReady,
        &[
            "30m after its start",
            "statuscode: 503",
            "`kubectl ppo logs rloo` shows",
        ],
    );
}

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
fn preemption_and_eviction_are_told_from_crashes() {
    let preempted = json!({"phase": "Failed", "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
        "message": "default-scheduler: preempting to accommodate a higher priority pod"}]});
    says(
        &first(&actor(preempted)),
        Cause::Disrupted,
        &["higher priority pod", "priorityClassName"],
    );
    let evicted =
        json!({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: ephemeral-storage."});
    says(
        &first(&actor(evicted)),
        Cause::Disrupted,
        &["low on resource: ephemeral-storage", "resources"],
    );
    // With the condition that the kubelet sets beside it (eviction_manager.go).
    let marked = json!({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory.",
        "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet",
            "message": "The node was low on resource: memory."}]});
    says(
        &first(&actor(marked)),
        Cause::Disrupted,
        &["low on resource: memory", "ask for it in resources"],
    );
    // A node that is short of something takes no more pods: what this one asks for is not why.
    let refused = json!({"phase": "Failed", "reason": "Evicted",
        "message": "Pod was rejected: The node had condition: [DiskPressure]. "});
    let refused = first(&actor(refused));
    says(
        &refused,
        Cause::Disrupted,
        &["DiskPressure", "`kubectl describe node gpu-7`"],
    );
    // It sets none where a volume has grown too large, and kills the containers.
    let mut full = container(json!({"terminated": {"exitCode": 137, "reason": "Error"}}), json!({}));
    full["phase"] = json!("Failed");
    full["reason"] = json!("Evicted");
    full["message"] = json!("Usage of EmptyDir volume \"ppo-tmp\" exceeds the limit \"1Gi\". ");
    says(
        &first(&actor(full)),
        Cause::Disrupted,
        &["Usage of EmptyDir volume \"ppo-tmp\"", "ask for it in resources"],
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
