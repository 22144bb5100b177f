//! Whether an actor that trains is kept from eviction.

use k8s_openapi::jiff::Timestamp;
use ppo_crds::status::Phase;

use super::evidence::{Evidence, one_line};
use super::finding::{Cause, Finding};
use super::scheduling::{is_of_budget, refused};

/// A disruption budget that the API server refuses: the job runs on without.
pub fn finding(evidence: &Evidence, now: Timestamp) -> Option<Finding> {
    let words = refused(evidence, now).filter(|words| is_of_budget(words))?;
    (evidence.phase() == Some(Phase::Running)).then(|| {
        Finding::note(
            Cause::Evictable,
            format!("The actor's disruption budget is not as it should be: {}.", one_line(words)),
            "put that right, and the operator tries again by itself; until then `kubectl ppo suspend <job> --wait` before its actor's \
             node is drained",
        )
    })
}
