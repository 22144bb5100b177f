//! The rollout role.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::runtime::Handle;

use super::{Dealer, Pending};
use crate::engine::{Engine, EngineError, Request};
use crate::model::MergedWeights;
use crate::model::marks::Changed;
use crate::pace;

/// What the engine of this process is said to have done.
const FAILED: &str = "the rollout engine failed";

/// An engine that failed says so itself.
fn named(error: EngineError) -> anyhow::Error {
    match error {
        EngineError::Failed(_) | EngineError::NoToken { .. } => error.into(),
        other => anyhow::Error::new(other).context(FAILED),
    }
}

/// The rollout role: an engine in this process, or pods.
pub enum Rollout {
    /// In this process.
    Here(Engine),
    /// Behind HTTP.
    There(Dealer),
}

impl Rollout {
    /// Asks for samples for all requests, in their order, one for each seed, all drawn by the version published last: who collects them
    /// waits, no longer than `deadline`. Until then nothing may be published: no sample is of two versions.
    pub fn start(&self, requests: Vec<Request>, deadline: Duration, runtime: &Handle) -> Pending {
        let engine = match self {
            Self::Here(engine) => engine.clone(),
            Self::There(dealer) => return dealer.start(requests, deadline),
        };
        let drawing = engine.clone();
        let passes = move || drawing.stats().passes;
        Pending::start(runtime, passes, |_| async move {
            let drawn = tokio::time::timeout(deadline, engine.draw(requests)).await;
            let waited_for = "completions";
            drawn
                .unwrap_or(Err(EngineError::Deadline { waited_for, deadline }))
                .map_err(named)
        })
    }

    /// The weights that were published are about to change: engines read them no more. One in this process has its own copy.
    pub fn withdraw(&self) {
        if let Self::There(dealer) = self {
            dealer.withdraw();
        }
    }

    /// Nothing is asked until the next weights: an engine in this process leaves its memory to training until then.
    pub fn sleep(&self) {
        if let Self::Here(engine) = self {
            engine.sleep();
        }
    }

    /// Whether an engine that has the present weights may get what changes, in place of all.
    pub fn takes_changes(&self) -> bool {
        match self {
            Self::Here(_) => false,
            Self::There(dealer) => dealer.takes_changes(),
        }
    }

    /// Gives every engine new weights. `changed` is how they differ from those before; None where nobody knows.
    ///
    /// # Errors
    /// When an engine in this process does not take them in time, or memory runs out. Engines behind HTTP take them at once,
    /// or before they are next asked.
    pub fn publish(&self, weights: MergedWeights, changed: Option<&Changed>, version: u64) -> Result<()> {
        let deadline = pace::deadline(weights.bytes());
        match self {
            Self::Here(engine) => {
                let taken = engine.update_weights(weights, version).wait(deadline);
                taken.context("the rollout engine did not take the new weights")
            }
            Self::There(dealer) => dealer.publish(weights, changed, version, deadline),
        }
    }

    /// Samples whose engine failed before it answered, so that another one drew them, since this was last asked for.
    pub fn take_drawn_again(&self) -> u64 {
        match self {
            Self::Here(_) => 0,
            Self::There(dealer) => dealer.take_drawn_again(),
        }
    }
}
