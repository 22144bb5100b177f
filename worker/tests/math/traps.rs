//! Mistakes that shipped in other systems; each test carries the name of one.

use ppo_crds::defaults;
use ppo_crds::run_config::Algorithm;
use ppo_crds::spec::{Aggregation, Estimator, KlPlacement, Profile};
use ppo_worker::ppo::Error;
use ppo_worker::ppo::advantage::{AdvantageInput, advantages};
use ppo_worker::ppo::aggregation::Denominator;
use ppo_worker::ppo::controller::{KlController, observed_kl};
use ppo_worker::ppo::policy_loss::{PolicyInput, PolicyLoss, entropy_bonus, kl_loss, policy_loss};
use ppo_worker::ppo::shape::{ShapeInput, Shaped, shape};
use ppo_worker::ppo::value_loss::{ValueInput, value_loss};
use ppo_worker::ppo::whiten;
use tch::{Kind as DType, Tensor};

use crate::step::{ESTIMATORS, PROFILES, Step, assert_close};

fn matrix<const T: usize>(rows: &[[f64; T]]) -> Tensor {
    let cells: Vec<f64> = rows.iter().flatten().copied().collect();
    Tensor::from_slice(&cells).view([rows.len() as i64, T as i64])
}

fn settings(profile: Profile, estimator: Estimator) -> Algorithm {
    defaults::algorithm(profile, estimator)
}

fn scores_alone(algorithm: &Algorithm, mask: &Tensor, scores: &[f64]) -> Shaped {
    let zeros = mask.zeros_like().to_kind(DType::Double);
    let input = ShapeInput {
        old_logprobs: &zeros,
        ref_logprobs: None,
        mask,
        scores: &Tensor::from_slice(scores),
        finished: None,
        lengths: None,
    };
    shape(algorithm, 0.0, &input).unwrap()
}

/// Advantages of a step without KL, two samples to a group.
fn of_pairs(algorithm: &Algorithm, mask: &Tensor, scores: &[f64], groups: &[i64]) -> Result<Tensor, Error> {
    let shaped = scores_alone(algorithm, mask, scores);
    let input = AdvantageInput {
        rewards: &shaped.rewards,
        values: None,
        mask,
        scores: Some(&shaped.scores),
        groups: Some(groups),
        group_size: Some(2),
    };
    Ok(advantages(algorithm, &input)?.advantages)
}

fn loss(logprobs: &Tensor, advantages: &Tensor, mask: &Tensor, whole: &Denominator) -> PolicyLoss {
    let old = logprobs.detach();
    let input = PolicyInput {
        logprobs,
        old_logprobs: &old,
        advantages,
        mask,
        rollout_logprobs: None,
    };
    policy_loss(&settings(Profile::Default, Estimator::Gae), &input, whole).unwrap()
}

#[test]
fn the_score_is_not_dropped_when_the_last_token_is_masked() {
    let mask = matrix(&[[1.0, 1.0, 0.0, 1.0, 0.0]]); // ends in a tool token
    let rewards = scores_alone(&settings(Profile::Default, Estimator::Gae), &mask, &[3.0]).rewards;
    assert_close(&rewards, &matrix(&[[0.0, 0.0, 0.0, 3.0, 0.0]]));
}

#[test]
fn the_score_is_not_one_token_early_when_pad_is_eos() {
    // Lengths come from the mask, EOS included; the second response is EOS alone.
    let mask = matrix(&[[1.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0]]);
    let rewards = scores_alone(&settings(Profile::Default, Estimator::Gae), &mask, &[3.0, 5.0]).rewards;
    assert_close(&rewards, &matrix(&[[0.0, 0.0, 3.0, 0.0], [5.0, 0.0, 0.0, 0.0]]));
}

#[test]
fn eos_is_trained() {
    let logprobs = matrix(&[[-1.0, -1.0, -1.0]]).set_requires_grad(true);
    let mask = matrix(&[[1.0, 1.0, 0.0]]); // the second token is EOS
    let advantages = matrix(&[[1.0, 1.0, 1.0]]);
    loss(&logprobs, &advantages, &mask, &Denominator::of(&mask, 3))
        .loss
        .backward();
    assert_close(&logprobs.grad(), &matrix(&[[-0.5, -0.5, 0.0]]));
}

