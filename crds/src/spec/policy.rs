//! `spec.runPolicy`, `spec.scheduling`, `spec.failurePolicy`: how the job lives on a cluster.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RunPolicySpec {
    pub suspend: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub managed_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_deadline_seconds: Option<u64>,
    pub pre_running_deadline_seconds: u64,
    pub progress_deadline_seconds: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<u64>,
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

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
pub enum CleanPodPolicy {
    #[default]
    Running,
    All,
    None,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SchedulingSpec {
    pub gang: Gang,
    pub queue: String,
    pub priority_class_name: String,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Gang {
    #[default]
    Auto,
    None,
    Volcano,
    Coscheduling,
    Kueue,
    Workload,
}

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct FailurePolicySpec {
    pub max_restarts: u32,
    pub rules: Vec<FailureRule>,
}

impl Default for FailurePolicySpec {
    fn default() -> Self {
        Self {
            max_restarts: 3,
            rules: Vec::new(),
        }
    }
}

/// The first rule whose every given matcher matches decides.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FailureRule {
    pub action: FailureAction,
    #[serde(default)]
    pub roles: Vec<Role>,
    #[serde(default)]
    pub exit_codes: Vec<i32>,
    #[serde(default)]
    pub pod_conditions: Vec<String>,
    #[serde(default)]
    pub reasons: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_restarts: Option<u32>,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
pub enum FailureAction {
    RestartPod,
    RestartRole,
    RestartJob,
    FailJob,
    Ignore,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, Hash, PartialOrd, Ord, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Rollout,
    Actor,
    Reference,
    Reward,
}
