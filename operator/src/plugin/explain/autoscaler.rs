//! What the cluster's autoscaler says of a pod without a node: that one is on its way, or why none will come.
//!
//! Sources of the words: cluster-autoscaler's `processors/status/eventing_scale_up_processor.go` and
//! `core/scaleup/orchestrator/skippedreasons.go`, GKE's failed scale-ups, Karpenter's `pkg/controllers/provisioning/scheduling`.

use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

use super::evidence::{Evidence, one_line, time};
use super::finding::Finding;
use super::{remedy, taints};
use crate::plugin::age;

/// Seconds in which a node that was asked for is there or given up: cluster-autoscaler's `--max-node-provision-time`, and Karpenter's
/// time to register.
const PROVIDED_WITHIN: i64 = 900;

/// An autoscaler's last word on a pod.
#[derive(Clone, Debug)]
pub struct Word {
    coming: bool,
    who: String,
    said: String,
    /// When it was said last.
    at: Option<Timestamp>,
    /// Since when the node is on its way.
    since: Option<Timestamp>,
}

/// The newest word on the pod. What was said of an earlier pod of the name says nothing of this one.
pub fn word(evidence: &Evidence, pod: &Pod) -> Option<Word> {
    let (name, uid) = (pod.name_any(), &pod.metadata.uid);
    let about = |event: &&Event| {
        let object = &event.involved_object;
        let is_it = object.uid.is_none() || object.uid == *uid;
        object.kind.as_deref() == Some("Pod") && object.name.as_ref() == Some(&name) && is_it
    };
    let words = evidence.events.iter().filter(about).filter_map(Word::of);
    words.max_by_key(|word| word.at)
}

impl Word {
    fn of(event: &Event) -> Option<Self> {
        let who = component(event);
        let coming = match event.reason.as_deref()? {
            "TriggeredScaleUp" => true,
            "NotTriggerScaleUp" | "FailedScaleUp" => false,
            // kube-scheduler has events of the second name, too.
            "Nominated" if is_karpenter(who) => true,
            "FailedScheduling" if is_karpenter(who) => false,
            _ => return None,
        };
        let first = event.first_timestamp.as_ref().map(|time| time.0);
        let at = time(event);
        Some(Self {
            coming,
            who: if who.is_empty() { "the autoscaler" } else { who }.to_owned(),
            said: one_line(event.message.as_deref().unwrap_or_default())
                .trim_end_matches([':', ' '])
                .to_owned(),
            at,
            // Karpenter says it again and again of the same node.
            since: first.filter(|_| is_karpenter(who)).or(at),
        })
    }

    /// Two words on pods that wait for the same: what was said last, and the longest wait.
    fn and(self, other: Self) -> Self {
        let since = self.since.into_iter().chain(other.since).min();
        let newer = if other.at > self.at { other } else { self };
        Self { since, ..newer }
    }

    /// The scheduler's finding with it. Where a node comes, no other advice is needed.
    fn beside(&self, finding: Finding, now: Timestamp) -> Finding {
        let Self { who, said, .. } = self;
        let ago = |time: Option<Timestamp>| {
            time.map_or_else(
                || "some time ago".to_owned(),
                |time| format!("{} ago", age::since(time, now)),
            )
        };
        let (what, fix) = match self.coming {
            true => (
                format!("A node is on its way: {who} asked for it {} ({said}).", ago(self.since)),
                self.while_it_comes(now),
            ),
            false => (
                format!("No node is coming: {who} said {}: {said}.", ago(self.at)),
                format!("{}; or {}", of_refusal(said), finding.fix),
            ),
        };
        Finding {
            what: format!("{} {what}", finding.what),
            fix,
            ..finding
        }
    }

    fn while_it_comes(&self, now: Timestamp) -> String {
        let late = self
            .since
            .is_some_and(|since| age::seconds_since(since, now) > PROVIDED_WITHIN);
        match (late, is_karpenter(&self.who)) {
            (false, _) => {
                "wait: the scheduler takes the node once it is ready; one with GPUs takes minutes to start".into()
            }
            (true, true) => {
                "that is longer than a node takes: `kubectl describe nodeclaims` says what it waits for".into()
            }
            (true, false) => format!("that is longer than a node takes: {STATUS}"),
        }
    }
}

const STATUS: &str = "`kubectl describe configmap cluster-autoscaler-status -n kube-system`, and the cloud's own log, say whether it has \
                      such machines and quota for them";

/// What lets an autoscaler add a node after all.
fn of_refusal(said: &str) -> String {
    const BOUNDS: [(&str, &str); 4] = [
        (
            "max node group size reached",
            "raise the maximum size of the node group that has such nodes",
        ),
        (
            "max total nodes in cluster reached",
            "raise the autoscaler's own limit of nodes (its flag --max-nodes-total)",
        ),
        (
            "max cluster ",
            "raise the autoscaler's own limit of what is named (its flags --cores-total, --memory-total and --gpu-total)",
        ),
        (
            "exceed limits for nodepool",
            "raise the limits of the NodePool that is named: `kubectl get nodepools`",
        ),
    ];
    const SHAPES: [(&str, &str); 2] = [
        (
            "did not tolerate ",
            "give the pods the toleration of the taint that is named, in spec.roles.<role>.template",
        ),
        (
            "Insufficient ",
            "add a node group whose nodes are as large as the pods ask for",
        ),
    ];
    if said.contains("in backoff after failed scale-up") || said.starts_with("Node scale up in zones") {
        return format!("wait for another try of the autoscaler: {STATUS}");
    }
    remedy::known(&BOUNDS, said)
        .or_else(|| taints::of(said).advice())
        .or_else(|| remedy::known(&SHAPES, said))
        .unwrap_or_else(|| "add a node group (of Karpenter, a NodePool) whose nodes are as the pods ask for".into())
}

/// Findings of pods without a node, each with the word on it. Pods that wait for the same are told once, with the newest word.
pub fn tell(waiting: impl Iterator<Item = (Finding, Option<Word>)>, now: Timestamp) -> Vec<Finding> {
    let mut groups: Vec<(Finding, Word)> = Vec::new();
    let mut silent = Vec::new();
    for (finding, word) in waiting {
        let Some(word) = word else {
            silent.push(finding);
            continue;
        };
        let same = |(other, said): &&mut (Finding, Word)| other.says_as(&finding) && said.coming == word.coming;
        match groups.iter_mut().find(same) {
            Some((other, said)) => {
                other.pods.extend(finding.pods);
                *said = said.clone().and(word);
            }
            None => groups.push((finding, word)),
        }
    }
    // Events are read of some pods only: what was said of those holds for others that wait for the same.
    let mut alone = Vec::new();
    for finding in silent {
        match groups.iter_mut().find(|(other, _)| other.says_as(&finding)) {
            Some((other, _)) => other.pods.extend(finding.pods),
            None => alone.push(finding),
        }
    }
    let told = groups.into_iter().map(|(finding, word)| word.beside(finding, now));
    told.chain(alone).collect()
}

fn component(event: &Event) -> &str {
    let source = event.source.as_ref().and_then(|source| source.component.as_deref());
    let source = source.filter(|name| !name.is_empty());
    source.or(event.reporting_component.as_deref()).unwrap_or_default()
}

/// Karpenter, or EKS' own of it (`eks-auto-mode/compute`).
fn is_karpenter(component: &str) -> bool {
    component.contains("karpenter") || component.starts_with("eks-auto-mode")
}
