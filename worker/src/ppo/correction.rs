//! What samples weigh that the engine drew with other probabilities than those of the actor before the step: importance sampling between two
//! bounds.

use ppo_crds::spec::{CorrectionLevel, Outside, RolloutCorrection};
use tch::Tensor;

use super::mask;

/// Bound on the logarithm of a ratio: beyond it exp would end at infinity, and no bound that can be given is as great.
const GREATEST: f64 = 20.0;

/// The weight of each token, [batch, time], or [batch, 1] where all of a row have the same, from `difference`: of each token the log-prob under the
/// actor less that under the engine, 0 where nothing counts. `is_one_action`: a row is one action, with one ratio.
///
/// Between the bounds the ratio itself, exp of the difference: a token's (IMPALA's truncated weights, Espeholt et al. 2018, arXiv 1802.01561,
/// section 4.1; masked they are IcePop), a response's as the product of its tokens' (TRL's `sequence_truncate` and `sequence_mask` in
/// grpo_trainer.py), or a token's where the geometric mean of its response's is between the bounds (OpenRLHF's `seq-mask-tis` in
/// models/loss.py).
pub(super) fn weights(
    correction: &RolloutCorrection,
    difference: &Tensor,
    mask: &Tensor,
    is_one_action: bool,
) -> Tensor {
    let kind = difference.kind();
    let of_tokens = mask::keep(difference, mask);
    let sum = of_tokens.sum_dim_intlist(-1, true, kind); // [batch, 1]
    let own = if is_one_action { &sum } else { difference };
    let is_geometric = correction.level == CorrectionLevel::Geometric;
    let bounded = match correction.level {
        CorrectionLevel::Token => ratio(own),
        CorrectionLevel::Sequence => ratio(&sum),
        CorrectionLevel::Geometric => {
            let lengths = mask::booleans(mask).sum_dim_intlist(-1, true, kind).clamp_min(1.0);
            ratio(&(&sum / &lengths))
        }
    };
    match correction.outside {
        Outside::Truncate => bounded.clamp(correction.low, correction.high),
        Outside::Mask => {
            let within = bounded.ge(correction.low).logical_and(&bounded.le(correction.high));
            let weight = if is_geometric { ratio(own) } else { bounded };
            weight * within.to_kind(kind)
        }
    }
}

fn ratio(difference: &Tensor) -> Tensor {
    difference.clamp_max(GREATEST).exp()
}
