//! Conditions of a job: set by type, with a transition time that moves only when the truth does.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

/// Types of a PpoJob's conditions.
pub mod kind {
    /// The manifest can run.
    pub const ACCEPTED: &str = "Accepted";
    /// No pods, by request.
    pub const SUSPENDED: &str = "Suspended";
    /// Quota and nodes for the whole gang.
    pub const GANG_SCHEDULED: &str = "GangScheduled";
    /// Every role has as many ready pods as the run needs.
    pub const ROLES_READY: &str = "RolesReady";
    /// Stages finish in time.
    pub const PROGRESSING: &str = "Progressing";
    /// Ended: all steps made.
    pub const COMPLETE: &str = "Complete";
    /// Ended without success.
    pub const FAILED: &str = "Failed";
}

/// A condition's truth with its reason (one CamelCase word) and message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Truth {
    /// Whether it holds.
    pub holds: bool,
    /// One word.
    pub reason: String,
    /// A sentence that says what to do, where something is to be done.
    pub message: String,
}

impl Truth {
    /// A condition that holds.
    pub fn yes(reason: &str, message: impl Into<String>) -> Self {
        Self::new(true, reason, message)
    }

    /// One that does not.
    pub fn no(reason: &str, message: impl Into<String>) -> Self {
        Self::new(false, reason, message)
    }

    /// One that holds if `holds`.
    pub fn new(holds: bool, reason: &str, message: impl Into<String>) -> Self {
        let word = |c: char| c.is_ascii_alphanumeric() || "_,:".contains(c);
        let mut message = message.into();
        message.truncate(message.floor_char_boundary(LONGEST));
        // What `metav1.Condition` allows, and clients may check; the kubelet's reasons are free text.
        let reason: String = reason.chars().filter(|c| word(*c)).collect();
        Self {
            holds,
            reason: if reason.is_empty() { "Unknown".into() } else { reason },
            message,
        }
    }
}

/// Longest message that `metav1.Condition` allows.
const LONGEST: usize = 32_768;

/// Sets the condition `kind`.
pub fn set(conditions: &mut Vec<Condition>, kind: &str, truth: Truth, generation: i64, now: Timestamp) {
    let status = if truth.holds { "True" } else { "False" };
    let before = conditions.iter().position(|condition| condition.type_ == kind);
    let since = before
        .map(|at| &conditions[at])
        .filter(|condition| condition.status == status)
        .map_or(Time(whole_second(now)), |condition| {
            condition.last_transition_time.clone()
        });
    let condition = Condition {
        type_: kind.into(),
        status: status.into(),
        reason: truth.reason,
        message: truth.message,
        last_transition_time: since,
        observed_generation: Some(generation),
    };
    match before {
        Some(at) => conditions[at] = condition,
        None => conditions.push(condition),
    }
}

/// The condition `kind`, if it was ever set.
pub fn get<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}

/// Whether `kind` is set and holds.
pub fn holds(conditions: &[Condition], kind: &str) -> bool {
    get(conditions, kind).is_some_and(|condition| condition.status == "True")
}

/// Times in objects have whole seconds; a fraction would differ from what the API server returns, for ever.
pub fn whole_second(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_say_becomes_a_reason_of_one_word_and_a_message_that_is_not_too_long() {
        let reason = |words: &str| Truth::no(words, "").reason;
        assert_eq!(reason("OutOfcpu"), "OutOfcpu");
        assert_eq!(reason("exit code: 1"), "exitcode:1");
        assert_eq!(reason("…"), "Unknown");
        // Of two bytes each, the last of which would be cut in half.
        let message = Truth::no("Error", format!("a{}", "ä".repeat(LONGEST))).message;
        assert_eq!(message.len(), LONGEST - 1);
    }

    #[test]
    fn a_condition_has_another_time_only_with_another_truth() {
        let mut conditions = Vec::new();
        let mut since = |truth: Truth, second: i64| {
            let now = Timestamp::from_second(second).unwrap();
            set(&mut conditions, kind::FAILED, truth, 1, now);
            let condition = get(&conditions, kind::FAILED).unwrap();
            condition.last_transition_time.0.as_second()
        };
        assert_eq!(since(Truth::no("Waits", ""), 10), 10);
        assert_eq!(since(Truth::no("WaitsStill", "in other words"), 20), 10);
        assert_eq!(since(Truth::yes("Hung", ""), 30), 30);
        assert_eq!(conditions.len(), 1);
    }
}
