//! The score stage: scores, values and log-probabilities of the samples, from every role.

use anyhow::{Context, Result};

use super::Trainer;
use crate::actor::pieces::{Pieces, columns};
use crate::actor::rows::{mask, padded};
use crate::outcome::RewardFailed;
use crate::ranks::order::Order;
use crate::reward::{ScoredSample, Scores};
use crate::roles::Reference;
use crate::stages::{Rollouts, Sample, Scored};
use crate::telemetry::Stage;

impl Trainer {
    pub(super) fn score(&mut self, Rollouts { samples }: Rollouts) -> Result<Scored> {
        self.stop.check()?;
        let columns = columns(&self.config, &samples);
        let pieces = Pieces::of(
            &self.config,
            self.steps_done,
            &samples,
            columns,
            self.ranks.count(),
            &self.live,
        );
        let temperature = self.config.generation.temperature;
        let Scores { scores, extra } = self.timed(Stage::Score, |it| it.rewards(&samples))?;
        let given = pieces.give(&self.ranks, self.steps_done);
        given.with_context(|| self.place(Stage::OldLogprobs))?;
        let reference_logprobs = self.timed(Stage::Reference, |it| {
            let logprobs = |reference: &Reference| reference.logprobs(&it.actor, &pieces, &it.ranks, temperature);
            it.reference.as_ref().map(logprobs).transpose()
        })?;
        let old_logprobs = self.timed(Stage::OldLogprobs, |it| {
            it.ranks.order(&Order::Logprobs)?;
            it.actor.old_logprobs(&pieces, &it.ranks, &it.config)
        })?;
        let values = self.timed(Stage::Values, |it| {
            let Some(critic) = &mut it.critic else { return Ok(None) };
            it.ranks.order(&Order::Values)?;
            critic.old_values(&pieces, &it.ranks).map(Some)
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
        let _no_grad = tch::no_grad_guard();
        let describe = |(index, sample): (usize, &Sample)| {
            let (prompt, ids) = (&sample.prompt, &sample.response);
            ScoredSample::new(&self.tokenizer, index, prompt, ids, sample.finish_reason)
        };
        let scored = samples.iter().enumerate().map(describe).collect::<Result<Vec<_>>>()?;
        self.scores(&scored)
    }

    /// What the reward says of `samples`; it is not waited for by one who was asked to stop.
    pub(super) fn scores(&self, samples: &[ScoredSample]) -> Result<Scores> {
        let scores = async { self.reward.score(samples).await.context(RewardFailed) };
        self.runtime.block_on(self.stop.unless_requested(scores))
    }
}
