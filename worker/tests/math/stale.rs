//! Samples that an older policy drew, under importance sampling.

use ppo_crds::defaults;
use ppo_crds::run_config::Algorithm;
use ppo_crds::spec::{Aggregation, CorrectionLevel, Estimator, Outside, Profile, Ratio, RolloutCorrection};
use ppo_worker::ppo::aggregation::Denominator;
use ppo_worker::ppo::correction::corrected;
use ppo_worker::ppo::policy_loss::{PolicyInput, policy_loss};
use tch::{Kind, Tensor};

use crate::step::assert_close;

/// The present policy over three tokens, and an older one.
const PRESENT: [f64; 3] = [0.25, 0.25, 0.5];
const OLDER: [f64; 3] = [0.125, 0.25, 0.625];
const ADVANTAGES: [f64; 3] = [1.0, -2.0, 0.5];

/// Eight samples of one token, as often as `policy` draws each.
fn drawn(policy: [f64; 3]) -> Vec<i64> {
    let times = policy.map(|probability| (8.0 * probability) as usize);
    (0..3).flat_map(|token| vec![token; times[token as usize]]).collect()
}

/// Gradient of the first update's loss by the present policy's logits, from samples that `drawer` drew.
fn gradient(drawer: [f64; 3], cap: Option<f64>) -> Tensor {
    let mut algorithm = defaults::algorithm(Profile::Default, Estimator::Gae);
    algorithm.truncated_importance_sampling = cap;
    let logits = Tensor::from_slice(&PRESENT).log().set_requires_grad(true);
    let tokens = Tensor::from_slice(&drawn(drawer));
    let of = |numbers: &Tensor| numbers.index_select(0, &tokens).unsqueeze(1); // [8, 1]
    let logprobs = of(&logits.log_softmax(-1, Kind::Double));
    let old = logprobs.detach();
    let input = PolicyInput {
        logprobs: &logprobs,
        old_logprobs: &old,
        advantages: &of(&Tensor::from_slice(&ADVANTAGES)),
        mask: &old.ones_like(),
        rollout_logprobs: Some(&of(&Tensor::from_slice(&drawer).log())),
    };
    let whole = Denominator::of(input.mask, 1);
    policy_loss(&algorithm, &input, &whole).unwrap().loss.backward();
    logits.grad()
}

#[test]
fn samples_of_an_older_policy_have_the_gradient_of_the_present_ones() {
    let own = gradient(PRESENT, None);
    assert_close(&gradient(OLDER, Some(1000.0)), &own);
    // Their greatest weight is 2.
    assert_close(&gradient(OLDER, Some(2.0)), &own);
    let apart = |other: Tensor| (other - &own).abs().max().double_value(&[]);
    assert!(
        apart(gradient(OLDER, None)) > 0.05,
        "without a correction they have another"
    );
    assert!(
        apart(gradient(OLDER, Some(1.5))) > 0.01,
        "a cap below their weights holds them"
    );
}

#[test]
fn samples_of_ones_own_policy_are_weighed_as_they_are() {
    assert_close(&gradient(PRESENT, Some(2.0)), &gradient(PRESENT, None));
}

#[test]
fn a_response_that_is_one_action_has_one_weight_that_of_its_whole_probability() {
    let mut algorithm = defaults::algorithm(Profile::Trl, Estimator::Rloo);
    let row = |numbers: [f64; 3]| Tensor::from_slice(&numbers).unsqueeze(0); // [1, 3]
    let (old, mask) = (row([-1.0, -2.0, -9.0]), row([1.0, 1.0, 0.0]));
    let mut loss = |cap| {
        algorithm.truncated_importance_sampling = cap;
        let input = PolicyInput {
            logprobs: &old,
            old_logprobs: &old,
            advantages: &row([2.0, 2.0, 0.0]),
            mask: &mask,
            rollout_logprobs: Some(&row([-1.5, -1.8, 0.0])),
        };
        let whole = Denominator::of(&mask, 3);
        policy_loss(&algorithm, &input, &whole).unwrap().loss.double_value(&[])
    };
    assert!((loss(Some(10.0)) + 2.0 * 0.3_f64.exp()).abs() < 1e-12);
    assert!(
        (loss(Some(1.25)) + 2.0 * 1.25).abs() < 1e-12,
        "the whole is held by the cap, not its tokens"
    );
    assert!((loss(None) + 2.0).abs() < 1e-12);
}

/// What the losses of two tokens of a response weigh that the actor draws `ratios` times as often as the engine.
fn weights(
    level: CorrectionLevel,
    outside: Outside,
    [low, high]: [f64; 2],
    ratios: [f64; 2],
    aggregation: Aggregation,
) -> [f64; 2] {
    let mut algorithm = defaults::algorithm(Profile::Default, Estimator::Gae);
    algorithm.aggregation = aggregation;
    algorithm.rollout_correction = Some(RolloutCorrection {
        level,
        outside,
        low,
        high,
    });
    let row = |numbers: [f64; 3]| Tensor::from_slice(&numbers).unsqueeze(0); // [1, 3]
    let logprobs = row([-1.0, -2.0, 0.0]).set_requires_grad(true);
    let (old, mask) = (logprobs.detach(), row([1.0, 1.0, 0.0]));
    let engine = &old - row([ratios[0].ln(), ratios[1].ln(), 99.0]);
    let input = PolicyInput {
        logprobs: &logprobs,
        old_logprobs: &old,
        advantages: &row([-1.0, -1.0, 0.0]),
        mask: &mask,
        rollout_logprobs: Some(&engine),
    };
    let whole = Denominator::of(&mask, 3);
    policy_loss(&algorithm, &input, &whole).unwrap().loss.backward();
    let gradient = logprobs.grad();
    [0, 1].map(|token| gradient.double_value(&[0, token]))
}

