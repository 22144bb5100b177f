//! From token rewards to advantages: the one place where GAE, RLOO, GRPO, Dr. GRPO and REINFORCE++ differ.

mod against_group;
mod gae;
mod group;

use ppo_crds::run_config::Algorithm;
use ppo_crds::spec::{Estimator, Profile};
use tch::Tensor;

use super::grid::Grid;
use super::{Error, mask, whiten};

/// A shaped step: all of it, because baselines and whitening are over the step.
#[derive(Clone, Copy, Debug)]
pub struct AdvantageInput<'a> {
    /// Token rewards from [`super::shape::shape`], [batch, time].
    pub rewards: &'a Tensor,
    /// The critic's values at the states before each token, [batch, time]. GAE needs them, nothing else reads them.
    pub values: Option<&'a Tensor>,
    /// Response mask, [batch, time].
    pub mask: &'a Tensor,
    /// Scores from [`super::shape::Shaped::scores`] (before the clip), [batch]. Group estimators need them, except where
    /// the profile takes the row's sum of rewards instead: `verl`, and RLOO under `trl`.
    pub scores: Option<&'a Tensor>,
    /// Group id of each sample, [batch], in any order. Group estimators need it.
    pub groups: Option<&'a [i64]>,
    /// Samples every group must have (nSamplesPerPrompt). None: any number that the estimator is defined for.
    pub group_size: Option<usize>,
}

/// Advantages of a step; all [batch, time], 0 outside the mask (except under `alpacafarm`, which masks nothing).
#[derive(Debug)]
pub struct Advantages {
    /// Before whitening.
    pub raw: Tensor,
    /// What the policy loss takes.
    pub advantages: Tensor,
    /// The critic's targets: raw + values for GAE, else raw. Under `trl` they reach one slot beyond the mask
    /// ([`super::mask::value_mask`]).
    pub returns: Tensor,
}

/// Computes the advantages of a whole step by `algorithm.estimator`, whitened when `algorithm.whiten`.
///
/// * GAE (arXiv 1506.02438): delta_t = r_t + gamma V_next - V_t, A_t = delta_t + gamma lambda A_next, where next is the
///   next token with m = 1. `openrlhf` zeroes masked tokens and pays the decay there; `trl` and `alpacafarm` step slot by
///   slot.
/// * RLOO (arXiv 2402.14740): the baseline is the mean of the group's other scores, subtracted at the last token; A_t is
///   the reward-to-go, so that token KL stays. `verl` and `trl`: on the row's sum of rewards, constant over tokens;
///   `trl` whitens it over sequences ([`super::whiten`]).
/// * GRPO (arXiv 2402.03300): (R - mean) / (unbiased std + 1e-6), constant over tokens; a group of one keeps R. With
///   `advantage.deviation: batch` the std is that of the whole step (arXiv 2508.08221). Dr. GRPO
///   (arXiv 2503.20783): without the division. With a KL penalty placed in the reward its reward-to-go is added, so that
///   it reaches the update. `verl`: on the row's sum. `trl`: eps 1e-4. `openrlhf`: eps 1e-9, then as its RLOO.
/// * REINFORCE++ (arXiv 2501.03262): reward-to-go. Baseline: the group's mean is subtracted at the last token first;
///   `verl`: from the row's sum, constant over tokens.
///
/// `openrlhf` clips the score after the baseline is subtracted and takes gamma = 1 for group estimators. Profiles of
/// frameworks without an estimator use the default's. `score.whitenRewards` scales token rewards before GAE and
/// REINFORCE++; the others bring scores to a scale of their own and do not look at it.
///
/// # Errors
/// Inputs of other shapes; missing values, scores or groups; a group too short (named).
pub fn advantages(algorithm: &Algorithm, input: &AdvantageInput) -> Result<Advantages, Error> {
    let mask = Grid::read_mask(input.mask)?;
    let rewards = token_rewards(algorithm, input, &mask)?;
    let (mut raw, mut returns) = match algorithm.estimator {
        Estimator::Gae => {
            let values = read_values(input, &mask)?;
            gae::advantages_and_returns(algorithm, &rewards, &values, &mask)
        }
        Estimator::ReinforcePlusPlus => twice(gae::reward_to_go(algorithm.profile, algorithm.gamma, &rewards, &mask)),
        _ => twice(against_group::advantages(algorithm, input, &rewards, &mask)?),
    };
    let whitened = algorithm.whiten.then(|| match algorithm.profile {
        Profile::Trl if algorithm.estimator == Estimator::Rloo => whiten::whitened_sequences(&raw, &mask),
        profile => whiten::whitened(profile, &raw, &mask, false),
    });
    if algorithm.profile == Profile::Trl {
        returns.keep(&mask::trl_value_mask(&mask));
    } else if algorithm.profile != Profile::Alpacafarm {
        returns.keep(&mask);
    }
    if algorithm.profile != Profile::Alpacafarm {
        raw.keep(&mask);
    }
    let like = input.rewards;
    Ok(Advantages {
        advantages: whitened.as_ref().unwrap_or(&raw).tensor_like(like),
        raw: raw.tensor_like(like),
        returns: returns.tensor_like(like),
    })
}

fn twice(advantages: Grid<f64>) -> (Grid<f64>, Grid<f64>) {
    (advantages.clone(), advantages)
}

fn token_rewards(algorithm: &Algorithm, input: &AdvantageInput, mask: &Grid<bool>) -> Result<Grid<f64>, Error> {
    let rewards = Grid::read_as("rewards", input.rewards, mask.shape())?;
    let reads_tokens = matches!(algorithm.estimator, Estimator::Gae | Estimator::ReinforcePlusPlus);
    if !(algorithm.score.whiten_rewards && reads_tokens) {
        return Ok(rewards);
    }
    let longer = mask::trl_value_mask(mask);
    let mask = if algorithm.profile == Profile::Trl {
        &longer
    } else {
        mask
    };
    Ok(whiten::whitened(algorithm.profile, &rewards, mask, true))
}

fn read_values(input: &AdvantageInput, mask: &Grid<bool>) -> Result<Grid<f64>, Error> {
    let Some(values) = input.values else {
        return Err(Error::Missing {
            name: "values",
            why: "gae needs the critic's values".into(),
        });
    };
    Grid::read_as("values", values, mask.shape())
}
