//! `spec.runPolicy`, `spec.scheduling`, `spec.failurePolicy`: how the job lives on a cluster.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Suspension, deadlines and clean-up. All of it but `managedBy` may change while the job runs.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RunPolicySpec {
    /// Save a checkpoint, delete the pods and wait; false goes on from the checkpoint. Queues such as Kueue set it. Default
    /// false. The field of the same name in a Kubernetes Job.
    pub suspend: bool,
    /// Controller that reconciles the job: `ppojob.dev/operator` or, for dispatch to other clusters,
    /// `kueue.x-k8s.io/multikueue`. Fixed at creation. Default: this operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub managed_by: Option<String>,
    /// Seconds the job may run before it fails, time spent suspended not counted. 1 to 2147483647. Default: no limit. The
    /// field of the same name in a Kubernetes Job.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 2_147_483_647i64))]
    pub active_deadline_seconds: Option<u64>,
    /// Seconds until all roles are ready, from the moment at which the job may have its pods (it is made or resumed, and no queue holds it) or
    /// from the loss of one that the run needs, whose `terminationGracePeriodSeconds` are part of them; then the job fails with the scheduler's own words. Pods wait as long for what they load and for each other, or half an hour where that is longer.
    /// 1 to 2147483647. Default 1800. The field of the same name in KubeRay's RayJob.
    #[schemars(range(min = 1, max = 2_147_483_647i64))]
    pub pre_running_deadline_seconds: u64,
    /// Seconds after which the run counts as hung and is restarted, without a finished stage or a part of one: an engine's answer to a prompt,
    /// a forward pass, a micro-batch of an update. By the actor's own report; one that cannot be read is no reason: an actor that answers
    /// nobody is ended by its liveness probe. 1 to 2147483647. Default 1800.
    #[schemars(range(min = 1, max = 2_147_483_647i64))]
    pub progress_deadline_seconds: u64,
    /// Seconds after the end at which the job object deletes itself. 0 to 2147483647. Default: it stays. The field of the same
    /// name in a Kubernetes Job.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_147_483_647i64))]
    pub ttl_seconds_after_finished: Option<u64>,
    /// Pods deleted at the end: `Running` (finished pods stay for their logs), `All` or `None`. Default Running. The field of
    /// the same name in Kubeflow's MPIJob.
    pub clean_pod_policy: CleanPodPolicy,
}

impl Default for RunPolicySpec {
    fn default() -> Self {
        Self {
            suspend: false,
            managed_by: None,
            active_deadline_seconds: None,
            pre_running_deadline_seconds: 1800,
            progress_deadline_seconds: 1800,
            ttl_seconds_after_finished: None,
            clean_pod_policy: CleanPodPolicy::Running,
        }
    }
}

/// Pods deleted when the job has ended.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
pub enum CleanPodPolicy {
    /// Those still running; finished ones stay for their logs.
    #[default]
    Running,
    /// All of them.
    All,
    /// None of them.
    None,
}

/// Gang scheduling, queue and priority.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SchedulingSpec {
    /// Who places all pods of the job at once or none: `auto` (the first that the cluster has of kueue, which needs a
    /// `queue`, volcano, coscheduling and workload; else none), `none`, `volcano`, `coscheduling` (scheduler-plugins), `kueue`, `workload` (Kubernetes' own: 1.36 with the feature gates GenericWorkload and GangScheduling, or later). It
    /// changes only while the job wants no pods: suspended, or waiting in a queue. Default auto.
    pub gang: Gang,
    /// Queue of Volcano, or Kueue's LocalQueue of the namespace. At most 253 characters. It changes only while the job wants no pods. Default
    /// empty: Volcano's queue `default`; `gang: auto` passes Kueue over, and under `gang: kueue` the job waits until one is named.
    #[schemars(length(max = 253))]
    pub queue: String,
    /// PriorityClass of the pods; under Kueue its WorkloadPriorityClass of that name, where there is one. At most 253 characters. Default empty: the
    /// cluster's default; under Kueue its WorkloadPriorityClass `default`, where there is one.
    #[schemars(length(max = 253))]
    pub priority_class_name: String,
}

/// Who places all pods of the job at once or none.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Gang {
    /// The first that the cluster has of Kueue, which needs a queue, Volcano, coscheduling and Kubernetes' own; else nobody.
    #[default]
    Auto,
    /// Nobody: pods are placed one by one.
    None,
    /// Volcano.
    Volcano,
    /// The coscheduling plugin of scheduler-plugins.
    Coscheduling,
    /// Kueue.
    Kueue,
    /// Kubernetes' own Workload API.
    Workload,
}

