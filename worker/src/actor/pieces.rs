//! Forward passes over the samples of a step: shared by the ranks, a piece at a time.

use anyhow::{Context, Result, ensure};
use ppo_crds::RunConfig;
use ppo_crds::spec::Profile;
use tch::{Device, Kind, Tensor};

use super::kept::{Kept, Pass};
use super::mini_batches::{MiniBatches, Shares};
use super::rows::Rows;
use crate::data::Prompt;
use crate::engine::FinishReason;
use crate::model::Decoder;
use crate::native::device::send;
use crate::ranks::Ranks;
use crate::ranks::deal::deal;
use crate::ranks::order::Order;
use crate::stages::Sample;

/// The samples of a step in pieces of `microRolloutBatchSize`, each a forward pass without gradients. Where the pass of the first update
/// is kept, its samples are a piece of their own for the models that learn.
#[derive(Debug)]
pub struct Pieces<'a> {
    /// The samples.
    pub samples: &'a [Sample],
    /// Samples of a piece.
    pub size: usize,
    /// Columns of the step's tensors: the longest response, as TRL's `batch_generation` pads, so that under `trl` only shorter responses
/// have a slot after them. Under `alpacafarm` as many as a response may have: AlpacaFarm pads to `response_len`, and whitens and
/// averages over all of it. Past the end of a response values are taken as 0, where AlpacaFarm has what its critic says of padding.
pub fn columns(config: &RunConfig, samples: &[Sample]) -> usize {
    let allowed = config.generation.max_new_tokens as usize;
    let longest = samples.iter().map(|sample| sample.response.len()).max().unwrap_or(0);
    match config.algorithm.profile {
        Profile::Alpacafarm => allowed.max(longest),
        Profile::Default | Profile::Openrlhf | Profile::Verl | Profile::Trl => longest,
    }
}

/// Whether the critic also values the state after the last token.
pub fn slot_after(config: &RunConfig) -> bool {
    config.algorithm.profile == Profile::Trl
}

/// The other side of [`Pieces::give`]: samples with their tokens and nothing else.
///
/// # Errors
/// When rank 0 is lost.
pub fn take_samples(ranks: &Ranks, lengths: &[(usize, usize)]) -> Result<Vec<Sample>> {
    let total: usize = lengths.iter().map(|(prompt, response)| prompt + response).sum();
    let ids = Tensor::f_zeros([total as i64], (Kind::Int64, Device::Cpu))?;
    ranks.broadcast(&ids)?;
    let ids = Vec::<i64>::try_from(&ids)?;
    let ids = ids.into_iter().map(u32::try_from).collect::<Result<Vec<_>, _>>();
    let ids = ids.context("rank 0 gave a token id that is none")?;
    let mut rest = &ids[..];
    let mut next = |length: usize| -> Result<&[u32]> {
        ensure!(length <= rest.len(), "rank 0 gave too few tokens");
        let (taken, left) = rest.split_at(length);
        rest = left;
        Ok(taken)
    };
    let sample = |&(prompt, response): &(usize, usize)| -> Result<Sample> {
        Ok(Sample {
            prompt: Prompt {
                ids: next(prompt)?.into(),
                ..Prompt::default()
            },
            group: 0,
            response: next(response)?.to_vec(),
            rollout_logprobs: Vec::new(),
            versions: Vec::new(),
            finish_reason: FinishReason::Length,
        })
    };
    lengths.iter().map(sample).collect()
}
