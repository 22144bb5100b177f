//! A polite end: SIGTERM or Ctrl-C asks, the run saves and stops.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};

/// Between two looks of one that waits for something else: a signal handler can only set the flag.
const LOOK: Duration = Duration::from_millis(200);

/// Set once the process was asked to stop.
#[derive(Clone, Debug, Default)]
pub struct StopFlag {
    /// By a signal.
    signalled: Arc<AtomicBool>,
    /// By this process itself, which has said why.
    asked: Arc<AtomicBool>,
}

/// The process was asked to stop before the step changed anything.
#[derive(Debug, thiserror::Error)]
#[error("asked to stop")]
pub struct Interrupted;

impl StopFlag {
    /// A flag that SIGTERM and SIGINT set; a second signal ends the process at once. The log says so after the first: a step may
    /// take minutes, and who sees nothing asks again.
    ///
    /// # Errors
    /// When the handlers cannot be installed.
    pub fn on_signals() -> Result<Self> {
        let flag = Self::default();
        for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
            let second = flag.signalled.clone();
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, second)
                .and_then(|_| signal_hook::flag::register(signal, flag.signalled.clone()))
                .context("cannot install a signal handler")?;
        }
        let signalled = flag.signalled.clone();
        let tell = move || {
            while !signalled.load(Ordering::Relaxed) {
                std::thread::sleep(LOOK);
            }
            tracing::info!(
                "asked to stop: what is under way is finished and saved first; a second signal ends it now and saves nothing"
            );
        };
        std::thread::Builder::new()
            .name("stop".into())
            .spawn(tell)
            .context("cannot start a thread that looks for signals")?;
        Ok(flag)
    }

    /// Asks to stop.
    pub fn request(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    /// Whether somebody asked.
    pub fn requested(&self) -> bool {
        self.asked.load(Ordering::Relaxed) || self.signalled.load(Ordering::Relaxed)
    }

    /// [`Interrupted`] when somebody asked.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn check(&self) -> Result<(), Interrupted> {
        if self.requested() { Err(Interrupted) } else { Ok(()) }
    }

    /// What `work` comes to, unless somebody asks to stop before: then it is dropped.
    ///
    /// # Errors
    /// Those of `work`; [`Interrupted`].
    pub async fn unless_requested<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let asked = async {
            while !self.requested() {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::select! {
            done = work => done,
            () = asked => Err(Interrupted.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_who_waits_for_an_answer_stops_when_asked_to() {
        let stop = StopFlag::default();
        let answered = stop.unless_requested(async { Ok(7) }).await.unwrap();
        assert_eq!(answered, 7);
        let ask = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            stop.request();
        };
        let (ended, ()) = tokio::join!(stop.unless_requested(std::future::pending::<Result<()>>()), ask);
        assert!(ended.unwrap_err().is::<Interrupted>());
    }
}
