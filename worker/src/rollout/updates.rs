//! One update of the weights at a time. Asking which weights there are, or whether new ones are on their way, never blocks an update.

use tokio::sync::watch;

use crate::serving::error::ApiError;

/// Whether an update runs.
#[derive(Debug, Default)]
pub struct Updates(watch::Sender<bool>);

/// The update that runs; dropped it has ended.
#[derive(Debug)]
pub struct Update(watch::Sender<bool>);

impl Updates {
    /// Begins an update.
    ///
    /// # Errors
    /// 409 while another one runs.
    pub fn begin(&self) -> Result<Update, ApiError> {
        let begins = self.0.send_if_modified(|runs| !std::mem::replace(runs, true));
        match begins {
            true => Ok(Update(self.0.clone())),
            false => Err(ApiError::updating()),
        }
    }

    /// Whether one runs now.
    pub fn is_running(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until none runs.
    pub async fn none(&self) {
        // It is an error only without a sender, and this is one.
        drop(self.0.subscribe().wait_for(|runs| !runs).await);
    }
}

impl Drop for Update {
    fn drop(&mut self) {
        self.0.send_replace(false);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn an_update_is_refused_while_another_runs_and_not_while_somebody_asks_or_waits() {
        let updates = Updates::default();
        assert!(!updates.is_running());
        let update = updates.begin().unwrap();
        assert!(updates.is_running());
        assert_eq!(updates.begin().unwrap_err(), ApiError::updating());
        let mut waiting = Box::pin(updates.none());
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(update);
        let next = updates.begin().unwrap();
        assert!(waiting.as_mut().now_or_never().is_none(), "another one runs");
        drop(next);
        waiting.await;
    }
}
