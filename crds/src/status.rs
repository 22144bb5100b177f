//! `status`: what the operator observed. Written by the operator alone; every field can be computed again.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spec::{Gang, Role};

/// What the operator last observed of the job.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PpoJobStatus {
    /// The `metadata.generation` this status is about; older than the object's while a change waits to be handled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Where the job is in its life: Pending, Queued, Scheduling, Initializing, Running, Restarting, Suspended, Succeeded or
    /// Failed. A summary for people; programs read `conditions`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Phase")]
    pub phase: Option<Phase>,
    /// Conditions, one per type: Accepted, Suspended, GangScheduled, RolesReady, Progressing, Complete, Failed.
    pub conditions: Vec<Condition>,
    /// One entry per role that the job has.
    pub roles: Vec<RoleStatus>,
    /// How far training is, as the actor last reported. Absent before the first report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Ready pods of wanted pods over all roles, such as `5/6`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<String>,
    /// Restarts of pods, roles and job that count towards `failurePolicy.maxRestarts`.
    pub restarts: u32,
    /// How many times the whole job has been started; fences processes of earlier attempts out. Starts at 1.
    pub attempt: u32,
    /// Restarts by each rule of `failurePolicy.rules`, for the rules' own budgets. Rules that never matched are left out.
    pub rule_restarts: Vec<RuleRestarts>,
    /// Rollout engines that exist: what the scale subresource reports.
    pub rollout_replicas: u32,
    /// Label selector of the rollout engines' pods: what autoscalers read through the scale subresource.
    pub rollout_selector: String,
    /// The last value of the annotation `ppojob.dev/restart` that was acted on.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub restart_request: String,
    /// Who places its pods: what `scheduling.gang` came to when the job last began to want them. A gang scheduler that is installed
    /// later is for jobs that begin, or resume, later.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Gang")]
    pub gang: Option<Gang>,
    /// Since when the job has wanted its pods: its creation, or its last resumption. Absent while it is suspended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_since: Option<Time>,
    /// Seconds it was active before that, for `runPolicy.activeDeadlineSeconds`.
    pub active_seconds: u64,
    /// When all roles were first ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When the job succeeded or failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
}

/// Where a job is in its life.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, Hash, JsonSchema)]
pub enum Phase {
    /// Accepted; nothing exists yet.
    #[default]
    Pending,
    /// Waits for quota.
    Queued,
    /// Pods exist and wait for nodes.
    Scheduling,
    /// Pods start and load models.
    Initializing,
    /// Steps are made.
    Running,
    /// A pod, a role or the job is being replaced.
    Restarting,
    /// No pods, by `runPolicy.suspend`.
    Suspended,
    /// All steps made.
    Succeeded,
    /// Ended without success; the condition Failed says why.
    Failed,
}

impl Phase {
    /// Whether the job has ended.
    pub fn is_finished(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// One role's pods.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RoleStatus {
    /// The role: rollout, actor, reference or reward.
    pub name: Role,
    /// Pods wanted.
    pub desired: u32,
    /// Pods that passed their readiness probe.
    pub ready: u32,
    /// Restarts of the role's pods that count towards its budget.
    #[serde(default)]
    pub restarts: u32,
    /// How many times the role has been started as a whole; passed to its pods. Starts at 1.
    #[serde(default)]
    pub attempt: u32,
    /// Pods that were restarted alone since, each with an attempt of its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pod_attempts: Vec<PodAttempt>,
    /// When a restart of the role was last counted: the next one of a role that keeps failing waits longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_restart_time: Option<Time>,
    /// Policy version that all of the role's ready pods hold. Absent for roles without the policy's weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_version: Option<u64>,
    /// One word on why the role is not ready, such as Unschedulable or CrashLoopBackOff. Empty when it is.
    #[serde(default)]
    pub reason: String,
    /// The same as a sentence, in the words of the scheduler, the kubelet or the process.
    #[serde(default)]
    pub message: String,
}

/// A pod that was restarted alone.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodAttempt {
    /// The pod's index in its role.
    pub index: u32,
    /// Its attempt; older pods of the same name are deleted.
    pub attempt: u32,
}

