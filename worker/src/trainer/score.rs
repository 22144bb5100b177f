//! The score stage: what every role says of the samples.

use anyhow::{Context, Result};
use ppo_crds::spec::Profile;
use tch::Tensor;

use super::Trainer;
use crate::actor::rows::{Rows, mask, padded};
use crate::outcome::RewardFailed;
use crate::reward::{ScoredSample, Scores};
use crate::roles::Reference;
use crate::stages::{Rollouts, Sample, Scored};
use crate::telemetry::Stage;

impl Trainer {
    pub(super) fn score(&mut self, Rollouts { samples }: Rollouts) -> Result<Scored> {
        self.stop.check()?;
        let _no_grad = tch::no_grad_guard();
        let pieces = Pieces::new(self, &samples);
        let temperature = self.config.generation.temperature;
        let Scores { scores, extra } = self.timed(Stage::Score, |it| it.rewards(&samples))?;
        let reference_logprobs = self.timed(Stage::Reference, |it| {
            let logprobs = |reference: &Reference| reference.logprobs(&pieces, temperature);
            it.reference.as_ref().map(logprobs).transpose()
        })?;
        let old_logprobs = self.timed(Stage::OldLogprobs, |it| {
            pieces.compute(|rows| Ok(rows.logprobs(&it.actor.decoder, temperature, false)?.0))
        })?;
        let values = self.timed(Stage::Values, |it| {
            it.critic
                .as_ref()
                .map(|critic| pieces.compute(|rows| rows.values(&critic.model)))
                .transpose()
        })?;
        let mask = mask(&samples, pieces.columns);
        let rollout_logprobs = padded(&samples, pieces.columns, |sample| sample.rollout_logprobs.clone());
        Ok(Scored {
            samples,
            scores,
            extra,
            mask,
            old_logprobs,
            rollout_logprobs,
            reference_logprobs,
            values,
        })
    }

    fn rewards(&self, samples: &[Sample]) -> Result<Scores> {
        let describe = |(index, sample): (usize, &Sample)| {
            ScoredSample::new(&self.tokenizer, index, &sample.prompt, &sample.response)
        };
        let scored = samples.iter().enumerate().map(describe).collect::<Result<Vec<_>>>()?;
        self.runtime.block_on(self.reward.score(&scored)).context(RewardFailed)
    }

    /// Columns of the step's tensors: the longest response, and for TRL the slot after it.
    fn columns(&self, samples: &[Sample]) -> usize {
        let longest = samples.iter().map(|sample| sample.response.len()).max().unwrap_or(0);
        match self.slot_after() {
            true => (longest + 1).min(self.sampling.max_new_tokens),
            false => longest,
        }
    }

    /// Whether the critic also values the state after the last token.
    pub(super) fn slot_after(&self) -> bool {
        self.config.algorithm.profile == Profile::Trl
    }
}

/// The samples in pieces of `microRolloutBatchSize`, each a forward pass without gradients.
pub(crate) struct Pieces<'a> {
    pub(crate) samples: &'a [Sample],
    pub(crate) size: usize,
    pub(crate) columns: usize,
    slot_after: bool,
}

impl<'a> Pieces<'a> {
    fn new(trainer: &Trainer, samples: &'a [Sample]) -> Self {
        let size = trainer.config.batch.micro_rollout_batch_size.max(1);
        Self {
            samples,
            size,
            columns: trainer.columns(samples),
            slot_after: trainer.slot_after(),
        }
    }

    /// [samples, columns] from what `forward` says of each piece.
    pub(crate) fn compute(&self, forward: impl Fn(&Rows) -> Result<Tensor>) -> Result<Tensor> {
        let piece = |samples: &[Sample]| {
            let samples: Vec<&Sample> = samples.iter().collect();
            forward(&Rows::new(&samples, self.columns, self.slot_after)?)
        };
        let pieces = self.samples.chunks(self.size).map(piece).collect::<Result<Vec<_>>>()?;
        Ok(Tensor::f_cat(&pieces, 0)?)
    }
}
