//! Questions that vLLM has at once, those of all requests: each is a connection and a copy of what is asked.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::serving::error::ApiError;
use crate::serving::limits::Limits;

/// Room for questions.
#[derive(Debug)]
pub struct Room {
    kibibytes: Arc<Semaphore>,
    /// Of all together.
    most: u32,
    /// That a question takes however short it is.
    least: u32,
    at_once: usize,
}

impl Room {
    /// Room for as many bytes as bodies may have that are being read, and for twice the sequences that vLLM computes at once: while it has
    /// as many that wait it is never short of any.
    pub fn new(limits: &Limits, sequences: usize) -> Self {
        let at_once = sequences.saturating_mul(2).min(limits.samples).clamp(1, 1 << 20);
        let most = (limits.all_body_bytes >> 10).clamp(at_once, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        Self {
            kibibytes: Arc::new(Semaphore::new(most)),
            most: u32::try_from(most).unwrap_or(u32::MAX),
            least: u32::try_from(most / at_once).unwrap_or(u32::MAX),
            at_once,
        }
    }

    /// Questions at most.
    pub fn at_once(&self) -> usize {
        self.at_once
    }

    /// Waits for room for a question of so many bytes.
    ///
    /// # Errors
    /// None in a server that runs: the room is never closed.
    pub async fn enter(&self, bytes: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        let kibibytes = u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX);
        let kibibytes = kibibytes.clamp(self.least, self.most);
        let room = self.kibibytes.clone().acquire_many_owned(kibibytes).await;
        room.map_err(ApiError::internal)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn room(sequences: usize, kibibytes: usize) -> Room {
        let limits = Limits {
            all_body_bytes: kibibytes << 10,
            ..Limits::default()
        };
        Room::new(&limits, sequences)
    }

    #[tokio::test]
    async fn twice_as_many_short_questions_are_asked_at_once_as_vllm_computes_sequences() {
        let room = room(3, 100);
        let mut held: Vec<_> = Vec::new();
        while let Some(entered) = room.enter(1).now_or_never() {
            held.push(entered.unwrap());
        }
        assert_eq!((held.len(), room.at_once()), (6, 6));
        held.pop();
        assert!(room.enter(1).now_or_never().is_some());
    }

    #[tokio::test]
    async fn long_questions_wait_for_each_other_and_one_is_always_asked() {
        let room = room(10, 100);
        let half = room.enter(50 << 10).await.unwrap();
        assert!(room.enter(51 << 10).now_or_never().is_none());
        assert!(room.enter(50 << 10).now_or_never().is_some());
        drop(half);
        assert!(room.enter(1 << 30).now_or_never().is_some());
    }
}
