//! The small JSON report with which the actor tells the operator how training goes (`GET /report` on its metrics port),
//! and the exit codes and the outcome by which a process that has ended explains itself.
//! The operator copies `progress` into the job's status and decides on the outcome and `seconds_since_progress`.

use serde::{Deserialize, Serialize};

use crate::status::Progress;

/// The actor's report. Unknown fields are ignored, so that operator and worker may be of different versions.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Name of the job; the operator drops a report of another job.
    pub job: String,
    /// Attempt this process belongs to; the operator drops a report of an earlier one.
    pub attempt: u32,
    /// What the actor is doing now.
    pub stage: Stage,
    /// Completed steps: the version of the policy's weights.
    pub policy_version: u64,
    /// How far training is.
    pub progress: Progress,
    /// Seconds since a stage last finished, or a part of the present one was done, to compare with `runPolicy.progressDeadlineSeconds`.
    pub seconds_since_progress: f64,
    /// What the stage waits for, such as the slowest pod's name or a server's URL. Empty when it waits for nobody.
    #[serde(default)]
    pub waiting_for: String,
}

/// A stage of the trainer's line.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, Hash)]
#[serde(rename_all = "camelCase")]
pub enum Stage {
    /// Models load, peers meet.
    Initialize,
    /// Engines generate.
    Rollout,
    /// The reward role scores.
    Score,
    /// Old and reference log-probs, KL, token rewards.
    Shape,
    /// Advantages and returns.
    Advantage,
    /// Optimizer updates.
    Update,
    /// New weights go to the engines.
    Publish,
    /// Held-out prompts are answered.
    Evaluate,
    /// The run's state is saved.
    Checkpoint,
    /// One that a newer worker has.
    #[serde(other)]
    Other,
}

/// Exit codes of `ppo-worker`, which the operator's failure policy reads.
pub mod exit_code {
    /// All steps made.
    pub const COMPLETED: i32 = 0;
    /// The manifest, the arguments or the data cannot be used; another try ends the same way.
    pub const BAD_CONFIGURATION: i32 = 2;
    /// Training diverged; another try ends the same way.
    pub const DIVERGED: i32 = 3;
    /// Asked to stop, and what was trained is saved (`EX_TEMPFAIL` of sysexits.h): go on from there.
    pub const INTERRUPTED: i32 = 75;
}

/// How a run ended. A process that ends writes it as JSON to its termination message, where the operator reads it.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// One word: Completed, Interrupted, Diverged, RewardFailed, DataError, RankLost, InternalError.
    pub reason: Reason,
    /// The same as a sentence that says what to do.
    pub message: String,
    /// How far training was then, which no report may have told: the process is gone. Absent where it had not begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, Hash)]
pub enum Reason {
    /// All steps made.
    Completed,
    /// Asked to stop (SIGTERM); what was trained is saved.
    Interrupted,
    /// A loss was not finite, or the KL exceeded `algorithm.kl.stopAbove`.
    Diverged,
    /// The reward could not be had.
    RewardFailed,
    /// A prompt or label could not be read.
    DataError,
    /// Another rank is lost, with its pod or its node, or by what that one says itself.
    RankLost,
    /// Anything else.
    InternalError,
    /// One that a newer worker has.
    #[serde(other)]
    Other,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_a_newer_worker_is_still_read() {
        let text = r#"{"job": "a", "attempt": 2, "stage": "update", "policyVersion": 3, "progress": {"step": 3, "new": 1},
                       "secondsSinceProgress": 0.5, "somethingNew": true}"#;
        let report: Report = serde_json::from_str(text).unwrap();
        assert_eq!((report.stage, report.progress.step), (Stage::Update, 3));
        let report: Report = serde_json::from_str(&text.replace("update", "distill")).unwrap();
        assert_eq!((report.stage, report.policy_version), (Stage::Other, 3));
    }

    #[test]
    fn a_reason_that_only_a_newer_worker_knows_keeps_its_sentence() {
        let outcome: Outcome = serde_json::from_str(r#"{"reason": "OutOfDisk", "message": "make room"}"#).unwrap();
        assert_eq!((outcome.reason, outcome.message.as_str()), (Reason::Other, "make room"));
    }
}
