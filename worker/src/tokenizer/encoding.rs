//! Room for texts that become token ids: a tokenizer takes memory many times as large as its text.

use std::sync::Arc;

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// Bytes of the texts that are split at once. Each takes up to 170 bytes meanwhile: every piece is a string with its offsets.
const AT_ONCE: usize = 8 << 20;

/// Room for texts that are being split.
#[derive(Debug)]
pub struct Encoding(Arc<Semaphore>);

impl Default for Encoding {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(AT_ONCE >> 10)))
    }
}

impl Encoding {
    /// Waits for room for texts that are split one after the other, the longest of so many bytes.
    ///
    /// # Errors
    /// None in a server that runs: the room is never closed.
    pub async fn enter(&self, longest: usize) -> Result<OwnedSemaphorePermit, AcquireError> {
        let kibibytes = longest.div_ceil(1 << 10).clamp(1, AT_ONCE >> 10);
        let kibibytes = u32::try_from(kibibytes).unwrap_or(u32::MAX);
        self.0.clone().acquire_many_owned(kibibytes).await
    }
}
