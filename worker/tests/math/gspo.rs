//! One ratio for all tokens of a response.

use ppo_crds::defaults;
use ppo_crds::run_config::Algorithm;
use ppo_crds::spec::{Aggregation, Estimator, Profile, Ratio, Surrogate};
use tch::{Kind, Tensor};

use crate::step::{AGGREGATIONS, PROFILES, Step, assert_close, everything};

fn sequences(profile: Profile, aggregation: Aggregation) -> Algorithm {
    let mut algorithm = everything(profile, Estimator::Grpo, aggregation);
    algorithm.ratio = Ratio::Sequence;
    (algorithm.clip.policy_low, algorithm.clip.policy_high) = (0.05, 0.08);
    algorithm
}

/// The first column's on every token of the row.
fn alike(advantages: &Tensor) -> Tensor {
    advantages.narrow(1, 0, 1).expand_as(advantages).contiguous()
}

#[track_caller]
fn assert_finite_differences(algorithm: &Algorithm, step: &mut Step, advantages: &Tensor) {
    let gradient = step.slope(algorithm, advantages).1;
    let here = step.new.copy();
    for cell in 0..here.numel() as i64 {
        let far = 1e-6;
        let mut at = |by: f64| {
            step.new = here.copy();
            let _ = step.new.view(-1).get(cell).g_add_scalar_(by);
            step.slope(algorithm, advantages).0
        };
        let found = (at(far) - at(-far)) / (2.0 * far);
        let ours = gradient.view(-1).double_value(&[cell]);
        assert!((found - ours).abs() < 1e-6, "{algorithm:?} {cell}: {found} {ours}");
    }
    step.new = here;
}

#[test]
fn the_gradient_of_a_responses_ratio_is_that_of_finite_differences() {
    for profile in PROFILES.into_iter().filter(|&profile| profile != Profile::Verl) {
        for aggregation in AGGREGATIONS {
            let mut step = Step::random(12, 3);
            let advantages = step.values.copy();
            assert_finite_differences(&sequences(profile, aggregation), &mut step, &advantages);
        }
    }
}

#[test]
fn verls_gradient_is_the_same_where_a_response_has_one_advantage_and_else_by_the_tokens_own() {
    let mut verl = sequences(Profile::Verl, Aggregation::TokenMean);
    verl.truncated_importance_sampling = None;
    let mut step = Step::random(12, 3);
    let of_responses = alike(&step.values);
    assert_finite_differences(&verl, &mut step, &of_responses);

    // Only the first token has an advantage, and it alone learns.
    let mask = step.mask.to_kind(Kind::Double);
    let one = mask.zeros_like();
    let _ = one.narrow(1, 0, 1).fill_(1.0);
    verl.clip.policy_high = 1000.0;
    let gradient = step.slope(&verl, &one).1;
    assert_close(&(&gradient * (&one - 1.0)), &mask.zeros_like());
    assert!(gradient.abs().max().double_value(&[]) > 0.01);
    let mut openrlhf = sequences(Profile::Openrlhf, Aggregation::TokenMean);
    openrlhf.truncated_importance_sampling = None;
    openrlhf.clip.policy_high = 1000.0;
    let shared = step.slope(&openrlhf, &one).1;
    assert_close(&(alike(&shared) * &mask), &shared);
}

#[test]
fn a_response_of_one_token_has_that_tokens_ratio() {
    for profile in PROFILES {
        let mut step = Step::random(3, 6);
        let first = step.mask.zeros_like();
        let _ = first.narrow(1, 0, 1).fill_(1.0);
        step.mask = first;
        let advantages = step.values.copy();
        let mut algorithm = sequences(profile, Aggregation::SequenceMeanTokenMean);
        algorithm.truncated_importance_sampling = None;
        let by_sequence = step.slope(&algorithm, &advantages);
        algorithm.ratio = Ratio::Token;
        let by_token = step.slope(&algorithm, &advantages);
        assert!((by_sequence.0 - by_token.0).abs() < 1e-12, "{profile:?}");
        assert_close(&by_sequence.1, &by_token.1);
    }
}

