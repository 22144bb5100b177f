//! Log-probabilities of whole answers, within bounds: each takes a hundred bytes and more until it is written.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::serving::error::ApiError;

/// Room for log-probabilities of answers that are being written, all together.
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

    /// Waits for room for an answer that may list so many.
    ///
    /// # Errors
    /// None in a server that runs: the room is never closed.
    pub async fn enter(&self, listed: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        let count = u32::try_from(listed.min(self.most)).unwrap_or(u32::MAX);
        let room = self.room.clone().acquire_many_owned(count).await;
        room.map_err(ApiError::internal)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn an_answer_waits_while_others_that_are_written_list_as_many_as_may_be_listed() {
        let listing = Listing::new(10);
        let first = listing.enter(6).await.unwrap();
        assert!(listing.enter(5).now_or_never().is_none());
        assert!(
            listing.enter(4).now_or_never().is_some(),
            "there is room beside the first"
        );
        assert!(listing.enter(0).now_or_never().is_some());
        drop(first);
        assert!(listing.enter(5).now_or_never().is_some());
    }
}
