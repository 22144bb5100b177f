//! Which failures of a remote reward are worth another try, and how long to wait before it.

use std::time::Duration;

use reqwest::StatusCode;

/// Why one call failed.
#[derive(Debug)]
pub(super) struct Failure {
    /// For the person who must act: the status or cause, and the body's beginning.
    pub cause: String,
    /// What to do about it.
    pub retry: Retry,
}

/// What to do after a failure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Retry {
    /// The same call would fail again.
    Never,
    /// After a backoff of our own.
    Backoff,
    /// Not before this has passed: the server said so.
    After(Duration),
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

/// Scoring changes nothing at the server, so a call may be repeated after anything that can pass: too many requests (after
/// what `Retry-After` says, seconds only), request timeout, and errors of the server's own.
pub(super) fn after_status(status: StatusCode, retry_after: Option<&str>) -> Retry {
    let wait = retry_after
        .and_then(|text| text.trim().parse().ok())
        .filter(|seconds: &f64| *seconds >= 0.0);
    let wait = wait.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    match (status.as_u16(), wait) {
        (429 | 503, Some(wait)) => Retry::After(wait),
        (408 | 425 | 429 | 500..=599, _) => Retry::Backoff,
        _ => Retry::Never,
    }
}
