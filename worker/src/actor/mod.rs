//! The learning role: parameters, optimizer, update, checkpoints.
//!
//! Who cuts a step's samples, from the whole to one forward pass:
//!
//! | the samples of | are chosen by | so that |
//! |---|---|---|
//! | an update (mini-batch) | [`mini_batches::MiniBatches`] | every epoch goes over all of them in an order of its own |
//! | a rank's share of it | [`crate::ranks::deal`] | ranks have as many samples, and about as many tokens |
//! | a micro-batch of that | [`packing::micro_batches`] | a pass fits into its memory, and all ranks make as many |
//! | a piece of a rank's share without an update | [`pieces::Pieces`] | old log-probabilities, values and a reference's fit too |
//! | the pass that the first update reuses | [`mini_batches::MiniBatches::first_kept`] | its forward pass is made once |
//!
//! [`rows::Rows`] is the end of each: the samples of one pass, packed for the model.

pub mod adamw;
pub mod checkpoint;
pub mod fence;
pub mod flat;
pub mod kept;
pub mod learner;
pub mod lesson;
pub mod master;
pub mod mini_batches;
pub mod optimizer_state;
pub mod packing;
pub mod parameters;
pub mod pieces;
pub mod reducer;
pub mod rows;
pub mod schedule;
pub mod update;

use std::path::PathBuf;

use anyhow::{Context, Result};
use ppo_crds::RunConfig;
use ppo_crds::run_config::Location;
use ppo_crds::spec::{AdapterSpec, Engine};
use tch::Tensor;

use self::kept::Kept;
use self::learner::Learner;
use self::pieces::Pieces;
use self::rows::Rows;
use crate::model::{Adapter, Decoder, Entropy, MergedWeights, ValueModel, Weights};
use crate::ppo::distribution::entropy_temperature;
use crate::ranks::Ranks;

/// The policy that learns.
#[derive(Debug)]
pub struct Actor {
    /// Computes with views of the learner's parameters.
    pub decoder: Decoder,
    /// Its parameters and optimizer.
    pub learner: Learner,
    /// What an adapter is trained on; None: all weights are trained.
    pub frozen: Option<Frozen>,
    /// The pass of the step's first update, once it is made.
    pub kept: Option<Kept>,
}

impl Actor {
    /// Log-probabilities of the response tokens under the tempered distribution before the step's updates, [samples, columns].
    ///
    /// # Errors
    /// When libtorch fails, or a rank is lost.
    pub fn old_logprobs(&mut self, pieces: &Pieces, ranks: &Ranks, config: &RunConfig) -> Result<Tensor> {
        let device = self.decoder.device();
        let pass = |rows: &Rows, learns: bool| {
            let entropy = learns.then(|| entropy_of(config));
            rows.logprobs(&self.decoder, config.generation.temperature, entropy)
        };
        let (logprobs, kept) = pieces.compute_keeping(ranks, device, pieces.policy_learns, pass)?;
        self.kept = kept;
        Ok(logprobs)
    }

    /// Those under the frozen weights below the adapter, as the reference says them.
    ///
    /// # Errors
    /// When there is no adapter, libtorch fails, or a rank is lost.
    pub fn frozen_logprobs(&self, pieces: &Pieces, ranks: &Ranks, temperature: f64) -> Result<Tensor> {
        let frozen = self.frozen.as_ref();
        let frozen = frozen.context("no weights are frozen: there is no adapter")?;
        pieces.logprobs(&frozen.decoder, ranks, temperature)
    }

    /// From now on it is marked which weights change, where that may spare engines in other processes most of a new version. All ranks mark
    /// where rank 0 does.
    ///
    /// # Errors
    /// When there is no memory for the marks.
    pub fn mark_changes(&mut self, config: &RunConfig) -> Result<()> {
        // vLLM takes whole tensors; an adapter changes all of those that it goes into.
        let is_of_use = config.rollout.engine == Engine::Builtin && self.frozen.is_none();
        match is_of_use {
            true => self.learner.parameters.mark_changes(),
            false => Ok(()),
        }
    }

    /// The policy's weights as engines compute with them, an adapter merged into each when it is asked for. They share the trained
    /// tensors.
    pub fn weights(&self) -> MergedWeights {
        let trained = self.learner.parameters.weights();
        match &self.frozen {
            None => trained.into(),
            Some(Frozen { base, adapter, .. }) => {
                let adapter = Adapter {
                    spec: adapter.clone(),
                    weights: trained,
                };
                MergedWeights::new(base.shallow_clone(), &adapter)
            }
        }
    }
}

/// The weights below an adapter, which stay as they are: the reference and a critic may compute with the same ones.
#[derive(Debug)]
pub struct Frozen {
    /// All of them.
    pub base: Weights,
    /// Computes with them alone.
    pub decoder: Decoder,
    /// Sizes of the adapter.
    pub adapter: AdapterSpec,
}

/// The critic: a trunk and a value head of its own.
#[derive(Debug)]
pub struct Critic {
    /// Computes with views of the learner's parameters.
    pub model: ValueModel,
    /// Parameters and optimizer of trunk and head, or of an adapter and the head.
    pub learner: Learner,
    /// The model that it came from, as the manifest names it.
    pub location: Location,
    /// Folder of that model.
    pub folder: PathBuf,
    /// Sizes of the adapter; None: all weights are trained.
    pub adapter: Option<AdapterSpec>,
    /// Whether the pass of a step's first update is kept until then.
    pub keeps_pass: bool,
    /// That pass, once it is made.
    pub kept: Option<Kept>,
}

impl Critic {
    /// Values of the states before each response token before the step's updates, [samples, columns].
    ///
    /// # Errors
    /// When libtorch fails, or a rank is lost.
    pub fn old_values(&mut self, pieces: &Pieces, ranks: &Ranks) -> Result<Tensor> {
        let device = self.model.decoder.device();
        let pass = |rows: &Rows, _| Ok((rows.values(&self.model)?, None));
        let (values, kept) = pieces.compute_keeping(ranks, device, self.keeps_pass, pass)?;
        self.kept = kept;
        Ok(values)
    }
}

/// The entropy that an update measures, and rewards where the run does.
pub fn entropy_of(config: &RunConfig) -> Entropy {
    Entropy {
        temperature: entropy_temperature(config.generation.temperature, config.algorithm.profile),
        is_learnt: config.algorithm.entropy_coef != 0.0,
    }
}

/// Optimizer updates of the actor and of the critic in a run of `steps` steps.
pub fn planned_updates(config: &RunConfig, steps: u64) -> (u64, u64) {
    let per_step = (config.batch.updates_per_epoch() * config.batch.ppo_epochs) as u64;
    (
        steps.saturating_sub(config.optimizer.critic_warmup_steps) * per_step,
        steps * per_step,
    )
}