#[test]
fn the_ratio_is_the_geometric_mean_and_the_numbers_are_of_tokens() {
    // Log-ratios of 0.2 and 0.4, and of -0.5 for a response of one token; the last slot is padding.
    let row = |rows: [[f64; 3]; 2]| Tensor::from_slice(&rows.concat()).view([2, 3]);
    let step = Step {
        mask: row([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]),
        old: row([[-1.0, -1.0, 0.0], [-1.0, 0.0, 0.0]]),
        new: row([[-0.8, -0.6, 99.0], [-1.5, 99.0, 99.0]]),
        ..Step::random(1, 2)
    };
    let mut algorithm = defaults::algorithm_by(Profile::Default, Estimator::Grpo, Ratio::Sequence, Surrogate::Clipped);
    (algorithm.clip.policy_low, algorithm.clip.policy_high) = (0.2, 0.5);
    let advantages = row([[2.0, 2.0, 0.0], [-1.0, 0.0, 0.0]]);
    let policy = step.policy_loss(&algorithm, &step.new, &advantages);
    // The second is below 1 - 0.2, where a negative advantage is held.
    let expected = (-2.0 * 0.3_f64.exp() + 0.8) / 2.0;
    assert!((policy.loss.double_value(&[]) - expected).abs() < 1e-12);
    let stats = policy.stats().unwrap();
    assert_eq!((stats.count, stats.clipped), (3.0, 1.0));
    assert!((stats.ratio - (2.0 * 0.3_f64.exp() + (-0.5_f64).exp())).abs() < 1e-12);
    assert!((stats.approx_kl() + 0.1 / 3.0).abs() < 1e-12);
}

#[test]
fn each_profile_has_its_frameworks_bounds_and_mean() {
    let of = |profile| {
        let algorithm = defaults::algorithm_by(profile, Estimator::Grpo, Ratio::Sequence, Surrogate::Clipped);
        let clip = algorithm.clip;
        (clip.policy_low, clip.policy_high, clip.dual, algorithm.aggregation)
    };
    let paper = (0.0003, 0.0004, None, Aggregation::SequenceMeanTokenMean);
    assert_eq!(of(Profile::Default), paper);
    for profile in [Profile::Openrlhf, Profile::Verl, Profile::Trl] {
        assert_eq!(of(profile), (0.2, 0.2, None, Aggregation::TokenMean), "{profile:?}");
    }
    // Two of the frameworks take the mean of means whatever they are told.
    let step = Step::random(4, 6);
    let loss = |profile, aggregation| {
        let algorithm = sequences(profile, aggregation);
        step.slope(&algorithm, &step.values).0
    };
    for (profile, settles) in [
        (Profile::Openrlhf, true),
        (Profile::Verl, true),
        (Profile::Trl, false),
        (Profile::Default, false),
    ] {
        let [one, other] = [Aggregation::TokenSum, Aggregation::SequenceMeanTokenMean].map(|way| loss(profile, way));
        assert_eq!(one == other, settles, "{profile:?}: {one} {other}");
    }
}

#[test]
fn a_response_as_one_action_counts_once_in_the_kl_and_one_that_is_left_out_not_at_all() {
    let algorithm = defaults::algorithm(Profile::Trl, Estimator::Rloo);
    let mut step = Step::random(4, 6);
    let advantages = alike(&step.values);
    let stats = step.policy_loss(&algorithm, &step.new, &advantages).stats().unwrap();
    assert_eq!((stats.kl_count, stats.count), (6.0, 6.0));
    // Of a micro-batch that has nothing to learn from nothing may go into the step's mean.
    step.mask = step.mask.zeros_like();
    let stats = step.policy_loss(&algorithm, &step.new, &advantages).stats().unwrap();
    assert_eq!((stats.kl_count, stats.count, stats.approx_kl()), (0.0, 0.0, 0.0));
}
