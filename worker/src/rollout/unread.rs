//! Answers that were written as a whole and that their clients have not taken yet: within bounds, whatever is asked for.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::serving::error::ApiError;
use crate::serving::room::SHORT;

/// Room for long answers until their clients have taken them, all together.
#[derive(Debug)]
pub struct Unread {
    /// KiB.
    room: Arc<Semaphore>,
    most: usize,
}

impl Unread {
    /// Room for so many bytes. One answer that is longer takes all of it.
    pub fn new(bytes: usize) -> Self {
        let most = (bytes >> 10).clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        Self {
            room: Arc::new(Semaphore::new(most)),
            most,
        }
    }

    /// The answer as a body that keeps its room until its client has it, or is gone.
    ///
    /// # Errors
    /// 503 when there is no room in time.
    pub async fn body(&self, written: Vec<u8>, patience: Duration) -> Result<Bytes, ApiError> {
        if written.len() <= SHORT {
            return Ok(written.into());
        }
        let kibibytes = u32::try_from((written.len() >> 10).min(self.most)).unwrap_or(u32::MAX);
        let room = tokio::time::timeout(patience, self.room.clone().acquire_many_owned(kibibytes)).await;
        let full =
            |_| ApiError::unavailable("long answers that others have not read yet take all room: try again, or stream");
        let room = room.map_err(full)?.map_err(ApiError::internal)?;
        Ok(Bytes::from_owner(Answer { written, _room: room }))
    }
}

struct Answer {
    written: Vec<u8>,
    _room: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Answer {
    fn as_ref(&self) -> &[u8] {
        &self.written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    #[tokio::test]
    async fn a_long_answer_keeps_its_room_until_the_last_of_it_is_dropped_and_a_short_one_takes_none() {
        let unread = Unread::new(300 << 10);
        let long = || vec![7; 200 << 10];
        let first = unread.body(long(), NOW).await.unwrap();
        assert_eq!(first.len(), 200 << 10);
        let error = unread.body(long(), NOW).await.unwrap_err();
        assert!(error.message.contains("have not read yet"), "{error}");
        assert!(unread.body(vec![7; SHORT], NOW).await.is_ok());
        let rest = first.slice(1000..);
        drop(first);
        assert!(unread.body(long(), NOW).await.is_err(), "a part of it is still there");
        drop(rest);
        assert!(unread.body(long(), NOW).await.is_ok());
        assert!(
            unread.body(vec![7; 1 << 20], NOW).await.is_ok(),
            "one that is longer than all room"
        );
    }
}
