//! Recursions over time, from the end of each row: generalised advantage estimation and the reward-to-go.

use ppo_crds::run_config::Algorithm;
use ppo_crds::spec::Profile;

use super::super::grid::Grid;
use super::super::mask;

/// Advantages and returns (advantages + values). Unmasked slots hold numbers only a framework's own recursion gives them.
pub(super) fn advantages_and_returns(
    algorithm: &Algorithm,
    rewards: &Grid<f64>,
    values: &Grid<f64>,
    mask: &Grid<bool>,
) -> (Grid<f64>, Grid<f64>) {
    let (mut rewards, mut values) = (rewards.clone(), values.clone());
    zero_what_the_framework_zeroes(algorithm.profile, &mut rewards, &mut values, mask);
    let steps = steps(algorithm.profile, mask);
    let mut advantages = rewards.filled(0.0);
    let decay = algorithm.gamma * algorithm.lambda;
    for sample in 0..rewards.batch {
        let (reward, value, step) = (rewards.row(sample), values.row(sample), steps.row(sample));
        let row = advantages.row_mut(sample);
        let (mut next_value, mut next_advantage) = (0.0, 0.0);
        for t in (0..step.len()).rev().filter(|&t| step[t]) {
            let delta = reward[t] + algorithm.gamma * next_value - value[t];
            next_advantage = delta + decay * next_advantage;
            next_value = value[t];
            row[t] = next_advantage;
        }
    }
    let mut returns = advantages.clone();
    returns
        .cells
        .iter_mut()
        .zip(&values.cells)
        .for_each(|(cell, value)| *cell += value);
    (advantages, returns)
}

/// Sum of discounted rewards from each token on.
pub(super) fn reward_to_go(profile: Profile, gamma: f64, rewards: &Grid<f64>, mask: &Grid<bool>) -> Grid<f64> {
    let mut rewards = rewards.clone();
    let mut nothing = mask.filled(0.0);
    zero_what_the_framework_zeroes(profile, &mut rewards, &mut nothing, mask);
    let steps = steps(profile, mask);
    let mut result = rewards.filled(0.0);
    for sample in 0..rewards.batch {
        let (reward, step) = (rewards.row(sample), steps.row(sample));
        let row = result.row_mut(sample);
        let mut onward = 0.0;
        for t in (0..step.len()).rev().filter(|&t| step[t]) {
            onward = reward[t] + gamma * onward;
            row[t] = onward;
        }
    }
    result
}

/// The slots that are steps in time. `default` and `verl` skip masked tokens (compute_gae_advantage_return and
/// compute_reinforce_plus_plus_outcome_advantage in verl 0.9's core_algos.py): neither a value nor a decay is paid there.
fn steps(profile: Profile, mask: &Grid<bool>) -> Grid<bool> {
    match profile {
        Profile::Default | Profile::Verl => mask.clone(),
        Profile::Openrlhf | Profile::Trl | Profile::Alpacafarm => mask.filled(true),
    }
}

/// OpenRLHF multiplies rewards and values by the mask (get_advantages_and_returns in experience_maker.py); TRL fills
/// values beyond the slot after the response with 0, and its rewards are 0 there.
fn zero_what_the_framework_zeroes(
    profile: Profile,
    rewards: &mut Grid<f64>,
    values: &mut Grid<f64>,
    mask: &Grid<bool>,
) {
    match profile {
        Profile::Openrlhf => {
            rewards.keep(mask);
            values.keep(mask);
        }
        Profile::Trl => {
            let mut padding = mask::trl_value_mask(mask);
            for sample in 0..mask.batch {
                let length = mask::length(mask.row(sample));
                padding.row_mut(sample)[..length].fill(true);
            }
            rewards.keep(&padding);
            values.keep(&padding);
        }
        Profile::Default | Profile::Verl | Profile::Alpacafarm => {}
    }
}
