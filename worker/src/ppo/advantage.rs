//! From token rewards to advantages: the one place where GAE, RLOO, GRPO, Dr. GRPO and REINFORCE++ differ.

mod gae;
mod group;

use ppo_crds::run_config::Algorithm;
use ppo_crds::spec::{Estimator, KlPlacement, Profile};
use tch::Tensor;

use super::grid::{Grid, read_column};
use super::shape::clip;
use super::{Error, mask, whiten};
use group::{Centring, Single};

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
///   the reward-to-go, so that token KL stays. `verl` and `trl`: on the row's sum of rewards, constant over tokens.
/// * GRPO (arXiv 2402.03300): (R - mean) / (unbiased std + 1e-6), constant over tokens; a group of one keeps R. Dr. GRPO
///   (arXiv 2503.20783): without the division. `verl`: on the row's sum. `openrlhf`: eps 1e-9, then as its RLOO.
/// * REINFORCE++ (arXiv 2501.03262): reward-to-go. Baseline: the group's mean is subtracted at the last token first;
///   `verl`: from the row's sum, constant over tokens.
///
/// `openrlhf` clips the score after the baseline is subtracted and takes gamma = 1 for group estimators. Profiles of
/// frameworks without an estimator use the default's. `score.whitenRewards` scales token rewards before GAE and
/// REINFORCE++.
///
/// # Errors
/// Inputs of other shapes; missing values, scores or groups; a group too short (named); settings under which the KL
/// penalty would not reach the update ([`check`]).
pub fn advantages(algorithm: &Algorithm, input: &AdvantageInput) -> Result<Advantages, Error> {
    check(algorithm)?;
    let mask = Grid::read_mask(input.mask)?;
    let rewards = token_rewards(algorithm, input, &mask)?;
    let (mut raw, mut returns) = match algorithm.estimator {
        Estimator::Gae => {
            let values = read_values(input, &mask)?;
            gae::advantages_and_returns(algorithm, &rewards, &values, &mask)
        }
        Estimator::ReinforcePlusPlus => twice(gae::reward_to_go(algorithm.profile, algorithm.gamma, &rewards, &mask)),
        _ => twice(group_advantages(algorithm, input, &rewards, &mask)?),
    };
    let whitened = algorithm
        .whiten
        .then(|| whiten::whitened(algorithm.profile, &raw, &mask, false));
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

/// Refuses settings under which a configured KL penalty or reward whitening would silently do nothing. Call it before a
/// run starts.
///
/// # Errors
/// GRPO or Dr. GRPO, whose advantage is a function of the scores alone, with the KL placed in the reward (but under
/// `openrlhf` and `verl`, which carry it); reward whitening with an estimator that normalises scores.
pub fn check(algorithm: &Algorithm) -> Result<(), Error> {
    let estimator = algorithm.estimator;
    let token_rewards_unread = matches!(estimator, Estimator::Grpo | Estimator::DrGrpo)
        && !matches!(algorithm.profile, Profile::Openrlhf | Profile::Verl);
    if token_rewards_unread && algorithm.kl.placement == KlPlacement::Reward && algorithm.kl.coef != 0.0 {
        return Err(Error::Settings(format!(
            "kl.placement is reward, but {estimator:?} reads the scores alone, so the KL penalty (coefficient {}) would \
             not reach the update: set kl.placement to loss, or kl.coef to 0",
            algorithm.kl.coef
        )));
    }
    let reads_tokens = matches!(estimator, Estimator::Gae | Estimator::ReinforcePlusPlus);
    if algorithm.score.whiten_rewards && !reads_tokens {
        return Err(Error::Settings(format!(
            "score.whitenRewards is for gae and reinforcePlusPlus, {estimator:?} normalises scores itself: switch it off"
        )));
    }
    Ok(())
}

fn twice(advantages: Grid<f64>) -> (Grid<f64>, Grid<f64>) {
    (advantages.clone(), advantages)
}

fn token_rewards(algorithm: &Algorithm, input: &AdvantageInput, mask: &Grid<bool>) -> Result<Grid<f64>, Error> {
    let rewards = Grid::read_as("rewards", input.rewards, mask.shape())?;
    if !algorithm.score.whiten_rewards {
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

fn group_advantages(
    algorithm: &Algorithm,
    input: &AdvantageInput,
    rewards: &Grid<f64>,
    mask: &Grid<bool>,
) -> Result<Grid<f64>, Error> {
    let estimator = algorithm.estimator;
    let groups = input.groups.ok_or_else(|| Error::Missing {
        name: "groups",
        why: format!("{estimator:?} compares the samples of a prompt, so it needs the group id of each"),
    })?;
    Error::unless_shape("groups", &[groups.len() as i64], &[mask.batch as i64])?;
    let centre = |scores: &[f64]| {
        group::centred(&Centring {
            estimator,
            scores,
            groups,
            group_size: input.group_size,
            deviation_eps: if algorithm.profile == Profile::Openrlhf {
                1e-9
            } else {
                1e-6
            },
            single: single_rule(algorithm.profile, estimator),
        })
    };
    // On the row's sum of token rewards, KL included: verl's compute_rloo_outcome_advantage and its neighbours in
    // core_algos.py; TRL's RLOO (rlhf_reward = score - coef * KL sum).
    let on_sums =
        algorithm.profile == Profile::Verl || (algorithm.profile == Profile::Trl && estimator == Estimator::Rloo);
    if on_sums {
        let sums: Vec<f64> = rewards.rows().map(|row| row.iter().sum()).collect();
        return Ok(constant(&centre(&sums)?, mask));
    }
    let scores = input.scores.ok_or_else(|| Error::Missing {
        name: "scores",
        why: format!("{estimator:?} compares the scores of a prompt's samples"),
    })?;
    let scores = read_column("scores", scores, mask.batch)?;
    let placed: Vec<f64> = scores.iter().map(|&score| clip(&algorithm.score, score)).collect();
    if algorithm.profile == Profile::Openrlhf {
        let centred: Vec<f64> = centre(&scores)?
            .into_iter()
            .map(|score| clip(&algorithm.score, score))
            .collect();
        let rewards = replaced(rewards, mask, &placed, &centred);
        return Ok(gae::reward_to_go(algorithm.profile, 1.0, &rewards, mask));
    }
    let centred = centre(&placed)?;
    if matches!(estimator, Estimator::Grpo | Estimator::DrGrpo) {
        return Ok(constant(&centred, mask));
    }
    let rewards = replaced(rewards, mask, &placed, &centred);
    Ok(gae::reward_to_go(algorithm.profile, algorithm.gamma, &rewards, mask))
}

/// What a framework makes of a group of one sample.
fn single_rule(profile: Profile, estimator: Estimator) -> Single {
    match (profile, estimator) {
        (Profile::Verl, _) => Single::Uncentred,
        (Profile::Openrlhf, Estimator::DrGrpo | Estimator::ReinforcePlusPlusBaseline) => Single::Centred,
        (Profile::Openrlhf, _) => Single::Refused,
        (_, Estimator::Grpo | Estimator::DrGrpo) => Single::Kept,
        _ => Single::Refused,
    }
}

/// Each row's number on every token of the row.
fn constant(numbers: &[f64], mask: &Grid<bool>) -> Grid<f64> {
    let mut grid = mask.filled(0.0);
    for (sample, &number) in numbers.iter().enumerate() {
        grid.row_mut(sample).fill(number);
    }
    grid.keep(mask);
    grid
}

/// The token rewards with another score at the last token of each row.
fn replaced(rewards: &Grid<f64>, mask: &Grid<bool>, placed: &[f64], score: &[f64]) -> Grid<f64> {
    let mut rewards = rewards.clone();
    for sample in 0..mask.batch {
        // An adjustment, so that the token's KL stays. The place is the one of the profiles that come here.
        if let Some(last) = mask::last_index(mask.row(sample)) {
            rewards.row_mut(sample)[last] += score[sample] - placed[sample];
        }
    }
    rewards
}
