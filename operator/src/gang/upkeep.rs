//! What a scheduler leaves undone.

use k8s_openapi::jiff::Timestamp;

use crate::plan::action::Action;

/// Remedies that real schedulers need.
#[derive(Debug, Default)]
pub struct Upkeep {
    /// What to do now.
    pub actions: Vec<Action>,
    /// When to look again, should nothing happen before.
    pub wake: Option<Timestamp>,
}
