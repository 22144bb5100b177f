//! Forward passes over the samples of a step: shared by the ranks, a piece at a time.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use ppo_crds::RunConfig;
use ppo_crds::spec::Profile;
use tch::{Device, Kind, Tensor};

use super::kept::{Kept, Pass};
use super::mini_batches::{MiniBatches, Shares};
use super::packing::Room;
use super::rows::{Rows, passes};
use crate::data::Prompt;
use crate::engine::FinishReason;
use crate::model::Decoder;
use crate::native::device::send;
use crate::ranks::Ranks;
use crate::ranks::deal::deal;
use crate::ranks::order::Order;
use crate::stages::Sample;
use crate::telemetry::Live;

/// The samples of a step in pieces, for forward passes without gradients. For the models that learn a piece is a pass of as many samples as have
/// the memory of `microRolloutBatchSize`; where the pass of the first update is kept, its samples are a piece of their own. A reference gets
/// pieces of just that many samples, wherever it is, and may compute one in several passes.
#[derive(Debug)]
pub struct Pieces<'a> {
    /// The samples.
    pub samples: &'a [Sample],
    /// Samples of a reference's piece.
    pub size: usize,
    /// For a piece of the models that learn.
    room: Room,
    /// Columns of the step's tensors.
    pub columns: usize,
    /// Whether the critic also values the state after the last token.
    pub slot_after: bool,
    /// Whether the policy is updated in this step, as the critic always is.
    pub policy_learns: bool,
    /// Steps completed before this one.
    step: u64,
    first: Option<Shares>,
    /// Told of every piece that is computed.
    live: Arc<Live>,
}

impl<'a> Pieces<'a> {
    /// Of the samples of the step after `step`, as `config` cuts them for `ranks` ranks. `live` is told of every piece that is computed.
    pub fn of(
        config: &RunConfig,
        step: u64,
        samples: &'a [Sample],
        columns: usize,
        ranks: usize,
        live: &Arc<Live>,
    ) -> Self {
        let mini_batches = MiniBatches {
            config,
            step,
            samples,
            ranks,
        };
        let size = config.batch.micro_rollout_batch_size.max(1);
        Self {
            samples,
            size,
            room: Room::of(config, size),
            columns,
            slot_after: slot_after(config),
            policy_learns: config.policy_learns(step),
            step,
            first: mini_batches.first_kept(),
            live: live.clone(),
        }
    }

    /// Log-probabilities of the response tokens under the tempered distribution of `decoder`, which does not learn, [samples, columns] in
    /// this machine's memory; every rank computes its share and gets the whole.
    ///
    /// # Errors
    /// When libtorch fails, or a rank is lost.
    pub fn logprobs(&self, decoder: &Decoder, ranks: &Ranks, temperature: f64) -> Result<Tensor> {
        let pass = |rows: &Rows, _| rows.logprobs(decoder, temperature, None);
        let of_piece = |piece: &[usize]| -> Vec<Vec<usize>> {
            let of_pass = |places: Vec<usize>| places.into_iter().map(|place| piece[place]).collect();
            passes(&self.chosen(piece)).into_iter().map(of_pass).collect()
        };
        let split = |share: &[usize]| share.chunks(self.size).flat_map(of_piece).collect();
        Ok(self.compute_in(ranks, decoder.device(), None, split, pass)?.0)
    }

    /// The first of what `forward` gives for each piece on `device`, [samples, columns] in this machine's memory. With `keep` also the pass
    /// of the first update with its graph, if the step keeps one: `forward` is told whether it is for that.
    ///
    /// # Errors
    /// Those of `forward`; when a rank is lost, naming it.
    pub fn compute_keeping(
        &self,
        ranks: &Ranks,
        device: Device,
        keep: bool,
        forward: impl Fn(&Rows, bool) -> Result<Pass>,
    ) -> Result<(Tensor, Option<Kept>)> {
        let first = self.first.as_ref().filter(|_| keep);
        let split = |share: &[usize]| self.room.pack(self.samples, share);
        self.compute_in(ranks, device, first, split, forward)
    }

    fn chosen(&self, places: &[usize]) -> Vec<&'a Sample> {
        places.iter().map(|&place| &self.samples[place]).collect()
    }

    /// As [`compute_keeping`](Self::compute_keeping), what is not kept in the passes that `split` makes of it.
    fn compute_in(
        &self,
        ranks: &Ranks,
        device: Device,
        first: Option<&Shares>,
        split: impl Fn(&[usize]) -> Vec<Vec<usize>>,
        forward: impl Fn(&Rows, bool) -> Result<Pass>,
    ) -> Result<(Tensor, Option<Kept>)> {
        let shape = [self.samples.len() as i64, self.columns as i64];
        // On the device of the model, until all of it is there.
        let mut whole = Tensor::f_zeros(shape, (Kind::Float, device))?;
        let mut compute = |piece: &[usize], learns: bool| -> Result<Pass> {
            let _no_grad = (!learns).then(tch::no_grad_guard);
            let rows: Vec<i64> = piece.iter().map(|&sample| sample as i64).collect();
            let pass = forward(&Rows::new(&self.chosen(piece), self.columns, self.slot_after)?, learns)?;
            let rows = send(&Tensor::from_slice(&rows), device)?;
            let _ = whole.f_index_copy_(0, &rows, &pass.0.f_detach()?.f_to_kind(Kind::Float)?)?;
            self.live.goes_on();
            Ok(pass)
        };
        let kept = first.map(|shares| -> Result<Kept> {
            let samples = shares[ranks.rank()].clone();
            Ok(Kept {
                step: self.step,
                pass: compute(&samples, true)?,
                samples,
            })
        });
        let kept = kept.transpose()?;
        for pass in split(&self.rest(first, ranks)) {
            drop(compute(&pass, false)?);
        }
        // Every row is one rank's and zero at the others.
        ranks.sum(&whole)?;
        Ok((whole.f_to_device(Device::Cpu)?, kept))
    }

    /// This rank's share of the samples that are not in `first`.
    fn rest(&self, first: Option<&Shares>, ranks: &Ranks) -> Vec<usize> {
        let mut is_first = vec![false; self.samples.len()];
        first
            .into_iter()
            .flatten()
            .flatten()
            .for_each(|&sample| is_first[sample] = true);
        let rest: Vec<usize> = (0..self.samples.len()).filter(|&sample| !is_first[sample]).collect();
        let lengths: Vec<usize> = rest.iter().map(|&sample| self.samples[sample].length()).collect();
        let share = &deal(&lengths, ranks.count())[ranks.rank()];
        share.iter().map(|&place| rest[place]).collect()
    }

    /// Gives the samples to the other ranks.
    ///
    /// # Errors
    /// When a rank is lost, naming it.
    pub fn give(&self, ranks: &Ranks, step: u64) -> Result<()> {
        if ranks.is_alone() {
            return Ok(());
        }
        let lengths = self
            .samples
            .iter()
            .map(|sample| (sample.prompt.ids.len(), sample.response.len()));
        ranks.order(&Order::Samples {
            step,
            lengths: lengths.collect(),
            columns: self.columns,
        })?;
        let ids = self.samples.iter().flat_map(Sample::tokens).map(i64::from);
        ranks.broadcast(&Tensor::from_slice(&ids.collect::<Vec<_>>()))
    }
}

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