/// Restarts by one rule of the failure policy.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RuleRestarts {
    /// Position of the rule in `failurePolicy.rules`, from 0.
    pub rule: u32,
    /// Fingerprint of what the rule says but for its `maxRestarts`: rules that are changed begin to count anew, and rules that only
    /// move keep their counts.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fingerprint: String,
    /// Restarts it led to.
    pub restarts: u32,
}

impl RoleStatus {
    /// A role that was started once and of which nothing is known yet.
    pub fn started(role: Role) -> Self {
        Self {
            name: role,
            desired: 0,
            ready: 0,
            restarts: 0,
            attempt: 1,
            pod_attempts: Vec::new(),
            last_restart_time: None,
            policy_version: None,
            reason: String::new(),
            message: String::new(),
        }
    }

    /// Attempt that the pod of this index should have.
    pub fn attempt_of(&self, index: u32) -> u32 {
        let alone = self.pod_attempts.iter().find(|pod| pod.index == index);
        alone.map_or(self.attempt, |pod| pod.attempt).max(1)
    }

    /// The attempt after every one that a pod of the role has had.
    pub fn next_attempt(&self) -> u32 {
        let alone = self.pod_attempts.iter().map(|pod| pod.attempt).max();
        self.attempt.max(alone.unwrap_or_default()).max(1).saturating_add(1)
    }
}

/// How far training is.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Progress {
    /// Completed steps.
    pub step: u64,
    /// Steps of the whole run; 0 while it is not known.
    pub total: u64,
    /// `step` of `total`, such as `40/150`: the column Step.
    pub summary: String,
    /// Completed part of the run in whole percent, 0 to 100.
    pub percent: u32,
    /// Seconds to the end at the present speed. Absent before the first step, and while the job does not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eta_seconds: Option<u64>,
    /// Mean score of the last step's samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reward: Option<f64>,
    /// Mean sequence KL to the reference in the last step. Absent without a reference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kl: Option<f64>,
    /// Mean response length of the last step, in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_length: Option<f64>,
    /// Score on the held-out prompts at the last evaluation. Absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evaluation_score: Option<f64>,
    /// Step of the last complete checkpoint: where a restart goes on. Absent before the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_checkpoint: Option<u64>,
}

impl Progress {
    /// Progress at `step` of `total` (0: not known), with `summary` and `percent` derived and no measurements yet.
    pub fn at(step: u64, total: u64) -> Self {
        let summary = if total == 0 {
            step.to_string()
        } else {
            format!("{step}/{total}")
        };
        let percent = step.min(total).saturating_mul(100).checked_div(total).unwrap_or(0);
        Self {
            step,
            total,
            summary,
            percent: u32::try_from(percent).unwrap_or(100),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_summed_up_for_the_column_and_never_exceeds_a_hundred_percent() {
        assert_eq!(
            (Progress::at(40, 150).summary.as_str(), Progress::at(40, 150).percent),
            ("40/150", 26)
        );
        assert_eq!(
            (Progress::at(7, 0).summary.as_str(), Progress::at(7, 0).percent),
            ("7", 0)
        );
        assert_eq!(Progress::at(u64::MAX, 3).percent, 100);
    }

    #[test]
    fn counts_of_rules_that_were_written_without_fingerprints_are_still_read() {
        let known: RuleRestarts = serde_json::from_str(r#"{"rule": 1, "restarts": 2}"#).unwrap();
        assert_eq!((known.rule, known.fingerprint.as_str(), known.restarts), (1, "", 2));
    }

    #[test]
    fn an_empty_status_reads_back_from_what_it_writes() {
        let json = serde_json::to_string(&PpoJobStatus::default()).unwrap();
        assert_eq!(
            serde_json::from_str::<PpoJobStatus>(&json).unwrap(),
            PpoJobStatus::default()
        );
        assert_eq!(
            serde_json::from_str::<PpoJobStatus>("{}").unwrap(),
            PpoJobStatus::default()
        );
    }
}
