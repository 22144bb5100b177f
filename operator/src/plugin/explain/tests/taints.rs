//! Advice about taints in the scheduler's words.

use super::*;

/// What helps where these are why no node takes the pod.
fn help(reasons: &str) -> String {
    let words = format!(
        "0/3 nodes are available: {reasons}. preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
    );
    remedy::of_scheduling(&words, &evidence(job("Scheduling")))
}

#[test]
fn nobody_is_told_to_tolerate_a_node_that_is_not_well_or_not_for_pods() {
    let cases = [
        ("node.kubernetes.io/not-ready", "nodes are not ready"),
        ("node.kubernetes.io/unreachable", "nodes do not answer"),
        ("node.kubernetes.io/disk-pressure", "short of disk"),
        ("node.kubernetes.io/memory-pressure", "short of memory"),
        ("node.kubernetes.io/pid-pressure", "short of process ids"),
        (
            "node.kubernetes.io/network-unavailable",
            "network of nodes is not set up",
        ),
        ("node.kubernetes.io/unschedulable", "kubectl uncordon NODE"),
        (
            "node.cloudprovider.kubernetes.io/uninitialized",
            "cloud's controller manager",
        ),
        ("node-role.kubernetes.io/control-plane", "add nodes"),
        ("node-role.kubernetes.io/master", "add nodes"),
    ];
    for (taint, means) in cases {
        let fix = help(&format!("3 node(s) had untolerated taint {{{taint}: }}"));
        assert!(fix.contains(means) && !fix.contains("toleration"), "{taint}: {fix}");
    }
}

#[test]
fn a_taint_that_sets_nodes_apart_is_named_and_those_beside_it_say_how_their_nodes_are() {
    let fix = help(
        "1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, 1 node(s) had untolerated taint {nvidia.com/gpu: \
         present}, 1 node(s) had untolerated taint {node.kubernetes.io/not-ready: }",
    );
    assert!(
        fix.starts_with("give the pods the toleration of nvidia.com/gpu in spec.roles.<role>.template, or remove the taint; nodes are"),
        "{fix}"
    );
    assert!(fix.contains("not ready") && !fix.contains("control-plane"), "{fix}");
}

#[test]
fn nodes_that_are_not_well_are_told_beside_what_the_others_lack() {
    for lack in ["nvidia.com/gpu", "memory"] {
        let fix = help(&format!(
            "1 node(s) had untolerated taint {{node.kubernetes.io/unreachable: }}, 2 Insufficient {lack}"
        ));
        assert!(fix.starts_with("free "), "{fix}");
        assert!(fix.contains("; besides, nodes do not answer"), "{fix}");
    }
}

#[test]
fn the_control_plane_hides_no_other_reason() {
    let affinity = "2 node(s) didn't match Pod's node affinity/selector";
    for taints in ["taint {node-role.kubernetes.io/control-plane: }", "taint(s)"] {
        let fix = help(&format!("1 node(s) had untolerated {taints}, {affinity}"));
        assert!(fix.contains("--show-labels") && !fix.contains("toleration"), "{fix}");
    }
}

#[test]
fn taints_that_a_newer_scheduler_only_counts_are_to_be_looked_up() {
    let fix = help("3 node(s) had untolerated taint(s)");
    assert!(
        fix.contains("`kubectl describe nodes`") && fix.contains("but of none that says that a node is not well"),
        "{fix}"
    );
}

#[test]
fn nodes_that_pods_are_kept_from_are_told_where_the_others_have_no_room() {
    for (kept, helps) in [
        ("untolerated taint {sku: gpu}", "the toleration of sku"),
        ("were unschedulable", "kubectl uncordon NODE"),
        ("didn't match Pod's node affinity/selector", "--show-labels"),
        ("didn't match PersistentVolume's node affinity", "bound to a zone"),
    ] {
        for lack in ["nvidia.com/gpu", "memory"] {
            let kept = match kept.strip_prefix("untolerated") {
                Some(_) => format!("had {kept}"),
                None => kept.to_owned(),
            };
            let fix = help(&format!("2 node(s) {kept}, 3 Insufficient {lack}"));
            assert!(fix.contains(helps), "{kept} {lack}: {fix}");
        }
    }
    let fix = help(
        "1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, 2 Insufficient nvidia.com/gpu",
    );
    assert!(!fix.contains("toleration"), "{fix}");
}
