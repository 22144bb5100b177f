//! What a pod's failure leads to: the user's rules in order, then the defaults. Pure.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use ppo_crds::report::{Reason, exit_code};
use ppo_crds::spec::{FailureAction, FailurePolicySpec, FailureRule, Role};

use crate::world::pod::{Life, OUT_OF_MEMORY, PodView};

/// Why a pod has to be replaced, or the job ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// Role of the pod.
    pub role: Role,
    /// Its index.
    pub index: u32,
    /// Its name.
    pub pod: String,
    /// Exit code of the container that failed.
    pub exit_code: Option<i32>,
    /// Whether that is `ppo-worker`'s. Another program means something else by the same number.
    pub of_worker: bool,
    /// One word, such as OOMKilled, Deleted, Diverged or Hung.
    pub reason: String,
    /// A sentence.
    pub message: String,
    /// Its conditions that are True, but for those that every healthy pod has.
    pub conditions: Vec<String>,
    /// Whether the cluster took it away (preemption, a lost or rebooted node, a deletion) or never ran it, or it stopped because it was asked to.
    pub disrupted: bool,
    /// When the container ended.
    pub ended_at: Option<Timestamp>,
    /// Before this time it is not replaced though it does not count: see [`SHORTEST_LIFE`].
    pub not_before: Option<Timestamp>,
}

impl Failure {
    /// Whether it is an actor's rank that ended because another was lost.
    pub fn is_of_lost_rank(&self) -> bool {
        self.reason == format!("{:?}", Reason::RankLost)
    }
}

/// A pod that replaced another and fails within this time is followed by the next one no sooner: what does not count has no end, such as
/// a crash that a rule ignores.
const SHORTEST_LIFE: SignedDuration = SignedDuration::from_secs(10);

/// Condition of pods that the cluster takes away.
const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// Reasons of pods that the kubelet did not admit: their node had not any more what the scheduler believed, or not on one NUMA node, or is
/// leaving.
const REJECTED: [&str; 4] = [
    "UnexpectedAdmissionError",
    "TopologyAffinityError",
    "NodeAffinity",
    "NodeShutdown",
];

/// With the resource behind it, such as `OutOfcpu`, another of them.
const REJECTED_WITHOUT: &str = "OutOf";

/// How the message of such a pod begins. Of a node that is short of memory or disk the reason is the same as of a pod that ran there.
pub const NOT_ADMITTED: &str = "Pod was rejected: ";

/// Whether no container of it ever ran, as its node refused it. The kubelet sets no condition then (`rejectPod` of kubelet.go).
fn rejected(pod: &PodView) -> bool {
    let refused = REJECTED.contains(&pod.reason.as_str()) || pod.reason.starts_with(REJECTED_WITHOUT);
    let under_pressure = pod.reason == "Evicted" && pod.message.starts_with(NOT_ADMITTED);
    pod.life == Life::Failed && pod.exit_code.is_none() && (refused || under_pressure)
}

/// Reasons of containers that their node has lost, as when it was rebooted: of containerd (`unknownExitReason` of its CRI plugin, with exit
/// code 255), and of a kubelet that finds no such container any more (137).
const LOST_BY_NODE: [&str; 2] = ["Unknown", "ContainerStatusUnknown"];

/// How `pod`, which should be running, has failed. None: it has not.
pub fn failure_of(pod: &PodView) -> Option<Failure> {
    let deleted = pod.deleting_since.is_some();
    // The actor alone ends by itself; that is success, which is looked for elsewhere.
    let exited = pod.life == Life::Succeeded && pod.role != Role::Actor;
    if pod.life != Life::Failed && !exited && !deleted {
        return None;
    }
    let asked = pod.of_worker && pod.exit_code == Some(exit_code::INTERRUPTED);
    let taken = pod.conditions.iter().any(|kind| kind == DISRUPTION_TARGET);
    // A process that outlives one which was killed for memory does not know of that.
    let of_memory = pod.reason == OUT_OF_MEMORY;
    let known = pod
        .outcome
        .as_ref()
        .filter(|outcome| outcome.reason != Reason::Other && !of_memory);
    let reason = match known {
        Some(outcome) if pod.life == Life::Failed => format!("{:?}", outcome.reason),
        _ if pod.life == Life::Failed || exited => pod.reason.clone(),
        _ => "Deleted".into(),
    };
    let lost = pod.life == Life::Failed && LOST_BY_NODE.contains(&reason.as_str());
    let message = match pod.life {
        _ if lost => format!("its node lost the container, as when it is rebooted ({})", pod.message),
        Life::Failed | Life::Succeeded => pod.message.clone(),
        _ => "the pod was deleted, by its node's drain or loss, by preemption or by hand".into(),
    };
    Some(Failure {
        role: pod.role,
        index: pod.index,
        pod: pod.name.clone(),
        exit_code: pod.exit_code,
        of_worker: pod.of_worker,
        reason,
        message,
        conditions: pod.conditions.clone(),
        disrupted: !pod.failed_by_itself && (deleted || asked || taken || lost || rejected(pod)),
        ended_at: pod.ended_at,
        not_before: pod
            .created
            .filter(|_| pod.attempt > 1 && (pod.failed_by_itself || !deleted))
            .and_then(|created| created.checked_add(SHORTEST_LIFE).ok()),
    })
}

