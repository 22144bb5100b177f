//! The rollout role.

use std::time::Duration;

use anyhow::{Context, Result};

use super::Dealer;
use crate::engine::{Completion, Engine, Request};
use crate::model::MergedWeights;
use crate::telemetry::EngineStats;

/// The rollout role: an engine in this process, or pods.
pub enum Rollout {
    /// In this process.
    Here(Engine),
    /// Behind HTTP.
    There(Dealer),
}

impl Rollout {
    /// Samples for all requests, in their order, one for each seed, all drawn by the version published last.
    ///
    /// # Errors
    /// When they are not all there within `deadline`, with what kept them; [`Interrupted`](crate::stop::Interrupted).
    pub fn generate(&self, requests: Vec<Request>, deadline: Duration) -> Result<Vec<Vec<Completion>>> {
        match self {
            Self::Here(engine) => engine.generate(requests, deadline).context("the rollout engine failed"),
            Self::There(dealer) => dealer.generate(requests, deadline),
        }
    }

    /// The weights that were published are about to change: engines read them no more. One in this process has its own copy.
    pub fn withdraw(&self) {
        if let Self::There(dealer) = self {
            dealer.withdraw();
        }
    }

    /// Gives every engine new weights.
    ///
    /// # Errors
    /// When an engine in this process does not take them in time. Engines behind HTTP take them at once, or before they
    /// are next asked.
    pub fn publish(&self, weights: MergedWeights, version: u64, deadline: Duration) -> Result<()> {
        match self {
            Self::Here(engine) => {
                let taken = engine.update_weights(weights, version).wait(deadline);
                taken.context("the rollout engine did not take the new weights")
            }
            Self::There(dealer) => dealer.publish(weights, version, deadline),
        }
    }

    /// The engine's numbers, where it is in this process: pods show their own.
    pub fn stats(&self, model_name: &str) -> Option<EngineStats> {
        let Self::Here(engine) = self else { return None };
        Some(EngineStats::of(model_name, &engine.stats()))
    }
}
