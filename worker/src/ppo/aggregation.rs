//! From a loss per token to one number, so that the sum over micro-batches and ranks is the loss of the whole update.

use std::iter::Sum;
use std::ops::Add;

use ppo_crds::run_config::Algorithm;
use ppo_crds::spec::{Aggregation, Profile, Ratio};
use tch::{Kind, Tensor};

use super::mask;

/// What the losses of an update are divided by: counts over all its micro-batches on all ranks. Count each micro-batch
/// with [`Denominator::of`] and add them up. Every rank knows the masks of all samples, so that none has to ask another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Denominator {
    /// Tokens with m = 1.
    pub tokens: f64,
    /// Samples with at least one such token.
    pub sequences: f64,
    /// batch x time, padding included (AlpacaFarm's mean).
    pub slots: f64,
    /// Micro-batches (the mean of means of TRL's PPO).
    pub micro_batches: f64,
    /// The longest response allowed (generation.maxNewTokens): the constant of `sequenceMeanTokenSumNorm`.
    pub max_response_length: f64,
}

impl Denominator {
    /// Counts one micro-batch by its mask, [batch, time].
    pub fn of(mask: &Tensor, max_response_length: usize) -> Self {
        let mask = mask::booleans(mask);
        Self {
            tokens: mask.sum(Kind::Double).double_value(&[]),
            sequences: mask.any_dim(-1, false).sum(Kind::Double).double_value(&[]),
            slots: mask.numel() as f64,
            micro_batches: 1.0,
            max_response_length: max_response_length as f64,
        }
    }
}

impl Add for Denominator {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            tokens: self.tokens + other.tokens,
            sequences: self.sequences + other.sequences,
            slots: self.slots + other.slots,
            micro_batches: self.micro_batches + other.micro_batches,
            max_response_length: self.max_response_length.max(other.max_response_length),
        }
    }
}

impl Sum for Denominator {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        let none = Self {
            tokens: 0.0,
            sequences: 0.0,
            slots: 0.0,
            micro_batches: 0.0,
            max_response_length: 0.0,
        };
        counts.fold(none, Add::add)
    }
}

/// A micro-batch's share of the update's loss; `per_token` and `mask` are [batch, time].
///
/// A token mean is over the whole update, as GRPOTrainer's `dapo` of TRL 0.24 has it too. With `gae` under `trl` it is
/// PPOTrainer's: the token mean of this micro-batch over the number of micro-batches, so there the split matters. Under
/// `alpacafarm` it is AlpacaFarm's, the same as `paddedMean`: over batch x time, padding included. Sequence means count the
/// samples with at least one token.
///
/// With `ratio: sequence` it is the sequence mean of token means under `openrlhf` and `verl`, whatever is asked for.
pub fn aggregate(algorithm: &Algorithm, per_token: &Tensor, mask: &Tensor, whole: &Denominator) -> Tensor {
    reduce(algorithm, of_policy(algorithm), per_token, mask, whole)
}

/// The same for what stands beside the policy's loss: its KL term and entropy, and the critic's loss. OpenRLHF's `actor.loss_agg_mode` is of
/// the policy's loss alone: ppo_actor.py (0.11.2) gives it to PolicyLoss, and neither to aggregate_loss of KL and entropy nor to
/// ppo_critic.py's ValueLoss, which are token means.
pub fn aggregate_beside(algorithm: &Algorithm, per_token: &Tensor, mask: &Tensor, whole: &Denominator) -> Tensor {
    let convention = match (algorithm.profile, convention(algorithm)) {
        (Profile::Openrlhf, Aggregation::SequenceMeanTokenMean) => Aggregation::TokenMean,
        (_, convention) => convention,
    };
    reduce(algorithm, convention, per_token, mask, whole)
}

fn reduce(
    algorithm: &Algorithm,
    convention: Aggregation,
    per_token: &Tensor,
    mask: &Tensor,
    whole: &Denominator,
) -> Tensor {
    let kept = mask::keep(per_token, mask);
    let kind = kept.kind();
    match convention {
        Aggregation::PaddedMean => per_token.sum(kind) / at_least_one(whole.slots),
        Aggregation::TokenMean if algorithm.means_micro_batches() => {
            let tokens = mask::booleans(mask).sum(Kind::Double).clamp_min(1.0).to_kind(kind);
            kept.sum(kind) / tokens / at_least_one(whole.micro_batches)
        }
        Aggregation::TokenMean => kept.sum(kind) / at_least_one(whole.tokens),
        Aggregation::TokenSum => kept.sum(kind),
        Aggregation::SequenceMeanTokenSum => kept.sum(kind) / at_least_one(whole.sequences),
        Aggregation::SequenceMeanTokenSumNorm => {
            kept.sum(kind) / at_least_one(whole.sequences) / at_least_one(whole.max_response_length)
        }
        Aggregation::SequenceMeanTokenMean => {
            let lengths = mask::booleans(mask).sum_dim_intlist(-1, false, kind).clamp_min(1.0); // [batch]
            let lengths = lengths + length_eps(algorithm.profile);
            (kept.sum_dim_intlist(-1, false, kind) / lengths).sum(kind) / at_least_one(whole.sequences)
        }
    }
}

/// The aggregation of the policy's loss. PolicyLoss of openrlhf/models/loss.py (0.11) and compute_policy_loss_gspo of verl's core_algos.py (0.9)
/// settle it for GSPO by themselves.
pub(super) fn of_policy(algorithm: &Algorithm) -> Aggregation {
    match (algorithm.profile, algorithm.ratio) {
        (Profile::Openrlhf | Profile::Verl, Ratio::Sequence) => Aggregation::SequenceMeanTokenMean,
        _ => convention(algorithm),
    }
}

/// The aggregation after the profile's word: AlpacaFarm's token mean counts padding.
fn convention(algorithm: &Algorithm) -> Aggregation {
    match (algorithm.profile, algorithm.aggregation) {
        (Profile::Alpacafarm, Aggregation::TokenMean) => Aggregation::PaddedMean,
        (_, aggregation) => aggregation,
    }
}

/// Whether padding is part of the mean: then the number of columns is part of the loss, and must be that of the step, not of a
/// micro-batch.
pub(crate) fn counts_padding(algorithm: &Algorithm) -> bool {
    convention(algorithm) == Aggregation::PaddedMean
}

/// agg_loss in verl's core_algos.py and aggregate_loss in openrlhf/models/loss.py.
fn length_eps(profile: Profile) -> f64 {
    if matches!(profile, Profile::Verl | Profile::Openrlhf) {
        1e-8
    } else {
        0.0
    }
}

/// An update without a token has the loss 0, not NaN.
pub(super) fn at_least_one(count: f64) -> f64 {
    count.max(1.0)
}
