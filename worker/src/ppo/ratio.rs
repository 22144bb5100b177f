//! The ratio of the policy that learns to the one before the step: a token's own, or its whole response's (GSPO, Zheng et al. 2025, arXiv
//! 2507.18071).

use ppo_crds::run_config::Algorithm;
use ppo_crds::spec::{Estimator, Profile, Ratio};
use tch::Tensor;

use super::mask;

/// The logarithm of each token's ratio, [batch, time], from the `difference` of its log-probs. By `sequence` it is the mean of its response's,
/// s = (pi(y) / pi_old(y))^(1/|y|), and outside the mask 0.
///
/// Bounded as the framework does it: `verl` takes a token's at most at 20 and at least at -20, a response's at most at 10; `openrlhf` bounds a token's
/// alone; `trl` and `alpacafarm` bound neither.
pub(super) fn log_ratio(algorithm: &Algorithm, difference: &Tensor, mask: &Tensor) -> Tensor {
    match algorithm.ratio {
        Ratio::Token => of_token(algorithm.profile, difference),
        Ratio::Sequence => of_sequence(algorithm.profile, difference, mask),
    }
}

/// Whether the ratio is to the engine's policy rather than to the actor's before the step: PolicyLoss in openrlhf/models/loss.py (0.11) so takes
/// its correction into the ratio of a response, which it then does not weigh.
pub(super) fn is_to_engine(algorithm: &Algorithm) -> bool {
    algorithm.profile == Profile::Openrlhf && algorithm.ratio == Ratio::Sequence && algorithm.correction().is_some()
}

/// TRL's RLOO, arXiv 2402.14740 section 3: the whole response is one action.
pub(super) fn is_one_action(algorithm: &Algorithm) -> bool {
    algorithm.profile == Profile::Trl && algorithm.estimator == Estimator::Rloo
}

/// Bounded against infinity.
pub(super) fn of_token(profile: Profile, difference: &Tensor) -> Tensor {
    match profile {
        Profile::Trl | Profile::Alpacafarm => difference.shallow_clone(),
        Profile::Default | Profile::Openrlhf | Profile::Verl => difference.clamp(-20.0, 20.0),
    }
}

fn of_sequence(profile: Profile, difference: &Tensor, mask: &Tensor) -> Tensor {
    let kind = difference.kind();
    let lengths = mask.sum_dim_intlist(-1, true, kind).clamp_min(1.0); // [batch, 1]
    let mean = mask::keep(difference, mask).sum_dim_intlist(-1, true, kind) / lengths; // [batch, 1]
    let of_tokens = match profile {
        // compute_policy_loss_gspo in core_algos.py: the value is the response's, the gradient is by the token's own log-prob alone.
        Profile::Verl => (difference - difference.detach() + mean.detach()).clamp_max(10.0),
        Profile::Default => mean.clamp(-20.0, 20.0).expand_as(difference),
        Profile::Openrlhf | Profile::Trl | Profile::Alpacafarm => mean.expand_as(difference),
    };
    mask::keep(&of_tokens, mask)
}
