//! Per-token estimates of KL(policy || reference) from the log-probs of sampled tokens.
//! k1, k2, k3: Schulman, "Approximating KL Divergence" (2020).

use ppo_crds::spec::{KlEstimator, Profile};
use tch::Tensor;

use super::grid::wide_kind;

/// Estimates the KL divergence at each token; any shape, both inputs alike. Differentiable in `logprobs`, for the loss.
///
/// With k1 = x - x_ref: k2 = k1^2 / 2, k3 = exp(-k1) - 1 + k1, abs = |k1|, oneSided = max(k1, 0). `clamp` bounds the
/// absolute estimate; what a framework always bounds is its profile's default of it ([`ppo_crds::defaults::kl_clamp`]).
/// `verl` also bounds k3's exponent to [-20, 20] (kl_penalty in its core_algos.py). Half-precision inputs are widened to
/// float32 first.
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
    let estimate = match (estimator, profile, clamp) {
        (KlEstimator::K1, ..) => k1,
        (KlEstimator::K2, ..) => k1.square() * 0.5,
        (KlEstimator::K3, Profile::Verl, _) => k3(&k1.clamp(-20.0, 20.0)),
        // At -1 - ln(1 + bound) the result is over its bound already; without this the derivative far below is 0 * inf.
        (KlEstimator::K3, _, Some(bound)) => k3(&k1.clamp_min(-1.0 - bound.ln_1p())),
        (KlEstimator::K3, ..) => k3(&k1),
        (KlEstimator::Abs, ..) => k1.abs(),
        (KlEstimator::OneSided, ..) => k1.clamp_min(0.0),
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
