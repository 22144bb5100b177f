//! What must not change the loss or its gradient: the split, the padding, the order, the packing.

use ppo_crds::defaults;
use ppo_crds::spec::{Aggregation, Estimator, Profile, Ratio, Surrogate};
use ppo_worker::ppo::advantage::{AdvantageInput, advantages};
use ppo_worker::ppo::aggregation::Denominator;
use proptest::prelude::*;
use tch::{Kind, Tensor};

use crate::step::{AGGREGATIONS, ESTIMATORS, PROFILES, Step, assert_close, everything};

const RATIOS: [Ratio; 2] = [Ratio::Token, Ratio::Sequence];
const SURROGATES: [Surrogate; 2] = [Surrogate::Clipped, Surrogate::Cispo];

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_split_into_micro_batches_does_not_matter(seed in any::<u64>(), cut in 1_i64..7, profile in 0..5_usize, way in 0..6_usize, estimator in 0..6_usize, ratio in 0..2_usize, surrogate in 0..2_usize) {
        let (profile, aggregation, estimator) = (PROFILES[profile], AGGREGATIONS[way], ESTIMATORS[estimator]);
        // The token mean of TRL's PPO is one of micro-batches, which is tested below; that of its GRPO is not.
        let of_one_size = profile == Profile::Trl && aggregation == Aggregation::TokenMean && estimator == Estimator::Gae;
        let estimator = if of_one_size { Estimator::Rloo } else { estimator };
        let step = Step::random(seed, 8);
        let mut algorithm = everything(profile, estimator, aggregation);
        algorithm.ratio = RATIOS[ratio];
        algorithm.surrogate = SURROGATES[surrogate];
        let given = step.advantages(&algorithm);
        let whole = step.losses(&algorithm, &given.advantages, &given.returns, step.counts(&algorithm));

        let halves: [Vec<i64>; 2] = [(0..cut).collect(), (cut..8).collect()];
        let parts: Vec<Step> = halves.iter().map(|half| step.rows(half)).collect();
        let policy_counts: Denominator = parts.iter().map(|part| part.counts(&algorithm).0).sum();
        let value_counts: Denominator = parts.iter().map(|part| part.counts(&algorithm).1).sum();
        let losses: Vec<_> = parts.iter().zip(&halves).map(|(part, half)| {
            let rows = Tensor::from_slice(half);
            let (advantages, returns) = (given.advantages.index_select(0, &rows), given.returns.index_select(0, &rows));
            part.losses(&algorithm, &advantages, &returns, (policy_counts, value_counts))
        }).collect();

        prop_assert!((losses.iter().map(|part| part.loss).sum::<f64>() - whole.loss).abs() < 1e-9);
        for (at, gradient) in whole.gradients.iter().enumerate() {
            let parts: Vec<&Tensor> = losses.iter().map(|part| &part.gradients[at]).collect();
            assert_close(&Tensor::cat(&parts, 0), gradient);
        }
    }

    #[test]
    fn the_side_and_amount_of_padding_do_not_matter(seed in any::<u64>(), left in 0_i64..4, right in 0_i64..4, way in 0..5_usize, estimator in 0..6_usize, ratio in 0..2_usize, surrogate in 0..2_usize) {
        let step = Step::random(seed, 6);
        let mut algorithm = everything(Profile::Default, ESTIMATORS[estimator], AGGREGATIONS[way]);
        algorithm.ratio = RATIOS[ratio];
        algorithm.surrogate = SURROGATES[surrogate];
        let bare = step.advantages(&algorithm);
        let bare_losses = step.losses(&algorithm, &bare.advantages, &bare.returns, step.counts(&algorithm));
        let padded = step.padded(left, right, 1e4); // exp of it is infinite
        let given = padded.advantages(&algorithm);
        let losses = padded.losses(&algorithm, &given.advantages, &given.returns, padded.counts(&algorithm));

        prop_assert!((losses.loss - bare_losses.loss).abs() < 1e-9);
        assert_close(&given.advantages, &bare.advantages.constant_pad_nd([left, right]));
        assert_close(&given.returns, &bare.returns.constant_pad_nd([left, right]));
        for (gradient, bare) in losses.gradients.iter().zip(&bare_losses.gradients) {
            assert_close(gradient, &bare.constant_pad_nd([left, right]));
        }
    }

    #[test]
    fn the_amount_of_padding_on_the_right_does_not_matter_to_the_masking_profiles(seed in any::<u64>(), right in 1_i64..4, way in 0..5_usize, estimator in 0..6_usize, ratio in 0..2_usize, surrogate in 0..2_usize) {
        // TRL's reward and value of a response reach into the slot behind it, which the longest one has with padding alone.
        for (profile, least) in [(Profile::Openrlhf, 0), (Profile::Verl, 0), (Profile::Trl, 1)] {
            let step = Step::random(seed, 6).padded(0, least, 3.0);
            let mut algorithm = everything(profile, ESTIMATORS[estimator], AGGREGATIONS[way]);
            algorithm.ratio = RATIOS[ratio];
            algorithm.surrogate = SURROGATES[surrogate];
            let bare = step.advantages(&algorithm);
            let bare_losses = step.losses(&algorithm, &bare.advantages, &bare.returns, step.counts(&algorithm));
            let padded = step.padded(0, right, 3.0);
            let given = padded.advantages(&algorithm);
            let losses = padded.losses(&algorithm, &given.advantages, &given.returns, padded.counts(&algorithm));
            prop_assert!((losses.loss - bare_losses.loss).abs() < 1e-9);
            assert_close(&given.advantages, &bare.advantages.constant_pad_nd([0, right]));
            assert_close(&given.returns, &bare.returns.constant_pad_nd([0, right]));
            for (gradient, bare) in losses.gradients.iter().zip(&bare_losses.gradients) {
                assert_close(gradient, &bare.constant_pad_nd([0, right]));
            }
        }
    }

    #[test]
    fn the_order_of_samples_does_not_matter(seed in any::<u64>(), order in Just((0..8_i64).collect::<Vec<_>>()).prop_shuffle(), profile in 0..5_usize, estimator in 0..6_usize) {
        let step = Step::random(seed, 8);
        let algorithm = everything(PROFILES[profile], ESTIMATORS[estimator], Aggregation::TokenMean);
        let given = step.advantages(&algorithm);
        let losses = step.losses(&algorithm, &given.advantages, &given.returns, step.counts(&algorithm));
        let other = step.rows(&order);
        let shuffled = other.advantages(&algorithm);
        let other_losses = other.losses(&algorithm, &shuffled.advantages, &shuffled.returns, other.counts(&algorithm));

        let index = Tensor::from_slice(&order);
        assert_close(&shuffled.advantages, &given.advantages.index_select(0, &index));
        prop_assert!((losses.loss - other_losses.loss).abs() < 1e-9);
        for (gradient, original) in other_losses.gradients.iter().zip(&losses.gradients) {
            assert_close(gradient, &original.index_select(0, &index));
        }
    }

    #[test]
    fn responses_packed_into_one_row_have_the_same_token_losses(seed in any::<u64>(), sum in any::<bool>()) {
        let aggregation = if sum { Aggregation::TokenSum } else { Aggregation::TokenMean };
        let step = Step::random(seed, 6);
        let algorithm = everything(Profile::Default, Estimator::Gae, aggregation);
        let given = step.advantages(&algorithm);
        let losses = step.losses(&algorithm, &given.advantages, &given.returns, step.counts(&algorithm));

        let pack = |tensor: &Tensor| tensor.masked_select(&step.mask).unsqueeze(0); // [1, tokens]
        let packed = Step {
            mask: pack(&step.mask),
            old: pack(&step.old),
            reference: pack(&step.reference),
            new: pack(&step.new),
            values: pack(&step.values),
            new_values: pack(&step.new_values),
            entropy: pack(&step.entropy),
            scores: step.scores.shallow_clone(),
            groups: step.groups.clone(),
        };
        let (advantages, returns) = (pack(&given.advantages), pack(&given.returns));
        let packed_losses = packed.losses(&algorithm, &advantages, &returns, packed.counts(&algorithm));
        prop_assert!((losses.loss - packed_losses.loss).abs() < 1e-9);
        prop_assert!((losses.clip_fraction - packed_losses.clip_fraction).abs() < 1e-12);
        for (gradient, original) in packed_losses.gradients.iter().zip(&losses.gradients) {
            assert_close(gradient, &pack(original));
        }
    }

    #[test]
    fn fast_gae_equals_the_sum_of_decayed_errors(seed in any::<u64>(), gamma in 0.5..1.0_f64, lambda in 0.0..1.0_f64, hole in 0_i64..3) {
        let step = Step::random(seed, 4);
        let mask = step.mask.copy();
        if step.mask.size()[1] > hole {
            let _ = mask.select(1, hole).fill_(0.0); // tool tokens
        }
        let mut algorithm = defaults::algorithm(Profile::Default, Estimator::Gae);
        (algorithm.gamma, algorithm.lambda, algorithm.whiten) = (gamma, lambda, false);
        let input = AdvantageInput {
            rewards: &step.reference,
            values: Some(&step.values),
            mask: &mask,
            scores: None,
            groups: None,
            group_size: None,
        };
        let fast = advantages(&algorithm, &input).unwrap();
        let slow = slow_gae(&step.reference, &step.values, &mask, gamma, lambda);
        assert_close(&fast.advantages, &slow);
        assert_close(&fast.returns, &((slow + &step.values) * mask.to_kind(Kind::Double)));
    }
}

