//! A gang's object that waits for a webhook.

use k8s_openapi::jiff::Timestamp;

/// A gang's object that cannot be written since some time, because the webhook that has to approve it does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unapproved {
    /// Since when.
    pub since: Timestamp,
    /// What was asked, and what the API server said.
    pub words: String,
}
