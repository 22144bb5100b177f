//! What samples weigh that the engine drew with other probabilities than those of the actor before the step: importance sampling between two
//! bounds.

use ppo_crds::run_config::Algorithm;
use ppo_crds::spec::{CorrectionLevel, Outside, RolloutCorrection};
use tch::{Kind, Tensor};

use super::grid::wide_kind;
use super::{Error, mask, ratio};

/// Bound on the logarithm of a ratio: beyond it exp would end at infinity, and no bound that can be given is as great.
const GREATEST: f64 = 20.0;

/// What the correction does to the response tokens of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Corrected {
    /// Share of them whose ratio, taken as the correction takes it, is outside its bounds: truncated or left out. From 0 to 1.
    pub outside: f64,
    /// Mean of their weights.
    pub weight: f64,
}

/// Of a step, before its updates; all [batch, time]. None where nothing is weighed: without a correction, and where the ratio is to the
/// engine's policy itself.
///
/// # Errors
/// Inputs of different shapes, or libtorch fails.
pub fn corrected(
    algorithm: &Algorithm,
    old_logprobs: &Tensor,
    rollout_logprobs: &Tensor,
    mask: &Tensor,
) -> Result<Option<Corrected>, Error> {
    Error::unless_shape("old_logprobs", &old_logprobs.size(), &mask.size())?;
    Error::unless_shape("rollout_logprobs", &rollout_logprobs.size(), &mask.size())?;
    let mask = mask::booleans(mask);
    let Some(weights) = weights(algorithm, old_logprobs, rollout_logprobs, &mask, &mask) else {
        return Ok(None);
    };
    let tokens = mask.to_kind(Kind::Double);
    let count = tokens.sum(Kind::Double).double_value(&[]).max(1.0);
    let mean = |of: &Tensor| (of.to_kind(Kind::Double) * &tokens).sum(Kind::Double).double_value(&[]) / count;
    Ok(Some(Corrected {
        outside: mean(&weights.within.logical_not()),
        weight: mean(&weights.weight),
    }))
}

/// [batch, time], or [batch, 1] where all of a row have the same.
pub(super) struct Weights {
    pub(super) weight: Tensor,
    /// Whether the ratio that is compared with the bounds is between them.
    within: Tensor,
}

/// Of each token, or None where nothing is weighed. `counted` [batch, time] are the tokens of the loss, `mask` those of the response.
pub(super) fn weights(
    algorithm: &Algorithm,
    old_logprobs: &Tensor,
    rollout_logprobs: &Tensor,
    counted: &Tensor,
    mask: &Tensor,
) -> Option<Weights> {
    let correction = algorithm.correction().filter(|_| !ratio::is_to_engine(algorithm))?;
    let kind = wide_kind(old_logprobs.kind());
    let difference = (old_logprobs.to_kind(kind) - rollout_logprobs.to_kind(kind)).detach();
    let difference = mask::keep(&difference, counted);
    Some(between(&correction, &difference, mask, ratio::is_one_action(algorithm)))
}

/// From `difference`: of each token the log-prob under the actor less that under the engine, 0 where nothing counts. `is_one_action`: a row is
/// one action, with one ratio.
///
/// Between the bounds the ratio itself, exp of the difference: a token's (IMPALA's truncated weights, Espeholt et al. 2018, arXiv 1802.01561,
/// section 4.1; masked they are IcePop), a response's as the product of its tokens' (TRL's `sequence_truncate` and `sequence_mask` in
/// grpo_trainer.py), or a token's where the geometric mean of its response's is between the bounds (OpenRLHF's `seq-mask-tis` in
/// models/loss.py).
fn between(correction: &RolloutCorrection, difference: &Tensor, mask: &Tensor, is_one_action: bool) -> Weights {
    let kind = difference.kind();
    let of_tokens = mask::keep(difference, mask);
    let sum = of_tokens.sum_dim_intlist(-1, true, kind); // [batch, 1]
    let own = if is_one_action { &sum } else { difference };
    let is_geometric = correction.level == CorrectionLevel::Geometric;
    let bounded = match correction.level {
        CorrectionLevel::Token => exp(own),
        CorrectionLevel::Sequence => exp(&sum),
        CorrectionLevel::Geometric => {
            let lengths = mask::booleans(mask).sum_dim_intlist(-1, true, kind).clamp_min(1.0);
            exp(&(&sum / &lengths))
        }
    };
    let within = bounded.ge(correction.low).logical_and(&bounded.le(correction.high));
    let weight = match correction.outside {
        Outside::Truncate => bounded.clamp(correction.low, correction.high),
        Outside::Mask => {
            let weight = if is_geometric { exp(own) } else { bounded };
            weight * within.to_kind(kind)
        }
    };
    Weights { weight, within }
}

fn exp(difference: &Tensor) -> Tensor {
    difference.clamp_max(GREATEST).exp()
}