#[test]
fn a_ratio_outside_the_bounds_counts_as_the_bound_or_not_at_all_and_one_within_as_it_is() {
    use CorrectionLevel::{Geometric, Sequence, Token};
    use Outside::{Mask, Truncate};
    // Their product is 0.5, its geometric mean 0.707.
    let ratios = [2.0, 0.25];
    for (level, outside, bounds, expected) in [
        (Token, Truncate, [0.5, 1.5], [1.5, 0.5]),
        (Token, Truncate, [0.0, 3.0], [2.0, 0.25]),
        (Token, Mask, [0.5, 3.0], [2.0, 0.0]),
        (Token, Mask, [0.0, 1.5], [0.0, 0.25]),
        (Sequence, Truncate, [0.6, 2.0], [0.6, 0.6]),
        (Sequence, Truncate, [0.0, 0.4], [0.4, 0.4]),
        (Sequence, Mask, [0.4, 2.0], [0.5, 0.5]),
        (Sequence, Mask, [0.6, 2.0], [0.0, 0.0]),
        (Geometric, Mask, [0.7, 1.0], [2.0, 0.25]),
        (Geometric, Mask, [0.8, 1.0], [0.0, 0.0]),
        (Geometric, Mask, [0.0, 0.7], [0.0, 0.0]),
    ] {
        let found = weights(level, outside, bounds, ratios, Aggregation::TokenSum);
        let apart = found
            .iter()
            .zip(expected)
            .map(|(found, expected)| (found - expected).abs());
        assert!(
            apart.fold(0.0, f64::max) < 1e-12,
            "{level:?} {outside:?} {bounds:?}: {found:?}, expected {expected:?}"
        );
    }
}

#[test]
fn a_token_that_is_left_out_stays_in_what_the_loss_is_divided_by() {
    let bounds = [0.5, 3.0];
    let token = CorrectionLevel::Token;
    let found = weights(token, Outside::Mask, bounds, [2.0, 0.25], Aggregation::TokenMean);
    assert!((found[0] - 1.0).abs() < 1e-12 && found[1] == 0.0, "{found:?}");
}

#[test]
fn a_token_that_the_engine_held_impossible_is_left_out_and_spoils_nothing() {
    let bounds = [0.5, 3.0];
    let token = CorrectionLevel::Token;
    let found = weights(
        token,
        Outside::Mask,
        bounds,
        [1.0, f64::INFINITY],
        Aggregation::TokenSum,
    );
    assert!((found[0] - 1.0).abs() < 1e-12 && found[1] == 0.0, "{found:?}");
}

#[test]
fn the_short_form_is_the_long_one_with_an_upper_bound() {
    let mut algorithm = defaults::algorithm(Profile::Default, Estimator::Gae);
    assert_eq!(algorithm.correction(), None);
    algorithm.truncated_importance_sampling = Some(3.0);
    let long = RolloutCorrection {
        high: 3.0,
        ..RolloutCorrection::default()
    };
    assert_eq!(algorithm.correction(), Some(long));
}

#[test]
fn a_step_tells_which_share_of_its_tokens_the_bounds_hold_and_what_they_weigh() {
    use CorrectionLevel::{Geometric, Sequence, Token};
    use Outside::{Mask, Truncate};
    // Of two tokens, and of one; the products are 0.5 and 4, the geometric means 0.707 and 4. What is not of a response is never read.
    let ratios = Tensor::from_slice(&[2.0, 0.25, 4.0, f64::INFINITY]).view([2, 2]);
    let mask = Tensor::from_slice(&[1.0, 1.0, 1.0, 0.0]).view([2, 2]);
    let (old, engine) = (ratios.zeros_like(), -ratios.log());
    let told = |algorithm: &Algorithm| corrected(algorithm, &old, &engine, &mask).unwrap();
    let mut algorithm = defaults::algorithm(Profile::Default, Estimator::Gae);
    assert_eq!(told(&algorithm), None);
    for (level, outside, [low, high], out, weights) in [
        (Token, Truncate, [0.5, 3.0], 2.0, [2.0, 0.5, 3.0]),
        (Token, Mask, [0.0, 3.0], 1.0, [2.0, 0.25, 0.0]),
        (Sequence, Truncate, [0.6, 5.0], 2.0, [0.6, 0.6, 4.0]),
        (Sequence, Mask, [0.4, 2.0], 1.0, [0.5, 0.5, 0.0]),
        (Geometric, Mask, [0.8, 5.0], 2.0, [0.0, 0.0, 4.0]),
    ] {
        algorithm.rollout_correction = Some(RolloutCorrection {
            level,
            outside,
            low,
            high,
        });
        let told = told(&algorithm).unwrap();
        let weight = weights.iter().sum::<f64>() / 3.0;
        assert!(
            (told.outside - out / 3.0).abs() < 1e-12,
            "{level:?} {outside:?}: {told:?}"
        );
        assert!((told.weight - weight).abs() < 1e-12, "{level:?} {outside:?}: {told:?}");
    }
    (algorithm.profile, algorithm.ratio) = (Profile::Openrlhf, Ratio::Sequence);
    assert_eq!(
        told(&algorithm),
        None,
        "there the ratio is to the engine, and nothing is weighed"
    );
}
