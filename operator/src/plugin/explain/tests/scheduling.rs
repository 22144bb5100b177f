//! Pods that no node takes, and gangs that are not complete.

use super::*;

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
fn the_gpus_that_a_pod_asks_for_are_those_of_all_its_containers() {
    let mut waiting = evidence(job("Scheduling"));
    let container = |resources: Value| json!({"name": "c", "resources": resources});
    let containers = [
        json!({"limits": {"nvidia.com/gpu": "8"}, "requests": {"nvidia.com/gpu": "8"}}),
        json!({"requests": {"nvidia.com/gpu": "1"}}),
        json!({}),
    ];
    let spec = json!({"containers": containers.map(container)});
    let status = json!({"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": GPUS}]});
    waiting.pods = pods(&spec, &status);
    says(&first(&waiting), Cause::Unscheduled, &["up to 9 on one node"]);
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
            r#"0/3 nodes are available: persistentvolumeclaim "ckpts" is being deleted."#,
            "until the claim is gone",
        ),
        (
            "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 node(s) didn't match PersistentVolume's node affinity.",
            "bound to a zone",
        ),
        (
            "0/3 nodes are available: 3 node(s) didn't find available persistent volumes to bind.",
            "kubectl describe pvc",
        ),
        (
            "0/3 nodes are available: 3 node(s) exceed max volume count.",
            "add nodes",
        ),
        (
            "0/3 nodes are available: 3 node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode.",
            "has to end first",
        ),
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
