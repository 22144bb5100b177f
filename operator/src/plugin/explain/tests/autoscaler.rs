//! What an autoscaler says of pods without a node.

use super::*;

const CLUSTER_AUTOSCALER: &str = "cluster-autoscaler";

/// An autoscaler's word on a pod, said twice.
fn said(pod: &str, who: &str, reason: &str, message: &str, [first, last]: [&str; 2]) -> Event {
    let at = |time: &str| format!("2026-01-01T{time}Z");
    serde_json::from_value(json!({
        "metadata": {}, "involvedObject": {"kind": "Pod", "name": pod}, "type": "Normal", "reason": reason,
        "message": message, "source": {"component": who}, "firstTimestamp": at(first), "lastTimestamp": at(last),
    }))
    .unwrap()
}

fn triggered(pod: &str, at: &str) -> Event {
    let words = "pod triggered scale-up: [{gpus 0->2 (max: 4)}]";
    said(pod, CLUSTER_AUTOSCALER, "TriggeredScaleUp", words, [at, at])
}

fn not_triggered(pod: &str, why: &str, at: &str) -> Event {
    let words = format!("pod didn't trigger scale-up: {why}");
    said(pod, CLUSTER_AUTOSCALER, "NotTriggerScaleUp", &words, [at, at])
}

/// The job's five pods, for which there are no GPUs.
fn waiting(events: impl IntoIterator<Item = Event>) -> Evidence {
    let status = json!({"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": GPUS}]});
    let mut waiting = evidence(job("Scheduling"));
    waiting.pods = pods(&json!({"containers": []}), &status);
    waiting.events = events.into_iter().collect();
    waiting
}

#[test]
fn a_node_that_is_on_its_way_is_told_once_for_all_pods_and_nothing_is_to_be_done() {
    let waiting = waiting([
        triggered("rloo-rollout-0", "02:58:00"),
        triggered("rloo-rollout-1", "02:59:00"),
    ]);
    let findings = explain(&waiting, now());
    assert_eq!((findings.len(), findings[0].pods.len()), (1, 5), "{findings:?}");
    says(
        &findings[0],
        Cause::Unscheduled,
        &[
            "5 Insufficient nvidia.com/gpu",
            "A node is on its way: cluster-autoscaler asked for it 2m ago (pod triggered scale-up: [{gpus 0->2 (max: 4)}])",
            "wait: the scheduler takes the node",
        ],
    );
    assert!(!findings[0].fix.contains("free or add nodes"), "{findings:?}");
}

#[test]
fn a_node_that_will_not_come_is_told_with_the_autoscalers_reason_and_what_it_wants() {
    let cases = [
        ("1 max node group size reached", "maximum size of the node group"),
        ("max total nodes in cluster reached", "--max-nodes-total"),
        ("1 max cluster nvidia.com/gpu limit reached", "--gpu-total"),
        ("2 in backoff after failed scale-up", "cluster-autoscaler-status"),
        (
            "2 Insufficient nvidia.com/gpu, 1 node(s) had untolerated taint {nvidia.com/gpu: present}",
            "toleration of nvidia.com/gpu",
        ),
        ("3 Insufficient nvidia.com/gpu", "as large as the pods ask for"),
        ("", "add a node group"),
    ];
    for (why, help) in cases {
        let finding = first(&waiting([not_triggered("rloo-actor-0", why, "02:59:30")]));
        let words = "No node is coming: cluster-autoscaler said 30s ago: pod didn't trigger scale-up";
        says(&finding, Cause::Unscheduled, &[words, why, help, "free or add nodes"]);
    }
}

#[test]
fn the_newest_word_counts_and_none_of_an_older_pod() {
    let (early, late) = ("02:50:00", "02:59:00");
    let refused = |at: &str| not_triggered("rloo-actor-0", "1 max node group size reached", at);
    let coming = |at: &str| triggered("rloo-actor-0", at);
    let what = |events: [Event; 2]| first(&waiting(events)).what;
    assert!(what([refused(late), coming(early)]).contains("No node is coming"));
    assert!(what([coming(late), refused(early)]).contains("on its way"));
    let mut of_older = [refused(late), coming(early)];
    for event in &mut of_older {
        event.involved_object.uid = Some("of the pod before".into());
    }
    assert_eq!(what(of_older), first(&waiting([])).what);
}

#[test]
fn pods_for_which_a_node_comes_and_those_for_which_none_does_are_two_findings() {
    let findings = explain(
        &waiting([
            triggered("rloo-rollout-0", "02:59:00"),
            not_triggered("rloo-actor-0", "1 max node group size reached", "02:59:00"),
        ]),
        now(),
    );
    let said: Vec<_> = findings
        .iter()
        .map(|it| (it.what.contains("on its way"), it.blocks))
        .collect();
    assert_eq!(said, [(true, true), (false, true)], "{findings:?}");
    assert!(findings[1].pods.contains(&"rloo-actor-0".to_owned()), "{findings:?}");
}

#[test]
fn karpenters_words_are_told_from_those_of_the_scheduler() {
    for who in ["karpenter", "eks-auto-mode/compute"] {
        let words = "Pod should schedule on: nodeclaim/gpus-tn8fg";
        let nominated = said("rloo-actor-0", who, "Nominated", words, ["02:40:00", "02:59:00"]);
        let asked = format!("{who} asked for it 20m ago ({words})");
        says(
            &first(&waiting([nominated])),
            Cause::Unscheduled,
            &[
                asked.as_str(),
                "longer than a node takes: `kubectl describe nodeclaims`",
            ],
        );
    }
    let failed = |who: &str| {
        let words = "Failed to schedule pod, all available instance types exceed limits for nodepool: \"gpus\"";
        said("rloo-actor-0", who, "FailedScheduling", words, ["02:59:00", "02:59:00"])
    };
    says(
        &first(&waiting([failed("karpenter")])),
        Cause::Unscheduled,
        &[
            "karpenter said 60s ago",
            "exceed limits for nodepool",
            "kubectl get nodepools",
        ],
    );
    assert_eq!(first(&waiting([failed("default-scheduler")])), first(&waiting([])));
}
