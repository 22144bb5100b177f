//! The critic's clipped loss.

use std::ops::AddAssign;

use ppo_crds::run_config::Algorithm;
use tch::{Kind, Tensor};

use super::aggregation::{Denominator, aggregate_beside, counts_padding};
use super::grid::wide_kind;
use super::{Error, mask};

/// A micro-batch of the critic's update. All tensors [batch, time].
#[derive(Clone, Copy, Debug)]
pub struct ValueInput<'a> {
    /// Values under the critic being trained, with their graph.
    pub values: &'a Tensor,
    /// Values before the step's updates.
    pub old_values: &'a Tensor,
    /// Targets from [`super::advantage::Advantages::returns`].
    pub returns: &'a Tensor,
    /// Where the critic is trained: [`super::mask::value_mask`] of the response mask (under every profile but `trl` they
    /// are the same).
    pub mask: &'a Tensor,
}

/// The value loss of a micro-batch.
#[derive(Debug)]
pub struct ValueLoss {
    /// Its share of the update's loss, a scalar with the graph; to be multiplied by `value_coef`.
    pub loss: Tensor,
    /// Its sums where the loss is, [2] float64: [`ValueStats::of`] what was brought from there.
    pub sums: Tensor,
}

impl ValueLoss {
    /// Its sums, brought to this machine by themselves; add them up over micro-batches and ranks.
    ///
    /// # Errors
    /// When libtorch fails.
    pub fn stats(&self) -> Result<ValueStats, tch::TchError> {
        let mut sums = [0.0; ValueStats::NUMBERS];
        self.sums.f_copy_data(&mut sums, ValueStats::NUMBERS)?;
        Ok(ValueStats::of(sums))
    }
}

/// Sums over tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ValueStats {
    /// Tokens counted.
    pub count: f64,
    /// Tokens whose clipped loss was the greater.
    pub clipped: f64,
}

impl ValueStats {
    /// How many there are.
    pub const NUMBERS: usize = 2;

    /// From [`ValueLoss::sums`].
    pub fn of([count, clipped]: [f64; Self::NUMBERS]) -> Self {
        Self { count, clipped }
    }

    /// Share of tokens whose clipped loss was the greater, from 0 to 1.
    pub fn clip_fraction(&self) -> f64 {
        self.clipped / self.count.max(1.0)
    }
}

impl AddAssign for ValueStats {
    fn add_assign(&mut self, other: Self) {
        self.count += other.count;
        self.clipped += other.clipped;
    }
}

/// 0.5 max((V - Ret)^2, (V_old + clip(V - V_old, -eps, eps) - Ret)^2) with eps = `clip.value`; without it 0.5 (V - Ret)^2.
/// Aggregated by [`aggregate_beside`], divided by the counts of `whole` ([`Denominator::of`] the value masks).
///
/// # Errors
/// Inputs of different shapes.
pub fn value_loss(algorithm: &Algorithm, input: &ValueInput, whole: &Denominator) -> Result<ValueLoss, Error> {
    let shape = input.mask.size();
    Error::unless_shape("values", &input.values.size(), &shape)?;
    Error::unless_shape("old_values", &input.old_values.size(), &shape)?;
    Error::unless_shape("returns", &input.returns.size(), &shape)?;
    let mask = mask::booleans(input.mask);
    let counted = if counts_padding(algorithm) {
        mask.ones_like()
    } else {
        mask
    };
    let kind = wide_kind(input.values.kind());
    let values = mask::keep(&input.values.to_kind(kind), &counted);
    let old = mask::keep(&input.old_values.to_kind(kind).detach(), &counted);
    let returns = mask::keep(&input.returns.to_kind(kind).detach(), &counted);

    let plain = (&values - &returns).square();
    let (squares, clipped) = match algorithm.clip.value {
        None => (plain.shallow_clone(), plain.zeros_like().to_kind(Kind::Bool)),
        Some(eps) => {
            // Bounds on V, not on V - V_old: within them V stays the same to the last bit and does not count as clipped.
            let limited = (values.clamp_tensor(Some(&old - eps), Some(&old + eps)) - &returns).square();
            (plain.maximum(&limited), limited.gt_tensor(&plain))
        }
    };
    let count = |flags: &Tensor| flags.sum(Kind::Double);
    let sums = [count(&counted), count(&clipped.logical_and(&counted))];
    Ok(ValueLoss {
        loss: aggregate_beside(algorithm, &squares, &counted, whole) * 0.5,
        sums: Tensor::stack(&sums, 0),
    })
}
