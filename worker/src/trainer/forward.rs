//! The forward stage: what reference, actor and critic say of the samples before anything is learnt from them.

use anyhow::{Context, Result};
use tch::Tensor;

use super::Trainer;
use crate::actor::pieces::{Pieces, columns};
use crate::actor::rows::{mask, padded};
use crate::outcome::Diverged;
use crate::ranks::order::Order;
use crate::roles::Reference;
use crate::stages::{Drawn, Scored};
use crate::telemetry::Stage;

impl Trainer {
    pub(super) fn forward(&mut self, drawn: Drawn) -> Result<Scored> {
        self.stop.check()?;
        let samples = &drawn.chosen.samples;
        let columns = columns(&self.config, samples);
        let pieces = Pieces::of(
            &self.config,
            self.steps_done,
            samples,
            columns,
            self.ranks.count(),
            &self.live,
        );
        let temperature = self.config.generation.temperature;
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
        let mask = mask(samples, pieces.columns);
        let rollout_logprobs = padded(samples, pieces.columns, |sample| sample.rollout_logprobs.clone());
        let scored = Scored {
            drawn,
            mask,
            old_logprobs,
            rollout_logprobs,
            reference_logprobs,
            values,
        };
        refuse_nan(&scored, self.steps_done + 1)?;
        Ok(scored)
    }
}

/// [`Diverged`] where a model computed a NaN, which is named: the loss that it would make NaN does not say whose it was.
fn refuse_nan(scored: &Scored, step: u64) -> Result<()> {
    let computed = [
        (
            scored.reference_logprobs.as_ref(),
            "the reference's log-probabilities",
            "check its weights",
        ),
        (
            Some(&scored.old_logprobs),
            "the policy's log-probabilities",
            "lower optimizer.actorLearningRate, or check the weights that it started from",
        ),
        (
            scored.values.as_ref(),
            "the critic's values",
            "lower optimizer.criticLearningRate, or check the weights that it started from",
        ),
    ];
    for (numbers, whose, cure) in computed {
        let sample = numbers.map(first_nan).transpose()?.flatten();
        if let Some(sample) = sample {
            let what = format!("{whose} for sample {sample} are NaN; {cure}");
            return Err(Diverged { step, what }.into());
        }
    }
    Ok(())
}

/// The first row, [samples, columns], that holds a NaN.
fn first_nan(numbers: &Tensor) -> Result<Option<usize>> {
    let rows = numbers.f_isnan()?.f_any_dim(-1, false)?;
    Ok(Vec::<bool>::try_from(&rows)?.into_iter().position(|is_nan| is_nan))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stages::Judged;

    #[test]
    fn a_model_that_computes_a_nan_is_named_with_the_sample() {
        let said = |reference: f32, policy: f32, value: f32| {
            let of = |last: f32| Tensor::from_slice(&[-1.0, -2.0, -1.0, last]).view([2, 2]);
            let scored = Scored {
                drawn: Drawn::of(Judged::default()),
                mask: of(1.0).ones_like(),
                old_logprobs: of(policy),
                rollout_logprobs: of(-1.0),
                reference_logprobs: Some(of(reference)),
                values: Some(of(value)),
            };
            refuse_nan(&scored, 3).map_err(|error| {
                assert!(error.is::<Diverged>());
                error.to_string()
            })
        };
        // A bound on the KL makes a number of what is infinite.
        assert_eq!(said(f32::NEG_INFINITY, -1.0, 0.5), Ok(()));
        for (numbers, words) in [
            (
                [f32::NAN, -1.0, f32::NAN],
                "diverged in step 3: the reference's log-probabilities for sample 1 are NaN",
            ),
            (
                [-1.0, f32::NAN, 0.5],
                "the policy's log-probabilities for sample 1 are NaN",
            ),
            ([-1.0, -1.0, f32::NAN], "the critic's values for sample 1 are NaN"),
        ] {
            let [reference, policy, value] = numbers;
            let error = said(reference, policy, value).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
