//! What a job waits for in vain: what its GangScheduled says where nothing changes by itself, and somebody has to act. Events, a gauge and
//! `kubectl ppo` tell of these, and of no wait that passes.

use ppo_crds::status::{Phase, PpoJobStatus};

use crate::condition::{get, kind};

/// The scheduler has said nothing for longer than one that runs does.
pub const SCHEDULER_SILENT: &str = "SchedulerSilent";
/// The gang scheduler that was asked for is not there.
pub const GANG_SCHEDULER_MISSING: &str = "GangSchedulerMissing";
/// Kueue was asked for, and no queue.
pub const QUEUE_MISSING: &str = "QueueMissing";
/// The priority class that was asked for is not there.
pub const PRIORITY_CLASS_MISSING: &str = "PriorityClassMissing";
/// Kueue's Workload was made inactive.
pub const DEACTIVATED: &str = "Deactivated";
/// Kueue's Workload was finished by somebody else.
pub const WORKLOAD_FINISHED: &str = "WorkloadFinished";

/// All of them.
pub const REASONS: [&str; 6] = [
    SCHEDULER_SILENT,
    GANG_SCHEDULER_MISSING,
    QUEUE_MISSING,
    PRIORITY_CLASS_MISSING,
    DEACTIVATED,
    WORKLOAD_FINISHED,
];

/// The one for which the job waits now.
pub fn reason(status: &PpoJobStatus) -> Option<&'static str> {
    // A job that ended while it waited may keep the condition.
    if status.phase.is_some_and(Phase::is_finished) {
        return None;
    }
    let waits = get(&status.conditions, kind::GANG_SCHEDULED).filter(|condition| condition.status == "False")?;
    REASONS.into_iter().find(|reason| waits.reason == *reason)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_job_waits_in_vain_until_its_condition_has_another_reason_or_holds_or_the_job_is_over() {
        let waits = |phase: &str, status: &str, given: &str| {
            let condition = json!({"type": "GangScheduled", "status": status, "reason": given, "message": "no",
                "lastTransitionTime": "2026-01-01T00:00:00Z"});
            let status = json!({"phase": phase, "conditions": [condition]});
            reason(&serde_json::from_value(status).unwrap())
        };
        for known in REASONS {
            assert_eq!(waits("Queued", "False", known), Some(known));
            assert_eq!(waits("Failed", "False", known), None);
            assert_eq!(waits("Running", "True", known), None);
        }
        // Quota comes back by itself.
        assert_eq!(waits("Queued", "False", "Pending"), None);
        assert_eq!(reason(&PpoJobStatus::default()), None);
    }
}
