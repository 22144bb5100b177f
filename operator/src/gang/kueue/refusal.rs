//! A Workload that no free quota would help: it is over, or deactivated, or an admission check holds it.

use kube::ResourceExt;
use kube::api::DynamicObject;

use super::conditions::{EVICTED, FINISHED, QUOTA_RESERVED, holds, words};
use super::{admission_checks, workload};
use crate::gang::stuck;

/// Reason and message of one that is not admitted; None where Kueue's conditions say it all.
pub fn of(workload: &DynamicObject) -> Option<(&'static str, String)> {
    let name = workload.name_any();
    if holds(workload, FINISHED) {
        let (reason, message) = words(workload, FINISHED);
        let message = format!(
            "Workload {name} is finished ({reason}: {message}), so Kueue admits it no more: delete it, and the operator makes another"
        );
        return Some((stuck::WORKLOAD_FINISHED, message));
    }
    if workload::is_deactivated(workload) {
        let (reason, message) = words(workload, EVICTED);
        // Kueue's own word where it was Kueue that did it.
        let why = match reason.starts_with("Deactivated") && !message.is_empty() {
            true => message,
            false => "somebody, or Kueue, has set it so".into(),
        };
        let message = format!(
            "Workload {name} is not active (spec.active: false): {why}; once that is put right set it active again"
        );
        return Some((stuck::DEACTIVATED, message));
    }
    let reserved = holds(workload, QUOTA_RESERVED) && !holds(workload, EVICTED);
    let checks = admission_checks::unpassed(workload).filter(|_| reserved)?;
    Some(("AdmissionCheck", format!("quota is reserved; {checks}")))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::gang::{Admission, Lookups, kueue, members};
    use crate::smallest_job::smallest_job;
    use crate::world::{Children, Kind};

    /// Reason and message of the job whose Workload is like this, in its condition.
    fn waits(spec: &Value, status: &Value) -> (String, String) {
        let job = smallest_job(&json!({"scheduling": {"gang": "kueue", "queue": "rl"}}));
        let name = members::name(&job);
        let workload = DynamicObject::new(&name, &Kind::KueueWorkload.resource());
        let workload = workload.data(json!({"spec": spec, "status": status}));
        let mut children = Children::default();
        children.objects.insert((Kind::KueueWorkload, name), Arc::new(workload));
        match kueue::admission(&job, &children, &Lookups::default()) {
            Admission::Waiting { reason, message } => (reason, message),
            other => panic!("{other:?}"),
        }
    }

    fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
        json!({"type": kind, "status": status, "reason": reason, "message": message})
    }

    #[track_caller]
    fn says((reason, message): (String, String), expected: &str, parts: &[&str]) {
        assert_eq!(reason, expected, "{message}");
        for part in parts {
            assert!(message.contains(part), "{part:?} is not in: {message}");
        }
    }

    #[test]
    fn a_check_that_has_not_passed_is_named_with_its_state_and_words() {
        let checks = json!([
            {"name": "budget", "state": "Ready", "message": "granted"},
            {"name": "machines", "state": "Pending", "message": "Waiting for 8 nodes."},
            {"name": "licence", "state": "Rejected", "message": "none is left"},
        ]);
        let reserved = condition(QUOTA_RESERVED, "True", "QuotaReserved", "");
        let held = waits(
            &json!({}),
            &json!({"conditions": [reserved], "admissionChecks": checks}),
        );
        assert!(!held.1.contains("budget"), "{}", held.1);
        says(
            held,
            "AdmissionCheck",
            &[
                "admission check machines is Pending: Waiting for 8 nodes;",
                "admission check licence is Rejected: none is left",
            ],
        );
    }

    #[test]
    fn a_deactivated_workload_is_told_so_with_kueues_words_before_and_after_its_quota_is_given_back() {
        let why = "The workload is deactivated due to Admission check(s): machines, were rejected";
        let evicted = condition(EVICTED, "True", "DeactivatedDueToAdmissionCheck", why);
        for reserved in ["True", "False"] {
            let reserved = condition(QUOTA_RESERVED, reserved, "Pending", "waits");
            let status = json!({"conditions": [evicted.clone(), reserved]});
            says(
                waits(&json!({"active": false}), &status),
                "Deactivated",
                &[why, "set it active again"],
            );
        }
        // One that was evicted for something else, and made inactive since.
        let evicted = condition(EVICTED, "True", "Preempted", "for a job of higher priority");
        let (reason, message) = waits(&json!({"active": false}), &json!({"conditions": [evicted]}));
        assert_eq!(reason, "Deactivated");
        assert!(!message.contains("higher priority"), "{message}");
    }

    #[test]
    fn a_workload_that_is_finished_while_its_job_waits_is_to_be_made_again() {
        let finished = condition(FINISHED, "True", "Failed", "the job is out of sync");
        says(
            waits(&json!({}), &json!({"conditions": [finished]})),
            "WorkloadFinished",
            &["Failed: the job is out of sync", "delete it"],
        );
    }

    #[test]
    fn kueues_own_words_stand_where_it_only_waits_for_quota() {
        let pending = condition(
            QUOTA_RESERVED,
            "False",
            "Pending",
            "couldn't assign flavors to pod set actor",
        );
        let checks = json!([{"name": "machines", "state": "Pending", "message": ""}]);
        let status = json!({"conditions": [pending], "admissionChecks": checks});
        says(
            waits(&json!({"active": true}), &status),
            "Pending",
            &["couldn't assign flavors"],
        );
    }
}
