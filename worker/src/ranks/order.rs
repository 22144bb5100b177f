//! What rank 0 tells the others to do. Small things travel in the order, through the store; tensors follow it in a collective.

use std::path::PathBuf;

use ppo_crds::report::Outcome;
use serde::{Deserialize, Serialize};

use crate::run_state::Verified;

/// What all ranks do next.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub enum Order {
    /// Hash this rank's share of a checkpoint's files, and reply what it found.
    Verify {
        /// The checkpoint's folder.
        folder: PathBuf,
    },
    /// Load the models that rank 0 has loaded.
    Open {
        /// The checkpoint that the run goes on from; None: from the manifest's models.
        checkpoint: Option<Box<Verified>>,
        /// Steps of the whole run: the learning rate's schedule ends with them.
        total_steps: u64,
    },
    /// Take the samples of a step; their token ids follow.
    Samples {
        /// Steps completed before this one.
        step: u64,
        /// Tokens of prompt and response of each sample.
        lengths: Vec<(usize, usize)>,
        /// Columns of the step's tensors.
        columns: usize,
    },
    /// Compute log-probs of the samples under the weights below the adapter.
    FrozenLogprobs,
    /// Compute log-probs of the samples under the policy.
    Logprobs,
    /// Compute the critic's values of the samples.
    Values,
    /// Make the step's updates; what they read follows.
    Learn {
        /// KL coefficient of the step.
        kl_coefficient: f64,
        /// Whether the reference's log-probs are part of it.
        reference: bool,
        /// Whether the critic's values are part of it.
        values: bool,
    },
    /// Write this rank's part of a checkpoint into a folder that all ranks see, and reply.
    Save {
        /// The folder.
        folder: PathBuf,
    },
    /// The run is over.
    End {
        /// How it ended.
        outcome: Outcome,
        /// Rank 0's exit code.
        code: i32,
    },
}
