//! Which attempt of the actor an engine's weights come from. A version's number alone does not tell: every attempt counts steps, and the
//! weights that an engine starts with are version 0 wherever they come from.

use std::sync::atomic::{AtomicU32, Ordering};

use axum::http::StatusCode;

use crate::serving::error::ApiError;

/// Which weights an engine has, or is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyVersion {
    /// The actor's attempt that gave them. None: those that the engine has started with, or of somebody who is no job's actor.
    pub attempt: Option<u32>,
    /// Completed steps.
    pub version: u64,
}

/// The newest attempt that has given an engine weights, or begun to: an older one is one whose processes outlive it, and gives none any more.
#[derive(Debug, Default)]
pub struct NewestAttempt(AtomicU32);

impl NewestAttempt {
    /// Lets weights of `attempt` in, and from then on none of an older one. Of nobody's attempt they are always let in.
    ///
    /// # Errors
    /// 409 for an older attempt than one that was here.
    pub fn admit(&self, attempt: Option<u32>) -> Result<(), ApiError> {
        let Some(attempt) = attempt else { return Ok(()) };
        let newest = self.0.fetch_max(attempt, Ordering::AcqRel);
        if attempt >= newest {
            return Ok(());
        }
        let words = format!(
            "attempt {newest} of the actor gives this engine its weights: those of attempt {attempt} are too old"
        );
        Err(ApiError::new(StatusCode::CONFLICT, words))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn once_a_newer_attempt_was_here_an_older_one_is_refused_and_who_has_none_is_not() {
        let newest = NewestAttempt::default();
        for attempt in [Some(1), Some(1), Some(3), None, Some(3)] {
            newest.admit(attempt).unwrap();
        }
        let refused = newest.admit(Some(2)).unwrap_err();
        assert_eq!(refused.status, StatusCode::CONFLICT);
        assert!(refused.message.contains("attempt 3 of the actor"), "{refused}");
        newest.admit(Some(3)).unwrap();
    }
}
