//! Gradients against finite differences, and every combination of settings.

use ppo_crds::run_config::Algorithm;
use ppo_crds::spec::{Estimator, KlEstimator, Ratio, Surrogate};
use tch::{Kind, Tensor};

use crate::step::{AGGREGATIONS, ESTIMATORS, PROFILES, Step, everything};

#[test]
fn gradients_are_those_of_finite_differences() {
    for profile in PROFILES {
        for aggregation in AGGREGATIONS {
            for kl in [KlEstimator::K2, KlEstimator::K3] {
                let mut step = Step::random(11, 2);
                let mut algorithm = everything(profile, Estimator::Gae, aggregation);
                algorithm.kl.estimator = kl;
                let given = step.advantages(&algorithm);
                let counts = step.counts(&algorithm);
                let loss = |step: &Step| step.losses(&algorithm, &given.advantages, &given.returns, counts);
                let gradients = loss(&step).gradients;
                for cell in 0..step.mask.numel() as i64 {
                    for (which, gradient) in gradients.iter().enumerate() {
                        let far = 1e-6;
                        *field(&mut step, which) = moved(field(&mut step, which), cell, far);
                        let above = loss(&step).loss;
                        *field(&mut step, which) = moved(field(&mut step, which), cell, -2.0 * far);
                        let below = loss(&step).loss;
                        *field(&mut step, which) = moved(field(&mut step, which), cell, far);
                        let slope = (above - below) / (2.0 * far);
                        let ours = gradient.view(-1).double_value(&[cell]);
                        assert!(
                            (slope - ours).abs() < 1e-6,
                            "{profile:?} {aggregation:?} {which} {cell}: {slope} {ours}"
                        );
                    }
                }
            }
        }
    }
}

fn field(step: &mut Step, which: usize) -> &mut Tensor {
    match which {
        0 => &mut step.new,
        1 => &mut step.new_values,
        _ => &mut step.entropy,
    }
}

fn moved(tensor: &Tensor, cell: i64, by: f64) -> Tensor {
    let moved = tensor.copy();
    let _ = moved.view(-1).get(cell).g_add_scalar_(by);
    moved
}

#[test]
fn every_profile_runs_every_estimator_and_aggregation() {
    for profile in PROFILES {
        for estimator in ESTIMATORS {
            for aggregation in AGGREGATIONS {
                let algorithm = everything(profile, estimator, aggregation);
                let step = Step::random(5, 6);
                assert_finite(&step, &algorithm);
            }
        }
    }
}

#[test]
fn a_single_token_an_empty_response_and_equal_scores_give_no_nan() {
    for profile in PROFILES {
        for estimator in ESTIMATORS {
            let mut algorithm = everything(profile, estimator, AGGREGATIONS[0]);
            for ratio in [Ratio::Token, Ratio::Sequence] {
                algorithm.ratio = ratio;
                for surrogate in [Surrogate::Clipped, Surrogate::Cispo] {
                    algorithm.surrogate = surrogate;
                    assert_finite_at_the_edges(&algorithm);
                }
            }
        }
    }
}

fn assert_finite_at_the_edges(algorithm: &Algorithm) {
    let mut one_token = Step::random(1, 2);
    one_token.mask = one_token.mask.zeros_like();
    let _ = one_token.mask.get(1).get(0).fill_(1.0); // and row 0 is empty
    assert_finite(&one_token, algorithm);

    let mut nothing = Step::random(2, 2);
    nothing.mask = nothing.mask.zeros_like();
    assert_finite(&nothing, algorithm);

    let mut equal = Step::random(3, 6);
    equal.scores = equal.scores.zeros_like() + 0.7;
    equal.reference = equal.old.copy();
    equal.values = equal.values.zeros_like();
    assert_finite(&equal, algorithm);
}

fn assert_finite(step: &Step, algorithm: &Algorithm) {
    let given = step.advantages(algorithm);
    let losses = step.losses(algorithm, &given.advantages, &given.returns, step.counts(algorithm));
    assert!(losses.loss.is_finite(), "{algorithm:?}");
    let tensors = losses
        .gradients
        .iter()
        .chain([&given.raw, &given.advantages, &given.returns]);
    for tensor in tensors {
        let finite = tensor.isfinite().all().to_kind(Kind::Int64).int64_value(&[]);
        assert_eq!(finite, 1, "{algorithm:?}: {tensor}");
    }
}