#[test]
fn accumulation_is_not_a_mean_of_means() {
    let logprobs = matrix(&[[-1.0, -1.0, -1.0], [-1.0, -1.0, -1.0]]);
    let advantages = matrix(&[[1.0, 1.0, 1.0], [5.0, 0.0, 0.0]]);
    let mask = matrix(&[[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]);
    let whole = Denominator::of(&mask, 3);
    let parts: f64 = (0..2)
        .map(|row| {
            let row = |tensor: &Tensor| tensor.narrow(0, row, 1);
            loss(&row(&logprobs), &row(&advantages), &row(&mask), &whole)
                .loss
                .double_value(&[])
        })
        .sum();
    assert!(
        (parts + 8.0 / 4.0).abs() < 1e-12,
        "{parts}: the mean of means would be -3"
    );
}

#[test]
fn whitening_is_masked() {
    let mask = matrix(&[[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]);
    let clean = whiten::whiten(
        Profile::Default,
        &matrix(&[[1.0, 2.0, 0.0], [6.0, 0.0, 0.0]]),
        &mask,
        false,
    )
    .unwrap();
    let dirty = whiten::whiten(
        Profile::Default,
        &matrix(&[[1.0, 2.0, 99.0], [6.0, -99.0, f64::NAN]]),
        &mask,
        false,
    )
    .unwrap();
    assert_close(&clean, &dirty);
    assert!(clean.sum(DType::Double).double_value(&[]).abs() < 1e-12);
    let variance = clean.square().sum(DType::Double).double_value(&[]) / 2.0; // unbiased over 3 tokens
    assert!((variance - 1.0).abs() < 1e-7);
}

#[test]
fn one_valid_token_is_not_nan() {
    let mask = matrix(&[[0.0, 1.0, 0.0]]);
    for profile in [Profile::Default, Profile::Trl, Profile::Verl] {
        let whitened = whiten::whiten(profile, &matrix(&[[4.0, 2.5, 4.0]]), &mask, false).unwrap();
        assert_close(&whitened, &matrix(&[[0.0, 2.5, 0.0]]));
    }
}

#[test]
fn kl_that_is_set_reaches_the_update() {
    let (old, reference) = (matrix(&[[-1.0, -1.0]]), matrix(&[[-2.0, -1.5]]));
    let mask = matrix(&[[1.0, 1.0]]);
    let scores = Tensor::from_slice(&[2.0_f64]);
    let input = ShapeInput {
        old_logprobs: &old,
        ref_logprobs: Some(&reference),
        mask: &mask,
        scores: &scores,
        finished: None,
        lengths: None,
    };
    let mut algorithm = settings(Profile::Default, Estimator::Gae);
    let in_reward = shape(&algorithm, 0.1, &input).unwrap().rewards;
    assert_close(&in_reward, &matrix(&[[-0.1, 2.0 - 0.05]]));

    algorithm.kl.placement = KlPlacement::Loss;
    assert_close(&shape(&algorithm, 0.1, &input).unwrap().rewards, &matrix(&[[0.0, 2.0]]));
    algorithm.kl.estimator = ppo_crds::spec::KlEstimator::K2;
    let logprobs = old.copy().set_requires_grad(true);
    kl_loss(&algorithm, &logprobs, &reference, &mask, &Denominator::of(&mask, 2))
        .unwrap()
        .backward();
    assert_close(&logprobs.grad(), &matrix(&[[0.5, 0.25]]));
}

#[test]
fn kl_in_the_reward_reaches_every_estimator() {
    for profile in PROFILES {
        for estimator in ESTIMATORS {
            let mut step = Step::random(9, 6);
            step.groups = vec![1; 6]; // of two samples GRPO keeps the order alone
            let mut algorithm = settings(profile, estimator);
            algorithm.kl.placement = KlPlacement::Reward;
            algorithm.kl.coef = 0.0;
            let without = step.advantages(&algorithm).advantages;
            algorithm.kl.coef = 0.5;
            let with = step.advantages(&algorithm).advantages;
            let change = (with - without).abs().max().double_value(&[]);
            assert!(change > 1e-3, "{profile:?} {estimator:?} ignores the KL");
        }
    }
}

#[test]
fn a_group_s_baseline_is_subtracted_where_the_profile_puts_the_score() {
    // TRL's place is the slot after the response: what is centred there reaches the last token discounted once.
    let mask = matrix(&[[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]]);
    let mut algorithm = settings(Profile::Trl, Estimator::ReinforcePlusPlusBaseline);
    (algorithm.gamma, algorithm.whiten) = (0.5, false);
    let centred = of_pairs(&algorithm, &mask, &[1.0, 3.0], &[0, 0]).unwrap();
    assert_close(&centred, &matrix(&[[-0.25, -0.5, 0.0], [0.25, 0.5, 0.0]]));
}

#[test]
fn groups_go_by_id_not_by_order() {
    let mask = matrix(&[[1.0], [1.0], [1.0], [1.0]]);
    let algorithm = settings(Profile::Default, Estimator::Rloo);
    let given = |groups: [i64; 4]| of_pairs(&algorithm, &mask, &[1.0, 10.0, 3.0, 40.0], &groups);
    let interleaved = given([7, 8, 7, 8]).unwrap();
    assert_close(&interleaved, &matrix(&[[-2.0], [-30.0], [2.0], [30.0]]));
    let error = given([7, 7, 7, 8]).unwrap_err().to_string();
    assert!(error.contains("group 7 has 3 sample(s)"), "{error}");
}

#[test]
fn the_last_token_is_found_by_the_mask_wherever_padding_stands() {
    let mask = matrix(&[[1.0, 1.0, 0.0], [0.0, 1.0, 1.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]);
    let rewards = scores_alone(
        &settings(Profile::Default, Estimator::Gae),
        &mask,
        &[3.0, 4.0, 5.0, 6.0],
    )
    .rewards;
    assert_close(
        &rewards,
        &matrix(&[[0.0, 3.0, 0.0], [0.0, 0.0, 4.0], [0.0, 5.0, 0.0], [0.0, 0.0, 0.0]]),
    );
}

#[test]
fn an_unfinished_response_pays_before_scale_and_clip() {
    let mask = matrix(&[[1.0], [1.0]]);
    let mut algorithm = settings(Profile::Default, Estimator::Gae);
    (algorithm.score.missing_eos_penalty, algorithm.score.scale) = (Some(1.0), 2.0);
    algorithm.score.clip = Some((-5.0, 5.0));
    let zeros = mask.zeros_like();
    let input = ShapeInput {
        old_logprobs: &zeros,
        ref_logprobs: None,
        mask: &mask,
        scores: &Tensor::from_slice(&[3.0_f64, 3.0]),
        finished: Some(&[false, true]),
        lengths: None,
    };
    let shaped = shape(&algorithm, 0.0, &input).unwrap();
    assert_close(&shaped.rewards, &matrix(&[[4.0], [5.0]]));
    assert_close(&shaped.scores, &Tensor::from_slice(&[4.0_f64, 6.0]));
}

#[test]
fn a_reward_after_a_masked_token_reaches_back_over_it() {
    let (rewards, mask) = (
        matrix(&[[0.1, 0.2, 0.0, 0.3, 1.0]]),
        matrix(&[[1.0, 1.0, 0.0, 1.0, 1.0]]),
    );
    for profile in [Profile::Default, Profile::Verl] {
        let mut algorithm = settings(profile, Estimator::ReinforcePlusPlus);
        algorithm.gamma = 0.5;
        let input = AdvantageInput {
            rewards: &rewards,
            values: None,
            mask: &mask,
            scores: None,
            groups: None,
            group_size: None,
        };
        let raw = advantages(&algorithm, &input).unwrap().raw;
        assert_close(&raw, &matrix(&[[0.4, 0.6, 0.0, 0.8, 1.0]]));
    }
}

#[test]
fn trls_rloo_whitens_over_sequences_whatever_their_lengths() {
    let mask = matrix(&[[1.0, 1.0, 1.0], [1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]);
    let mut algorithm = settings(Profile::Trl, Estimator::Rloo);
    algorithm.whiten = true;
    let whitened = of_pairs(&algorithm, &mask, &[1.0, 3.0, 2.0, 8.0], &[0, 0, 1, 1]).unwrap();
    // (advantages - advantages.mean()) / (advantages.std() + 1e-4) of -2, 2, -6, 6.
    let scale = ((80.0_f64 / 3.0).sqrt() + 1e-4).recip();
    let expected = matrix(&[[-2.0, -2.0, -2.0], [2.0, 0.0, 0.0], [-6.0, -6.0, 0.0], [6.0, 0.0, 0.0]]) * scale;
    assert_close(&whitened, &expected);
}

#[test]
fn a_group_whose_scores_hardly_differ_is_held_by_the_eps_of_its_framework() {
    let mask = matrix(&[[1.0], [1.0]]);
    for (profile, eps) in [
        (Profile::Default, 1e-6),
        (Profile::Openrlhf, 1e-9),
        (Profile::Verl, 1e-6),
        (Profile::Trl, 1e-4),
    ] {
        let algorithm = settings(profile, Estimator::Grpo);
        let expected = 0.5e-4 / (1e-4 / 2.0_f64.sqrt() + eps);
        let centred = of_pairs(&algorithm, &mask, &[0.0, 1e-4], &[0, 0]).unwrap();
        assert_close(&centred, &matrix(&[[-expected], [expected]]));
    }
}

#[test]
fn the_controller_observes_the_mean_that_its_framework_does() {
    // A token of KL 1, and nine of 1/2.
    let mut kl = [[0.5; 9]; 2];
    kl[0][0] = 1.0;
    let mut mask = [[1.0; 9]; 2];
    mask[0][1..].fill(0.0);
    let (kl, mask) = (matrix(&kl), matrix(&mask));
    let in_loss = Some(0.3);
    for (profile, kl_loss, expected) in [
        (Profile::Default, None, 2.75),
        (Profile::Default, in_loss, 2.75),
        (Profile::Openrlhf, None, 0.75),
        (Profile::Openrlhf, in_loss, 0.3),
        (Profile::Verl, None, 0.75),
        (Profile::Verl, in_loss, 0.75),
    ] {
        let observed = observed_kl(profile, &kl, &mask, kl_loss).unwrap();
        assert!(
            (observed - expected).abs() < 1e-7,
            "{profile:?} {kl_loss:?}: {observed}"
        );
    }
}

#[test]
fn the_coefficient_stays_while_the_policy_rests_but_for_verls() {
    for profile in PROFILES {
        let controller = KlController::of(&settings(profile, Estimator::Gae));
        assert!(controller.observes(true));
        assert_eq!(controller.observes(false), profile == Profile::Verl, "{profile:?}");
    }
}

#[test]
fn masked_means_ignore_aggregation_names_for_full_rows_of_one_token() {
    // Where every row is one token all means agree, whatever they are called.
    let mask = matrix(&[[1.0], [1.0]]);
    let x = matrix(&[[-1.0], [-2.0]]);
    let advantages = matrix(&[[1.0], [3.0]]);
    for aggregation in [
        Aggregation::TokenMean,
        Aggregation::SequenceMeanTokenMean,
        Aggregation::PaddedMean,
    ] {
        let mut algorithm = settings(Profile::Default, Estimator::Gae);
        algorithm.aggregation = aggregation;
        let input = PolicyInput {
            logprobs: &x,
            old_logprobs: &x,
            advantages: &advantages,
            mask: &mask,
            rollout_logprobs: None,
        };
        let loss = policy_loss(&algorithm, &input, &Denominator::of(&mask, 1))
            .unwrap()
            .loss;
        assert!((loss.double_value(&[]) + 2.0).abs() < 1e-12);
    }
}

#[test]
fn openrlhfs_sequence_mean_is_of_the_policy_loss_alone() {
    // Rows of three tokens and of one: a token mean is 1/4 of the sum, a mean of means is not.
    let mask = matrix(&[[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]);
    let x = matrix(&[[-1.0, -1.0, -1.0], [-1.0, 0.0, 0.0]]);
    let zeros = x.zeros_like();
    let one = matrix(&[[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]);
    let whole = Denominator::of(&mask, 3);
    let of = |profile| {
        let mut algorithm = settings(profile, Estimator::Gae);
        algorithm.aggregation = Aggregation::SequenceMeanTokenMean;
        algorithm.kl.estimator = ppo_crds::spec::KlEstimator::K1;
        algorithm.clip.value = None;
        let policy = PolicyInput {
            logprobs: &x,
            old_logprobs: &x,
            advantages: &one,
            mask: &mask,
            rollout_logprobs: None,
        };
        let value = ValueInput {
            values: &one,
            old_values: &one,
            returns: &zeros,
            mask: &mask,
        };
        let losses = [
            -policy_loss(&algorithm, &policy, &whole).unwrap().loss,
            kl_loss(&algorithm, &(&x + &one), &x, &mask, &whole).unwrap(),
            entropy_bonus(&algorithm, &one, &mask, &whole).unwrap(),
            value_loss(&algorithm, &value, &whole).unwrap().loss * 2.0,
        ];
        losses.map(|loss| (loss.double_value(&[]) * 1e6).round() / 1e6)
    };
    assert_eq!(of(Profile::Openrlhf), [0.5, 0.25, 0.25, 0.25]);
    assert_eq!(of(Profile::Verl), [0.5; 4]);
}