/// Whether `pod` has failed, and was not taken away, lost or asked to stop.
pub fn fails_by_itself(pod: &PodView) -> bool {
    failure_of(pod).is_some_and(|failure| !failure.disrupted)
}

/// What to do about a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The action.
    pub action: FailureAction,
    /// Whether it uses up the budgets.
    pub counted: bool,
    /// Index of the rule that decided; None: a default.
    pub rule: Option<usize>,
}

/// The first rule that matches, else the default.
pub fn judge(failure: &Failure, policy: &FailurePolicySpec) -> Verdict {
    let rule = policy.rules.iter().position(|rule| matches(rule, failure));
    match rule {
        Some(index) => Verdict {
            action: policy.rules[index].action,
            counted: policy.rules[index].action != FailureAction::Ignore,
            rule: Some(index),
        },
        None => Verdict {
            action: default_action(failure),
            counted: !failure.disrupted,
            rule: None,
        },
    }
}

fn matches(rule: &FailureRule, failure: &Failure) -> bool {
    let any_code = rule.exit_codes.is_empty();
    let any_condition = rule.pod_conditions.is_empty();
    (rule.roles.is_empty() || rule.roles.contains(&failure.role))
        && (any_code || failure.exit_code.is_some_and(|code| rule.exit_codes.contains(&code)))
        && (any_condition || failure.conditions.iter().any(|kind| rule.pod_conditions.contains(kind)))
        && (rule.reasons.is_empty() || rule.reasons.contains(&failure.reason))
}

/// A rollout, reference or reward pod restarts alone; an actor rank takes the actor role with it, since its ranks hold one
/// state; what would end the same way again fails the job.
fn default_action(failure: &Failure) -> FailureAction {
    let hopeless = [exit_code::BAD_CONFIGURATION, exit_code::DIVERGED];
    let reasons = [Reason::Diverged, Reason::DataError].map(|reason| format!("{reason:?}"));
    if failure.disrupted {
        return restart(failure.role);
    }
    let said = failure.exit_code.filter(|_| failure.of_worker);
    if said.is_some_and(|code| hopeless.contains(&code)) || reasons.contains(&failure.reason) {
        return FailureAction::FailJob;
    }
    restart(failure.role)
}

fn restart(role: Role) -> FailureAction {
    match role {
        Role::Actor => FailureAction::RestartRole,
        _ => FailureAction::RestartPod,
    }
}

#[cfg(test)]
mod tests {
    use ppo_crds::spec::FailureAction::{FailJob, RestartPod, RestartRole};
    use serde_json::{Value, json};

    use super::*;

    /// How a pod of this status has failed.
    fn failure(role: &str, status: Value) -> Failure {
        let pod = json!({
            "metadata": {"name": "a-0", "labels": {"ppojob.dev/role": role, "ppojob.dev/index": "0"}},
            "spec": {"nodeName": "one"}, "status": status,
        });
        let pod = PodView::of(&serde_json::from_value(pod).unwrap()).unwrap();
        failure_of(&pod).unwrap()
    }

    /// What that leads to without rules, and whether it counts.
    fn judged(role: &str, status: Value) -> (FailureAction, bool) {
        let verdict = judge(&failure(role, status), &FailurePolicySpec::default());
        (verdict.action, verdict.counted)
    }