/// What happens when a pod fails.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct FailurePolicySpec {
    /// Restarts, of pods, roles or the job, before the job fails. Pods of a role that failed together restart together and count once. Not counted are those that the cluster causes (a drain, a preemption, a
    /// lost node) and no rule decides, those that a person asks for, and those of a rule with `Ignore`. 0 to 10000. Default 3. JobSet `failurePolicy.maxRestarts`.
    #[schemars(range(min = 0, max = 10_000))]
    pub max_restarts: u32,
    /// Restarts of one role before the job fails, whatever is left of `maxRestarts`. Default: `maxRestarts` for each.
    pub max_restarts_per_role: RoleBudgets,
    /// Rules tried in order; the first whose every given matcher matches decides. At most 32. Default none: an actor's failure
    /// restarts the actor role, another role's failure restarts the pod.
    #[schemars(length(max = 32))]
    pub rules: Vec<FailureRule>,
}

impl Default for FailurePolicySpec {
    fn default() -> Self {
        Self {
            max_restarts: 3,
            max_restarts_per_role: RoleBudgets::default(),
            rules: Vec::new(),
        }
    }
}

/// A budget of restarts for each role.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RoleBudgets {
    /// Restarts of rollout engines. 0 to 10000. Default: `maxRestarts`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000))]
    pub rollout: Option<u32>,
    /// Restarts of the actor. 0 to 10000. Default: `maxRestarts`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000))]
    pub actor: Option<u32>,
    /// Restarts of the reference. 0 to 10000. Default: `maxRestarts`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000))]
    pub reference: Option<u32>,
    /// Restarts of the reward. 0 to 10000. Default: `maxRestarts`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000))]
    pub reward: Option<u32>,
}

impl RoleBudgets {
    /// The role's own budget, where it has one.
    pub fn of(&self, role: Role) -> Option<u32> {
        match role {
            Role::Rollout => self.rollout,
            Role::Actor => self.actor,
            Role::Reference => self.reference,
            Role::Reward => self.reward,
        }
    }
}

/// One rule. A matcher left empty matches everything.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FailureRule {
    /// What to do: `RestartPod`, `RestartRole`, `RestartJob`, `FailJob`, or `Ignore` (restart the pod, counted by the rule's own
    /// `maxRestarts` alone).
    pub action: FailureAction,
    /// Roles the rule is for: `rollout`, `actor`, `reference`, `reward`. Default: all.
    #[serde(default)]
    #[schemars(length(max = 4))]
    pub roles: Vec<Role>,
    /// Exit codes of the failed container. 0 to 255, at most 64. Default: any. Kubernetes Job `onExitCodes`.
    #[serde(default)]
    #[schemars(length(max = 64), inner(range(min = 0, max = 255)))]
    pub exit_codes: Vec<i32>,
    /// Conditions of the pod that are True, such as `DisruptionTarget`. At most 16. Default: any. Job `onPodConditions`.
    #[serde(default)]
    #[schemars(length(max = 16), inner(length(min = 1, max = 316)))]
    pub pod_conditions: Vec<String>,
    /// Reasons of the pod or its container, such as `OOMKilled` or `Evicted`; of an actor that ended by itself its own word (`RewardFailed`,
    /// `DataError`, `Diverged`, `RankLost`, `InternalError`) in place of the kubelet's `Error`; `Hung` of one without progress, `Deleted` of a pod
    /// that somebody deleted. At most 16. Default: any.
    #[serde(default)]
    #[schemars(length(max = 16), inner(length(min = 1, max = 256)))]
    pub reasons: Vec<String>,
    /// Restarts by this rule before it fails the job. 0 to 10000. Default: only the policy's `maxRestarts` counts, and for `Ignore`
    /// nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000))]
    pub max_restarts: Option<u32>,
}

/// What a failure leads to.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
pub enum FailureAction {
    /// Replace the failed pod.
    RestartPod,
    /// Replace all pods of its role.
    RestartRole,
    /// Replace all pods.
    RestartJob,
    /// End the job.
    FailJob,
    /// Replace the failed pod; only the rule's own budget counts it.
    Ignore,
}

/// One of the four roles.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, Hash, PartialOrd, Ord, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Generates.
    Rollout,
    /// Learns, with its critic.
    Actor,
    /// Frozen; the KL is measured against it.
    Reference,
    /// Scores.
    Reward,
}

impl Role {
    /// All roles, in the order in which they are shown.
    pub const ALL: [Self; 4] = [Self::Rollout, Self::Actor, Self::Reference, Self::Reward];

    /// The word used in manifests, pod names, labels and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rollout => "rollout",
            Self::Actor => "actor",
            Self::Reference => "reference",
            Self::Reward => "reward",
        }
    }
}
