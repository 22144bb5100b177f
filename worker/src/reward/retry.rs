//! Why a call of a remote reward failed, and whether it is worth another try.

use crate::backoff::Retry;

/// Why one call failed.
#[derive(Debug)]
pub(super) struct Failure {
    /// For the person who must act: the status or cause, and the body's beginning.
    pub cause: String,
    /// What to do about it.
    pub retry: Retry,
}

impl Failure {
    /// A failure that the same call would meet again.
    pub(super) fn lasting(cause: String) -> Self {
        Self {
            cause,
            retry: Retry::Never,
        }
    }

    /// A failure that may pass.
    pub(super) fn passing(cause: String) -> Self {
        Self {
            cause,
            retry: Retry::Backoff,
        }
    }
}
