//! Whether the job itself was deleted. The operator does nothing with such a one any more (`reconcile/read.rs`), so no other cause counts.

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

use super::evidence::Evidence;
use super::finding::{Cause, Finding};
use super::terminating;
use crate::plugin::age;

/// Finalizer of `kubectl delete --cascade=foreground`: the object goes after all that it owns.
const FOREGROUND: &str = "foregroundDeletion";

/// The deletion, and pods that it waits for beyond their time; None for a job that is to stay.
pub fn findings(evidence: &Evidence, now: Timestamp) -> Option<Vec<Finding>> {
    let since = evidence.job.metadata.deletion_timestamp.as_ref()?;
    let held = evidence.job.finalizers();
    let foreign: Vec<&str> = held
        .iter()
        .map(String::as_str)
        .filter(|held| *held != FOREGROUND)
        .collect();
    let waits = match held {
        [] => String::new(),
        held => format!(", and goes when these finalizers are done: {}", held.join(", ")),
    };
    let fix = match foreign.as_slice() {
        [] => format!(
            "wait until its {} pods are gone; then it may be applied again under this name",
            evidence.pods.len()
        ),
        foreign => format!(
            "the controller that set {} must take it away: is it running?",
            foreign.join(", ")
        ),
    };
    let what = format!("The job was deleted {} ago{waits}.", age::since(since.0, now));
    let mut findings = vec![Finding::blocking(Cause::Deleted, what, fix)];
    // Pods in time have no successor to hold up.
    let late = terminating::findings(evidence, now)
        .into_iter()
        .filter(|finding| finding.blocks);
    findings.extend(late);
    Some(findings)
}
