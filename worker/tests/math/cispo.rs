//! Every token teaches, by its clipped ratio.

use ppo_crds::defaults;
use ppo_crds::run_config::Algorithm;
use ppo_crds::spec::{Aggregation, Estimator, Profile, Ratio, Surrogate};
use tch::{Kind, Tensor};

use crate::step::{PROFILES, Step, assert_close, everything};

/// With bounds that random ratios pass on either side, and without a correction.
fn cispo(profile: Profile, aggregation: Aggregation) -> Algorithm {
    let mut algorithm = everything(profile, Estimator::Grpo, aggregation);
    algorithm.surrogate = Surrogate::Cispo;
    algorithm.truncated_importance_sampling = None;
    (algorithm.clip.policy_low, algorithm.clip.policy_high) = (0.1, 0.2);
    algorithm
}

#[test]
fn a_token_teaches_by_its_clipped_ratio_where_ppo_has_no_gradient_too() {
    for profile in PROFILES {
        let step = Step::random(21, 6);
        let mask = step.mask.to_kind(Kind::Double);
        let ratio = (&step.new - &step.old).exp();
        let weight = ratio.clamp(0.9, 1.2);
        let expected = -&weight * &step.values * &mask;
        let mut algorithm = cispo(profile, Aggregation::TokenSum);
        assert_close(&step.slope(&algorithm, &step.values).1, &expected);

        let outside = ratio.ne_tensor(&weight).logical_and(&step.mask);
        algorithm.surrogate = Surrogate::Clipped;
        algorithm.clip.dual = None;
        let of_ppo = step.slope(&algorithm, &step.values).1;
        let silent = of_ppo.eq(0.0).logical_and(&outside).to_kind(Kind::Double);
        assert!(silent.sum(Kind::Double).double_value(&[]) > 0.0, "{profile:?}");
        assert!((&expected * silent).abs().max().double_value(&[]) > 0.01, "{profile:?}");
    }
}

#[test]
fn the_gradient_is_divided_as_every_loss_is() {
    let step = Step::random(22, 6);
    let mask = step.mask.to_kind(Kind::Double);
    let weight = (&step.new - &step.old).exp().clamp(0.9, 1.2);
    let expected = -weight * &step.values * &mask / mask.sum(Kind::Double);
    for profile in [Profile::Default, Profile::Openrlhf, Profile::Verl, Profile::Trl] {
        let algorithm = cispo(profile, Aggregation::TokenMean);
        assert_close(&step.slope(&algorithm, &step.values).1, &expected);
    }
}

#[test]
fn before_an_update_the_gradient_is_that_of_the_clipped_ratio() {
    for profile in PROFILES {
        for ratio in [Ratio::Token, Ratio::Sequence] {
            let mut step = Step::random(23, 6);
            step.new = step.old.copy();
            // The ratio of a response shares one advantage out.
            let advantages = step.values.narrow(1, 0, 1).expand_as(&step.values).contiguous();
            let mut algorithm = cispo(profile, Aggregation::TokenSum);
            algorithm.ratio = ratio;
            let ours = step.slope(&algorithm, &advantages).1;
            algorithm.surrogate = Surrogate::Clipped;
            assert_close(&ours, &step.slope(&algorithm, &advantages).1);
            assert!(ours.abs().max().double_value(&[]) > 0.01);
        }
    }
}

#[test]
fn with_the_ratio_of_sequences_a_token_teaches_by_its_responses() {
    let step = Step::random(24, 6);
    let mask = step.mask.to_kind(Kind::Double);
    let lengths = mask.sum_dim_intlist(-1, true, Kind::Double);
    let mean = ((&step.new - &step.old) * &mask).sum_dim_intlist(-1, true, Kind::Double) / lengths;
    let expected = -mean.exp().clamp(0.9, 1.2) * &step.values * &mask;
    for profile in [Profile::Default, Profile::Trl] {
        let mut algorithm = cispo(profile, Aggregation::TokenSum);
        algorithm.ratio = Ratio::Sequence;
        assert_close(&step.slope(&algorithm, &step.values).1, &expected);
    }
}

#[test]
fn ratios_outside_the_bounds_are_counted_as_the_framework_counts_them() {
    let row = |cells: [f64; 4]| Tensor::from_slice(&cells).view([1, 4]);
    let [below, above] = [0.5_f64.ln(), 3.0_f64.ln()];
    let step = Step {
        mask: row([1.0; 4]),
        old: row([-2.0; 4]),
        new: row([below - 2.0, below - 2.0, above - 2.0, above - 2.0]),
        ..Step::random(1, 2)
    };
    let advantages = row([1.0, -2.0, 2.0, -1.0]);
    for (profile, clipped) in [
        (Profile::Default, 4.0),
        (Profile::Openrlhf, 4.0),
        (Profile::Verl, 4.0),
        (Profile::Trl, 1.0),
    ] {
        let mut algorithm = cispo(profile, Aggregation::TokenMean);
        (algorithm.clip.policy_low, algorithm.clip.policy_high) = (0.2, 1.0);
        let policy = step.policy_loss(&algorithm, &step.new, &advantages);
        let expected = (0.8 * (below - 2.0) - 2.0 * (above - 2.0)) / 4.0;
        assert!((policy.loss.double_value(&[]) - expected).abs() < 1e-12, "{profile:?}");
        let stats = policy.stats().unwrap();
        assert_eq!(
            (stats.count, stats.clipped, stats.dual_clipped),
            (4.0, clipped, 0.0),
            "{profile:?}"
        );
        assert!((stats.ratio - 7.0).abs() < 1e-12);
    }
}

#[test]
fn each_profile_has_the_papers_bounds_but_verl_which_reads_ppos() {
    for profile in PROFILES {
        let of = |ratio| defaults::algorithm_by(profile, Estimator::Grpo, ratio, Surrogate::Cispo);
        let clip = of(Ratio::Token).clip;
        let expected = if profile == Profile::Verl {
            (0.2, 0.2)
        } else {
            (1.0, 4.0)
        };
        assert_eq!((clip.policy_low, clip.policy_high), expected, "{profile:?}");
        assert_eq!(clip.dual, None, "{profile:?}");
        assert_eq!(of(Ratio::Sequence).clip, clip, "{profile:?}");
        let clipped = defaults::algorithm(profile, Estimator::Grpo);
        assert_eq!(of(Ratio::Token).aggregation, clipped.aggregation, "{profile:?}");
    }
}
