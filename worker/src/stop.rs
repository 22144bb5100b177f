//! A polite end: SIGTERM or Ctrl-C asks, the run saves and stops.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

/// Set once the process was asked to stop.
#[derive(Clone, Debug, Default)]
pub struct StopFlag(Arc<AtomicBool>);

/// The process was asked to stop before the step changed anything.
#[derive(Debug, thiserror::Error)]
#[error("asked to stop")]
pub struct Interrupted;

impl StopFlag {
    /// A flag that SIGTERM and SIGINT set; a second signal ends the process at once.
    ///
    /// # Errors
    /// When the handlers cannot be installed.
    pub fn on_signals() -> Result<Self> {
        let flag = Self::default();
        for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
            let second = flag.0.clone();
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, second)
                .and_then(|_| signal_hook::flag::register(signal, flag.0.clone()))
                .context("cannot install a signal handler")?;
        }
        Ok(flag)
    }

    /// Asks to stop.
    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether somebody asked.
    pub fn requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// [`Interrupted`] when somebody asked.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn check(&self) -> Result<(), Interrupted> {
        if self.requested() { Err(Interrupted) } else { Ok(()) }
    }
}