    /// A pod of which this container ended.
    fn ended(container: &str, exit_code: i32) -> Value {
        json!({"phase": "Running", "containerStatuses": [
            {"name": container, "image": "i", "imageID": "", "ready": false, "restartCount": 0,
             "state": {"terminated": {"exitCode": exit_code}}},
        ]})
    }

    #[test]
    fn an_exit_code_means_what_the_worker_means_by_it_only_where_it_is_the_workers() {
        for code in [exit_code::BAD_CONFIGURATION, exit_code::DIVERGED] {
            assert_eq!(judged("actor", ended("worker", code)), (FailJob, true));
            assert_eq!(judged("actor", ended("copy-model", code)), (RestartRole, true));
            assert_eq!(judged("rollout", ended("vllm", code)), (RestartPod, true));
        }
        let asked = exit_code::INTERRUPTED;
        assert_eq!(judged("actor", ended("worker", asked)), (RestartRole, false));
        assert_eq!(judged("actor", ended("logs", asked)), (RestartRole, true));
    }

    #[test]
    fn a_rule_is_for_the_conditions_and_the_roles_that_it_names_and_for_all_where_it_names_none() {
        let decides = |rule: Value, role: &str, condition: &str, is: &str| {
            let mut status = ended("worker", 1);
            status["conditions"] = json!([{"type": condition, "status": is}]);
            let policy: FailurePolicySpec = serde_json::from_value(json!({"rules": [rule]})).unwrap();
            judge(&failure(role, status), &policy).rule == Some(0)
        };
        let any = json!({"action": "FailJob"});
        assert!(decides(any, "rollout", "Other", "True"));

        let disrupted = json!({"action": "FailJob", "podConditions": ["Mine", "DisruptionTarget"]});
        assert!(decides(disrupted.clone(), "rollout", "DisruptionTarget", "True"));
        assert!(!decides(disrupted.clone(), "rollout", "DisruptionTarget", "False"));
        assert!(!decides(disrupted, "rollout", "Other", "True"));

        let of_roles = json!({"action": "FailJob", "roles": ["actor", "reward"]});
        for (role, named) in [
            ("actor", true),
            ("reward", true),
            ("rollout", false),
            ("reference", false),
        ] {
            assert_eq!(decides(of_roles.clone(), role, "Other", "True"), named, "{role}");
        }
    }

    #[test]
    fn a_pod_whose_container_its_node_has_lost_is_replaced_and_not_counted() {
        let lost = |reason: &str, exit_code: i32| {
            let mut status = ended("worker", exit_code);
            status["phase"] = json!("Failed");
            status["containerStatuses"][0]["state"]["terminated"]["reason"] = json!(reason);
            status
        };
        for (reason, exit_code) in [("Unknown", 255), ("ContainerStatusUnknown", 137)] {
            assert_eq!(
                judged("actor", lost(reason, exit_code)),
                (RestartRole, false),
                "{reason}"
            );
        }
        assert_eq!(judged("actor", lost("Error", 255)), (RestartRole, true));
        // The kubelet evicted it for what it used.
        let mut evicted = lost("ContainerStatusUnknown", 137);
        evicted["reason"] = json!("Evicted");
        assert_eq!(judged("actor", evicted), (RestartRole, true));
    }

    #[test]
    fn a_pod_that_its_node_refused_to_run_is_replaced_and_not_counted() {
        let refused = |reason: &str| json!({"phase": "Failed", "reason": reason, "message": "Pod was rejected: ..."});
        for reason in [
            "OutOfnvidia.com/gpu",
            "UnexpectedAdmissionError",
            "TopologyAffinityError",
            "NodeAffinity",
            "NodeShutdown",
        ] {
            assert_eq!(judged("rollout", refused(reason)), (RestartPod, false), "{reason}");
        }
        let mut pressed = refused("Evicted");
        pressed["message"] = json!("Pod was rejected: The node had condition: [DiskPressure]. ");
        assert_eq!(judged("rollout", pressed), (RestartPod, false));
        // What ran, and used more than it may, is the job's own doing.
        let mut evicted = ended("worker", 137);
        (evicted["phase"], evicted["reason"]) = (json!("Failed"), json!("Evicted"));
        assert_eq!(judged("rollout", evicted), (RestartPod, true));
    }
}
