//! Why the job failed.

use super::evidence::{Evidence, one_line};
use super::finding::{Cause, Finding};
use super::{containers, remedy};

/// The failure, and what its pods still show of it. Nothing for a job that succeeded.
pub fn findings(evidence: &Evidence) -> Vec<Finding> {
    let Some(failed) = evidence.condition("Failed", "True") else {
        return Vec::new();
    };
    let status = evidence.status();
    let mut what = format!("The job failed: {}. {}.", failed.reason, one_line(&failed.message));
    if let Some(progress) = status.progress {
        what.push_str(&format!(" It was at step {}.", progress.summary));
    }
    let fix = format!("{}; {AGAIN}", remedy::of_failure(&failed.reason, &failed.message));
    let mut findings = vec![Finding::blocking(Cause::Failed, what, fix)];
    findings.extend(containers::ended(evidence));
    findings
}

const AGAIN: &str = "a failed job stays failed: then apply it under a new name, or delete it and apply it again (its checkpoint is kept where \
                     spec.checkpoint names a claim or a mounted volume)";
