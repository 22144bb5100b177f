//! Log-probabilities of whole answers, within bounds: each takes a hundred bytes and more until it is written.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::serving::error::ApiError;
use crate::serving::limits::Limits;

/// Tokens with their ids or texts that take as much room as one log-probability.
const TOKENS: usize = 16;

/// Refuses an answer as a whole that may list `listed` log-probabilities, for the field that asks for most of them. `is_endless`: its
/// responses are as long as the context lets them be, because nothing was said of their length.
///
/// # Errors
/// 400 when they are more than one answer may list.
pub fn check(limits: &Limits, listed: usize, field: &'static str, is_endless: bool) -> Result<(), ApiError> {
    if listed <= limits.listed {
        return Ok(());
    }
    let shorter = if is_endless {
        "set max_tokens (or max_completion_tokens), or "
    } else {
        ""
    };
    Err(ApiError::field(
        field,
        format!(
            "the answer may list {listed} log-probabilities, at most {}: {shorter}ask for fewer likeliest tokens, or for fewer prompts, \
             samples or tokens at once",
            limits.listed
        ),
    ))
}

/// Room for answers that are being written, in log-probabilities, all together.
#[derive(Debug)]
pub struct Listing {
    room: Arc<Semaphore>,
    most: usize,
}

impl Listing {
    /// Room for `most` of them, the most that one answer lists.
    pub fn new(most: usize) -> Self {
        let most = most.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        Self {
            room: Arc::new(Semaphore::new(most)),
            most,
        }
    }

    /// Waits for room for an answer that may list so many log-probabilities and show so many tokens.
    ///
    /// # Errors
    /// 503 when there is none in time.
    pub async fn enter(
        &self,
        listed: usize,
        tokens: usize,
        patience: Duration,
    ) -> Result<OwnedSemaphorePermit, ApiError> {
        let wanted = listed.saturating_add(tokens / TOKENS).min(self.most);
        let count = u32::try_from(wanted).unwrap_or(u32::MAX);
        let room = tokio::time::timeout(patience, self.room.clone().acquire_many_owned(count)).await;
        let full = |_| ApiError::unavailable("too many long answers are being written: try again, or stream");
        room.map_err(full)?.map_err(ApiError::internal)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn an_answer_that_may_list_too_many_is_refused_and_told_first_to_have_an_end() {
        let limits = Limits {
            listed: 10,
            ..Limits::default()
        };
        assert_eq!(check(&limits, 10, "logprobs", true), Ok(()));
        let refused = |is_endless| check(&limits, 11, "logprobs", is_endless).unwrap_err().message;
        let words = "logprobs: the answer may list 11 log-probabilities, at most 10: ";
        assert!(refused(false).starts_with(&format!("{words}ask for fewer likeliest")));
        assert!(refused(true).starts_with(&format!("{words}set max_tokens (or max_completion_tokens), or ask")));
    }

    #[tokio::test]
    async fn an_answer_waits_while_others_that_are_written_list_as_many_as_may_be_listed() {
        let listing = Listing::new(10);
        let enter = |listed, tokens| listing.enter(listed, tokens, Duration::from_secs(60));
        let first = enter(6, 0).await.unwrap();
        assert!(enter(5, 0).now_or_never().is_none());
        assert!(enter(0, 5 * TOKENS).now_or_never().is_none(), "tokens take room, too");
        assert!(enter(4, 0).now_or_never().is_some(), "there is room beside the first");
        assert!(enter(0, 1).now_or_never().is_some());
        drop(first);
        assert!(enter(5, 0).now_or_never().is_some());
        let _all = enter(10, 0).await.unwrap();
        let error = listing.enter(1, 0, Duration::ZERO).await.unwrap_err();
        assert!(error.message.contains("try again"), "{error}");
    }
}
