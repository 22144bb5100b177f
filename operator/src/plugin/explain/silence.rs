//! A scheduler that is installed and does not run, as the operator reports it.

use super::evidence::{Evidence, one_line};
use super::finding::{Cause, Finding};
use super::remedy;
use crate::gang::SCHEDULER_SILENT;

const START: &str = "start it (its log says why it stopped), and the job goes on by itself; or suspend the job, change spec.scheduling.gang to \
                     one that runs here, and resume it";

/// What the operator waits for in vain. What else is known of queue and nodes is then old, or its effect.
pub fn finding(evidence: &Evidence) -> Option<Finding> {
    let condition = evidence.condition("GangScheduled", "False")?;
    let words = one_line(&condition.message);
    let silent = condition.reason == SCHEDULER_SILENT;
    silent.then(|| {
        let queue = remedy::of_volcanos_queue(evidence).map(|queue| format!("; {queue}"));
        Finding::blocking(
            Cause::SchedulerAbsent,
            format!("No scheduler looks at the job: {words}."),
            format!("{START}{}", queue.unwrap_or_default()),
        )
    })
}