/// Equation 16 of arXiv 1506.02438 over each row's own tokens, term by term.
fn slow_gae(rewards: &Tensor, values: &Tensor, mask: &Tensor, gamma: f64, lambda: f64) -> Tensor {
    let result = rewards.zeros_like();
    for sample in 0..rewards.size()[0] {
        let own: Vec<i64> = (0..rewards.size()[1])
            .filter(|&t| mask.int64_value(&[sample, t]) == 1)
            .collect();
        let value = |at: usize| own.get(at).map_or(0.0, |&t| values.double_value(&[sample, t]));
        let delta = |at: usize| rewards.double_value(&[sample, own[at]]) + gamma * value(at + 1) - value(at);
        for (from, &t) in own.iter().enumerate() {
            let sum: f64 = (from..own.len())
                .map(|at| (gamma * lambda).powi((at - from) as i32) * delta(at))
                .sum();
            let _ = result.get(sample).get(t).fill_(sum);
        }
    }
    result
}

#[test]
fn under_trl_ppos_update_is_the_mean_of_its_micro_batches_means() {
    let step = Step::random(7, 6);
    let algorithm = everything(Profile::Trl, Estimator::Gae, Aggregation::TokenMean);
    let given = step.advantages(&algorithm);
    let parts = [vec![0, 1, 2], vec![3, 4, 5]].map(|half| {
        let rows = Tensor::from_slice(&half);
        let (part, advantages) = (step.rows(&half), given.advantages.index_select(0, &rows));
        (part, advantages, given.returns.index_select(0, &rows))
    });
    let counts = parts.iter().map(|(part, ..)| part.counts(&algorithm));
    let whole = counts.reduce(|a, b| (a.0 + b.0, a.1 + b.1)).unwrap();
    for (part, advantages, returns) in &parts {
        let share = part.losses(&algorithm, advantages, returns, whole).loss;
        let alone = part
            .losses(&algorithm, advantages, returns, part.counts(&algorithm))
            .loss;
        assert!((share - alone / 2.0).abs() < 1e-12);
    }
}
