//! Per-token estimates of KL(policy || reference) from the log-probs of sampled tokens.
//! k1, k2, k3: Schulman, "Approximating KL Divergence" (2020).

use ppo_crds::spec::{KlEstimator, Profile};
use tch::Tensor;

use super::grid::wide_kind;

/// Estimates the KL divergence at each token; any shape, both inputs alike. Differentiable in `logprobs`, for the loss.
///
/// With k1 = x - x_ref: k2 = k1^2 / 2, k3 = exp(-k1) - 1 + k1, abs = |k1|, oneSided = max(k1, 0). `clamp` bounds the
/// absolute estimate. The profile adds its own bounds: `openrlhf` the result to [-10, 10]; `verl`, for k3 only, the
/// exponent to [-20, 20] and the result to [-10, 10]. Half-precision inputs are widened to float32 first.
///
/// As a loss, k1 has a gradient whose expectation is 0: use k2 or k3 there.
pub fn estimate(
    logprobs: &Tensor,
    ref_logprobs: &Tensor,
    estimator: KlEstimator,
    clamp: Option<f64>,
    profile: Profile,
) -> Tensor {
    let kind = wide_kind(logprobs.kind());
    let k1 = logprobs.to_kind(kind) - ref_logprobs.to_kind(kind);
    let estimate = match (estimator, profile) {
        (KlEstimator::K1, _) => k1,
        (KlEstimator::K2, _) => k1.square() * 0.5,
        (KlEstimator::K3, Profile::Verl) => k3(&k1.clamp(-20.0, 20.0)).clamp(-10.0, 10.0),
        // Below -10 the result is over its bound anyway; without this the derivative there is 0 * inf.
        (KlEstimator::K3, Profile::Openrlhf) => k3(&k1.clamp_min(-10.0)),
        (KlEstimator::K3, _) => k3(&k1),
        (KlEstimator::Abs, _) => k1.abs(),
        (KlEstimator::OneSided, _) => k1.clamp_min(0.0),
    };
    let estimate = if profile == Profile::Openrlhf {
        estimate.clamp(-10.0, 10.0)
    } else {
        estimate
    };
    match clamp {
        Some(bound) => estimate.clamp(-bound, bound),
        None => estimate,
    }
}

/// exp(-k1) - 1 + k1, never below 0.
fn k3(k1: &Tensor) -> Tensor {
    // expm1 keeps the digits that exp(-k1) - 1 loses when the policies are close.
    (-k1).expm1() + k1
}
