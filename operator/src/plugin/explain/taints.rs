//! Taints that keep pods from nodes, in a scheduler's words: which of them a pod may tolerate, and what the others say of their nodes.
//!
//! Sources of the words: `pkg/scheduler/framework/plugins/tainttoleration` names one taint of each node; newer ones only count them
//! (`untolerated taint(s)`). Of the taints: `staging/src/k8s.io/api/core/v1/well_known_taints.go` and `staging/src/k8s.io/cloud-provider/api`,
//! cluster-autoscaler's `utils/taints`, Karpenter's `pkg/apis/v1/taints.go`.

use super::edited::TEMPLATE;

/// What helps where nodes are cordoned.
pub const CORDONED: &str = "nodes are cordoned: `kubectl uncordon NODE` when they are well again";

const REMOVED: &str = "nodes are being removed by the cluster's autoscaler";

/// Taints that say how a node is, and what they say. A pod that tolerates one starts where nothing can run.
const STATES: [(&str, &str); 13] = [
    (
        "node.kubernetes.io/not-ready",
        "nodes are not ready: `kubectl get nodes` names them, `kubectl describe node NODE` says why",
    ),
    (
        "node.kubernetes.io/unreachable",
        "nodes do not answer: are their machines and their network up? `kubectl get nodes` names them",
    ),
    (
        "node.kubernetes.io/disk-pressure",
        "nodes are short of disk: free space on them",
    ),
    (
        "node.kubernetes.io/memory-pressure",
        "nodes are short of memory: free some of it",
    ),
    (
        "node.kubernetes.io/pid-pressure",
        "nodes are short of process ids: too many processes run on them",
    ),
    (
        "node.kubernetes.io/network-unavailable",
        "the network of nodes is not set up: see the pods of the cluster's network plugin on them",
    ),
    ("node.kubernetes.io/unschedulable", CORDONED),
    (
        "node.kubernetes.io/out-of-service",
        "nodes were marked as out of service: take the taint away once they are well again",
    ),
    (
        "node.cloudprovider.kubernetes.io/uninitialized",
        "nodes are new, and the cloud's controller manager has not set them up: wait, or see its log",
    ),
    (
        "node.cloudprovider.kubernetes.io/shutdown",
        "nodes are shut down: start their machines",
    ),
    ("ToBeDeletedByClusterAutoscaler", REMOVED),
    ("karpenter.sh/disrupted", REMOVED),
    (
        "karpenter.sh/unregistered",
        "nodes are new, and Karpenter has not registered them yet: wait",
    ),
];

/// Nodes that are the cluster's own.
const CONTROL_PLANE: [&str; 2] = [
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/master",
];

/// Taints in a scheduler's words.
pub struct Taints<'a> {
    tolerable: Vec<&'a str>,
    states: Vec<&'static str>,
    control_plane: bool,
    unnamed: bool,
}

/// The taints that these words name, each once.
pub fn of(words: &str) -> Taints<'_> {
    let mut taints = Taints {
        tolerable: Vec::new(),
        states: Vec::new(),
        control_plane: false,
        unnamed: words.contains("untolerated taint(s)"),
    };
    let named = words.split("taint {").skip(1).filter_map(|rest| rest.split_once('}'));
    for (taint, _) in named {
        let key = taint.split_once(':').map_or(taint, |(key, _)| key);
        let state = STATES.iter().find(|(known, _)| *known == key);
        match state {
            _ if CONTROL_PLANE.contains(&key) => taints.control_plane = true,
            Some(&(_, says)) if !taints.states.contains(&says) => taints.states.push(says),
            None if !taints.tolerable.contains(&key) => taints.tolerable.push(key),
            _ => {}
        }
    }
    taints
}

impl Taints<'_> {
    /// What would help; None where they are of the control plane alone, or have no names.
    pub fn advice(&self) -> Option<String> {
        let tolerable = self.toleration();
        let states = self.states.iter().map(|says| (*says).to_owned());
        let parts: Vec<String> = tolerable.into_iter().chain(states).collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    /// Of those that set nodes apart.
    pub fn toleration(&self) -> Option<String> {
        let keys = self.tolerable.join(", ");
        let advice = || format!("give the pods the toleration of {keys} in {TEMPLATE}, or remove the taint");
        (!keys.is_empty()).then(advice)
    }

    /// Advice on something else, and how nodes are, which may be why.
    pub fn beside(&self, advice: String) -> String {
        let states = self.states.iter();
        states.fold(advice, |said, says| format!("{said}; besides, {says}"))
    }

    /// What would help where nothing else in the words says more.
    pub fn at_last(&self) -> Option<String> {
        if self.unnamed {
            return Some(format!(
                "nodes have taints that the pods do not tolerate: `kubectl describe nodes` lists them; give the pods in {TEMPLATE} the \
                 toleration of one that sets GPUs or the like apart, but of none that says that a node is not well, cordoned or of the \
                 control plane"
            ));
        }
        let only = "the nodes that are left are of the control plane, which is not for such pods: add nodes";
        self.control_plane.then(|| only.to_owned())
    }
}
