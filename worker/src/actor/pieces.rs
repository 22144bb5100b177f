//! Forward passes over the samples of a step: shared by the ranks, a piece at a time.

use anyhow::{Context, Result, ensure};
use ppo_crds::RunConfig;
use ppo_crds::spec::Profile;
use tch::{Device, Kind, Tensor};

use super::rows::Rows;
use crate::data::Prompt;
use crate::engine::FinishReason;
use crate::model::Decoder;
use crate::native::device::send;
use crate::ranks::Ranks;
use crate::ranks::deal::deal;
use crate::ranks::order::Order;
use crate::stages::Sample;

/// The samples in pieces of `microRolloutBatchSize`, each a forward pass without gradients.
#[derive(Debug)]
pub struct Pieces<'a> {
    /// The samples.
    pub samples: &'a [Sample],
    /// Samples of a piece.
    pub size: usize,
    /// Columns of the step's tensors.
    pub columns: usize,
    /// Whether the critic also values the state after the last token.
    pub slot_after: bool,
}

impl<'a> Pieces<'a> {
    /// Of a step's samples, as `config` cuts them.
    pub fn of(config: &RunConfig, samples: &'a [Sample], columns: usize) -> Self {
        Self {
            samples,
            size: config.batch.micro_rollout_batch_size.max(1),
            columns,
            slot_after: slot_after(config),
        }
    }

    /// [samples, columns] in this machine's memory, from what `forward` says of each piece on `device`; every rank computes its share and
    /// gets the whole.
    ///
    /// # Errors
    /// Those of `forward`; when a rank is lost, naming it.
    pub fn compute(&self, ranks: &Ranks, device: Device, forward: impl Fn(&Rows) -> Result<Tensor>) -> Result<Tensor> {
        let lengths: Vec<usize> = self.samples.iter().map(Sample::length).collect();
        let shares = deal(&lengths, ranks.count());
        let shape = [self.samples.len() as i64, self.columns as i64];
        // On the device of the model, until all of it is there.
        let mut whole = Tensor::f_zeros(shape, (Kind::Float, device))?;
        for piece in shares[ranks.rank()].chunks(self.size) {
            let samples: Vec<&Sample> = piece.iter().map(|&sample| &self.samples[sample]).collect();
            let rows: Vec<i64> = piece.iter().map(|&sample| sample as i64).collect();
            let answer = forward(&Rows::new(&samples, self.columns, self.slot_after)?)?;
            let _ = whole.f_index_copy_(
                0,
                &send(&Tensor::from_slice(&rows), device)?,
                &answer.f_to_kind(Kind::Float)?,
            )?;
        }
        // Every row is one rank's and zero at the others.
        ranks.sum(&whole)?;
        Ok(whole.f_to_device(Device::Cpu)?)
    }

    /// Log-probabilities of the response tokens under the tempered distribution of `decoder`, [samples, columns].
    ///
    /// # Errors
    /// When libtorch fails, or a rank is lost.
    pub fn logprobs(&self, decoder: &Decoder, ranks: &Ranks, temperature: f64) -> Result<Tensor> {
        self.compute(ranks, decoder.device(), |rows| {
            Ok(rows.logprobs(decoder, temperature, false)?.0)
        })
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
