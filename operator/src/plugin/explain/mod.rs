//! Why a job does not run, in plain words: a pure function of what the API server knows.

mod autoscaler;
mod containers;
mod controller;
mod deletion;
mod edited;
mod end;
mod eviction;
pub(super) mod evidence;
mod finding;
mod gang;
mod health;
mod image;
mod limit_range;
mod progress;
mod queue;
mod remedy;
mod scheduling;
mod silence;
mod spare;
mod suspension;
mod taints;
mod terminating;
mod termination;
#[cfg(test)]
mod tests;

use k8s_openapi::jiff::Timestamp;
use ppo_crds::status::Phase;

pub use evidence::{Evidence, time as event_time};
pub use finding::{Cause, Finding};
pub use health::healthy;

/// Everything that holds the job up, causes before their effects. Empty when nothing does; findings that do not
/// [block](Finding::blocks) are worth knowing all the same.
pub fn explain(evidence: &Evidence, now: Timestamp) -> Vec<Finding> {
    let told = spare::told(causes(evidence, now), evidence);
    let grouped = finding::group(told).into_iter();
    let name = evidence.name();
    grouped
        .map(|finding| edited::of_roles(finding, evidence).named(&name))
        .collect()
}

/// What keeps the job from quota and nodes.
fn placement(evidence: &Evidence, now: Timestamp) -> Vec<Finding> {
    if let Some(silent) = silence::finding(evidence) {
        return vec![silent];
    }
    let queued = queue::findings(evidence);
    if !queued.is_empty() {
        return queued;
    }
    let of_pods = scheduling::findings(evidence, now);
    let refused = of_pods.iter().any(|finding| finding.cause == Cause::PodsMissing);
    let mut findings = gang::findings(evidence, refused, now);
    findings.extend(of_pods);
    findings
}

fn causes(evidence: &Evidence, now: Timestamp) -> Vec<Finding> {
    if let Some(findings) = deletion::findings(evidence, now) {
        return findings;
    }
    if let Some(elsewhere) = controller::elsewhere(evidence) {
        return vec![elsewhere];
    }
    if evidence.phase().is_some_and(Phase::is_finished) {
        return end::findings(evidence);
    }
    let mut findings = controller::findings(evidence, now);
    if evidence.job.spec.run_policy.suspend {
        findings.extend(suspension::findings(evidence, now));
        findings.extend(terminating::findings(evidence, now));
        return findings;
    }
    findings.extend(placement(evidence, now));
    findings.extend(terminating::findings(evidence, now));
    findings.extend(containers::findings(evidence, now));
    findings.extend(progress::findings(evidence, now));
    findings.extend(eviction::finding(evidence, now));
    // A role's own words matter where no pod shows the cause any more.
    let explained = findings.iter().any(|finding| finding.blocks);
    findings.extend(progress::roles(evidence, explained));
    findings
}
