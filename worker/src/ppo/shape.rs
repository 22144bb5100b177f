//! From one score per sample to one reward per token.

use ppo_crds::run_config::{Algorithm, Score};
use ppo_crds::spec::{KlPlacement, Profile};
use tch::Tensor;

use super::grid::{Grid, read_column};
use super::{Error, kl, mask};

/// What a step knows before its rewards are shaped. All tensors without a gradient.
#[derive(Clone, Copy, Debug)]
pub struct ShapeInput<'a> {
    /// Log-probs of the sampled tokens under the policy that generated, [batch, time].
    pub old_logprobs: &'a Tensor,
    /// The same under the reference, [batch, time]. None: there is no reference and the KL is 0.
    pub ref_logprobs: Option<&'a Tensor>,
    /// Response mask, [batch, time].
    pub mask: &'a Tensor,
    /// One score per sample, [batch].
    pub scores: &'a Tensor,
    /// Whether the response ended by EOS or a stop, [batch]. None: all did.
    pub finished: Option<&'a [bool]>,
    /// Response lengths in slots, masked tool tokens included, [batch]; only `verl` reads them. None: up to the last 1.
    pub lengths: Option<&'a [usize]>,
}

/// Shaped rewards of a step.
#[derive(Debug)]
pub struct Shaped {
    /// -coef * KL at each token, plus the score at its place, [batch, time].
    pub rewards: Tensor,
    /// The KL estimate at each token, 0 outside the mask, [batch, time].
    pub kl: Tensor,
    /// Scores after penalty and scale but before the clip, [batch]: what [`super::advantage`] wants. The rewards hold
    /// them clipped.
    pub scores: Tensor,
}

/// r_t = -kl_coef * kl_t * m_t, plus R at the last token with m = 1. R is the score less the missing-EOS penalty, scaled,
/// then clipped. With the KL placed in the loss the first term is absent.
///
/// R's place by profile: `default` and `openrlhf` the last 1 of the mask; `verl` the last slot of the response, masked or
/// not; `trl` the first slot after the response, or the last slot when the row is full; `alpacafarm` the slot (number of
/// ones) - 1. A row without a 1 has no place in the first two; in the others R falls where the framework's index falls.
/// `alpacafarm` does not mask the KL: AlpacaFarm's log-probs are 0 at padding (cross-entropy ignores pad ids), so give
/// zeros there.
///
/// # Errors
/// A tensor or slice that is not [batch, time] or [batch] as said above.
pub fn shape(algorithm: &Algorithm, kl_coef: f64, input: &ShapeInput) -> Result<Shaped, Error> {
    let mask = Grid::read_mask(input.mask)?;
    Error::unless_shape("old_logprobs", &input.old_logprobs.size(), &mask.shape())?;
    let kl = token_kl(algorithm, input, &mask)?;
    let scores = adjusted_scores(&algorithm.score, input, mask.batch)?;
    let places = places(algorithm.profile, input.lengths, &mask)?;

    let coef = if algorithm.kl.placement == KlPlacement::Reward {
        reward_coef(algorithm.profile, kl_coef)
    } else {
        0.0
    };
    let mut rewards = kl.clone();
    rewards.cells.iter_mut().for_each(|cell| *cell *= -coef);
    for (sample, place) in places.into_iter().enumerate() {
        if let Some(place) = place {
            rewards.row_mut(sample)[place] += clip(&algorithm.score, scores[sample]);
        }
    }
    let like = input.old_logprobs;
    Ok(Shaped {
        rewards: rewards.tensor_like(like),
        kl: kl.tensor_like(like),
        scores: Tensor::from_slice(&scores)
            .to_kind(super::grid::wide_kind(like.kind()))
            .to_device(like.device()),
    })
}

/// The score that is placed: within the configured range.
pub(crate) fn clip(score: &Score, value: f64) -> f64 {
    // Not f64::clamp, which panics on an empty range.
    score
        .clip
        .map_or(value, |(least, greatest)| value.max(least).min(greatest))
}

fn token_kl(algorithm: &Algorithm, input: &ShapeInput, mask: &Grid<bool>) -> Result<Grid<f64>, Error> {
    let Some(reference) = input.ref_logprobs else {
        return Ok(mask.filled(0.0));
    };
    Error::unless_shape("ref_logprobs", &reference.size(), &mask.shape())?;
    let settings = &algorithm.kl;
    let estimate = kl::estimate(
        input.old_logprobs,
        reference,
        settings.estimator,
        settings.clamp,
        algorithm.profile,
    );
    let mut kl = Grid::read("kl", &estimate)?;
    if algorithm.profile != Profile::Alpacafarm {
        kl.keep(mask);
    }
    Ok(kl)
}

/// OpenRLHF takes a negative coefficient as 0 (compute_reward in openrlhf/models/utils.py).
fn reward_coef(profile: Profile, coef: f64) -> f64 {
    if profile == Profile::Openrlhf {
        coef.max(0.0)
    } else {
        coef
    }
}

fn adjusted_scores(score: &Score, input: &ShapeInput, batch: usize) -> Result<Vec<f64>, Error> {
    let mut scores = read_column("scores", input.scores, batch)?;
    if let Some(finished) = input.finished {
        Error::unless_shape("finished", &[finished.len() as i64], &[batch as i64])?;
        let penalty = score.missing_eos_penalty.unwrap_or(0.0);
        for (value, _) in scores.iter_mut().zip(finished).filter(|(_, finished)| !**finished) {
            *value -= penalty;
        }
    }
    scores.iter_mut().for_each(|value| *value *= score.scale);
    Ok(scores)
}

/// The slot of each row that receives the score.
pub(super) fn places(
    profile: Profile,
    lengths: Option<&[usize]>,
    mask: &Grid<bool>,
) -> Result<Vec<Option<usize>>, Error> {
    if let Some(lengths) = lengths {
        Error::unless_shape("lengths", &[lengths.len() as i64], &[mask.batch as i64])?;
        if let Some(long) = lengths.iter().find(|&&length| length > mask.time) {
            return Err(Error::Settings(format!(
                "lengths holds {long}, the rows have {} slots",
                mask.time
            )));
        }
    }
    if mask.time == 0 {
        return Ok(vec![None; mask.batch]);
    }
    let end = mask.time - 1;
    let place = |(sample, row): (usize, &[bool])| match profile {
        Profile::Default | Profile::Openrlhf => mask::last_index(row),
        Profile::Verl => {
            let length = lengths.map_or_else(|| mask::length(row), |lengths| lengths[sample]);
            Some(length.checked_sub(1).unwrap_or(end)) // index -1 is the row's end in Python
        }
        Profile::Trl => Some(mask::length(row).min(end)),
        Profile::Alpacafarm => Some(row.iter().filter(|&&on| on).count().checked_sub(1).unwrap_or(end)),
    };
    Ok(mask.rows().enumerate().map(place).collect())
}
