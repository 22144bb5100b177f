//! The policy loss, PPO's clipped one (Schulman et al. 2017, arXiv 1707.06347) or CISPO, with what it is added to: KL and entropy.

use std::ops::AddAssign;

use ppo_crds::run_config::Algorithm;
use ppo_crds::spec::{Aggregation, Profile, Ratio};
use tch::{Kind, Tensor};

use super::aggregation::{Denominator, aggregate, aggregate_beside, at_least_one, counts_padding, of_policy};
use super::grid::wide_kind;
use super::surrogate::Surrogate;
use super::{Error, correction, kl, mask, ratio};

/// A micro-batch of the policy's update. All tensors [batch, time].
#[derive(Clone, Copy, Debug)]
pub struct PolicyInput<'a> {
    /// Log-probs under the policy being trained, with their graph.
    pub logprobs: &'a Tensor,
    /// Log-probs under the policy before the step's updates, computed by the actor. It is the one that generated, but for samples
    /// that were drawn ahead.
    pub old_logprobs: &'a Tensor,
    /// Advantages of the step.
    pub advantages: &'a Tensor,
    /// Response mask.
    pub mask: &'a Tensor,
    /// Log-probs the engine recorded, under the policy that generated; read when [`Algorithm::correction`] is set.
    pub rollout_logprobs: Option<&'a Tensor>,
}

/// The policy loss of a micro-batch.
#[derive(Debug)]
pub struct PolicyLoss {
    /// Its share of the update's loss, a scalar with the graph.
    pub loss: Tensor,
    /// Its sums where the loss is, [8] float64: [`PolicyStats::of`] what was brought from there.
    pub sums: Tensor,
}

impl PolicyLoss {
    /// Its sums, brought to this machine by themselves; add them up over micro-batches and ranks.
    ///
    /// # Errors
    /// When libtorch fails.
    pub fn stats(&self) -> Result<PolicyStats, tch::TchError> {
        let mut sums = [0.0; PolicyStats::NUMBERS];
        self.sums.f_copy_data(&mut sums, PolicyStats::NUMBERS)?;
        Ok(PolicyStats::of(sums))
    }
}

/// Sums over tokens, each with its ratio, whether that is its own or its response's (over sequences where a response is one action).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PolicyStats {
    /// Ratios counted.
    pub count: f64,
    /// Ratios whose clipped loss was the greater; with CISPO those that the bounds changed, under `trl` from above with a positive advantage.
    pub clipped: f64,
    /// Ratios held by the dual clip.
    pub dual_clipped: f64,
    /// Sum of the KL to the old policy, see [`PolicyStats::approx_kl`].
    pub kl: f64,
    /// What `kl` is divided by.
    pub kl_count: f64,
    /// Sum of ratios.
    pub ratio: f64,
    /// Sum of squared ratios.
    pub ratio_square: f64,
    /// Greatest ratio.
    pub ratio_max: f64,
}

impl PolicyStats {
    /// How many there are.
    pub const NUMBERS: usize = 8;

    /// From [`PolicyLoss::sums`].
    pub fn of(
        [
            count,
            clipped,
            dual_clipped,
            kl,
            kl_count,
            ratio,
            ratio_square,
            ratio_max,
        ]: [f64; Self::NUMBERS],
    ) -> Self {
        Self {
            count,
            clipped,
            dual_clipped,
            kl,
            kl_count,
            ratio,
            ratio_square,
            ratio_max,
        }
    }

    /// Share of ratios outside the clip range on the side where it counts, from 0 to 1.
    pub fn clip_fraction(&self) -> f64 {
        self.clipped / self.count.max(1.0)
    }

    /// Share of ratios held by the dual clip, from 0 to 1.
    pub fn dual_clip_fraction(&self) -> f64 {
        self.dual_clipped / self.count.max(1.0)
    }

    /// KL from the old policy: mean of x_old - x over tokens, as in OpenRLHF and verl (where the difference is clamped as
    /// the ratio's is). `trl` and `alpacafarm`: half the mean square of the difference over batch x time.
    pub fn approx_kl(&self) -> f64 {
        self.kl / self.kl_count.max(1.0)
    }

    /// Mean ratio.
    pub fn ratio_mean(&self) -> f64 {
        self.ratio / self.count.max(1.0)
    }

    /// Population variance of the ratio.
    pub fn ratio_variance(&self) -> f64 {
        (self.ratio_square / self.count.max(1.0) - self.ratio_mean().powi(2)).max(0.0)
    }
}

impl AddAssign for PolicyStats {
    fn add_assign(&mut self, other: Self) {
        self.count += other.count;
        self.clipped += other.clipped;
        self.dual_clipped += other.dual_clipped;
        self.kl += other.kl;
        self.kl_count += other.kl_count;
        self.ratio += other.ratio;
        self.ratio_square += other.ratio_square;
        self.ratio_max = self.ratio_max.max(other.ratio_max);
    }
}

/// max(-A r, -A clip(r, 1 - low, 1 + high)) with r = exp(clamp(x - x_old, -20, 20)), or with `surrogate: cispo` -A x times that clipped r
/// without its gradient (`surrogate.rs`); with a correction times a weight of exp(x_old - x_rollout) between two bounds.
///
/// With `ratio: sequence` r is the exp of the response's mean of x - x_old (GSPO, arXiv 2507.18071, equation 7). As in the frameworks its
/// tokens share it, and the aggregation is over tokens.
///
/// The weight makes samples of an older policy those of the present one, in expectation and up to the bounds (`correction.rs`): the policy
/// that generated (x_rollout) is told apart from the proximal one (x_old), from which alone the clip measures (Hilton et al. 2021,
/// arXiv 2110.00641).
///
/// `trl` and `alpacafarm` do not clamp the exponent. RLOO under `trl` takes a response as one action: one ratio, that of the summed
/// log-probs, likewise one importance weight, and the mean over sequences. `verl` with `ratio: sequence` has GSPO-token's gradient
/// (equation 13): of a token's own log-prob, by its own advantage. `openrlhf` then puts the engine's log-probs in the place of x_old
/// where a correction is on, without a weight. `alpacafarm` counts padding: its slots should hold equal log-probs.
///
/// # Errors
/// Inputs of different shapes; a correction without the engine's log-probs.
pub fn policy_loss(algorithm: &Algorithm, input: &PolicyInput, whole: &Denominator) -> Result<PolicyLoss, Error> {
    let shape = input.mask.size();
    Error::unless_shape("logprobs", &input.logprobs.size(), &shape)?;
    Error::unless_shape("old_logprobs", &input.old_logprobs.size(), &shape)?;
    Error::unless_shape("advantages", &input.advantages.size(), &shape)?;
    let counted = counted(of_policy(algorithm) == Aggregation::PaddedMean, input.mask);
    let kind = wide_kind(input.logprobs.kind());
    let since = |before: &Tensor| {
        let difference = input.logprobs.to_kind(kind) - before.to_kind(kind).detach();
        mask::keep(&difference, &counted) // [batch, time]
    };
    let difference = since(input.old_logprobs);
    let logprobs = mask::keep(&input.logprobs.to_kind(kind), &counted);
    let advantages = mask::keep(&input.advantages.to_kind(kind).detach(), &counted);
    let weight = importance_weight(algorithm, input, &counted)?;
    if ratio::is_one_action(algorithm) {
        return Ok(sequence_loss(
            algorithm,
            &difference,
            &logprobs,
            &advantages,
            weight.as_ref(),
            &counted,
            whole,
        ));
    }
    let to_engine = ratio::is_to_engine(algorithm);
    let from_engine = to_engine.then(|| rollout_logprobs(input).map(since)).transpose()?;
    let log_ratio = ratio::log_ratio(
        algorithm,
        from_engine.as_ref().unwrap_or(&difference),
        &mask::booleans(input.mask),
    );
    let surrogate = Surrogate::of(algorithm, &log_ratio.exp(), &logprobs, &advantages);
    let per_token = weighted(&surrogate.loss, weight.as_ref());
    Ok(PolicyLoss {
        loss: aggregate(algorithm, &per_token, &counted, whole),
        sums: sums(&surrogate, &counted, &approx_kl(algorithm, &difference, &counted)),
    })
}

/// Mean KL to the reference, to be multiplied by the coefficient and added to the loss (placement `loss`); a scalar with
/// the graph of `logprobs`, aggregated by [`aggregate_beside`].
///
/// # Errors
/// Inputs of different shapes.
pub fn kl_loss(
    algorithm: &Algorithm,
    logprobs: &Tensor,
    ref_logprobs: &Tensor,
    mask: &Tensor,
    whole: &Denominator,
) -> Result<Tensor, Error> {
    Error::unless_shape("logprobs", &logprobs.size(), &mask.size())?;
    Error::unless_shape("ref_logprobs", &ref_logprobs.size(), &mask.size())?;
    let counted = counted(counts_padding(algorithm), mask);
    // Masked before the estimate: exp of a padded slot's difference may be infinite.
    let kept = mask::keep(&(logprobs - ref_logprobs.detach()), &counted);
    let zero = kept.zeros_like().detach();
    let estimate = kl::estimate(
        &kept,
        &zero,
        algorithm.kl.estimator,
        algorithm.kl.clamp,
        algorithm.profile,
    );
    Ok(aggregate_beside(algorithm, &estimate, &counted, whole))
}

/// Mean entropy, to be multiplied by the coefficient and subtracted from the loss; a scalar with the graph of `entropy`
/// ([batch, time], from [`crate::model::token_logprobs`]), aggregated by [`aggregate_beside`].
///
/// # Errors
/// Inputs of different shapes.
pub fn entropy_bonus(
    algorithm: &Algorithm,
    entropy: &Tensor,
    mask: &Tensor,
    whole: &Denominator,
) -> Result<Tensor, Error> {
    Error::unless_shape("entropy", &entropy.size(), &mask.size())?;
    Ok(aggregate_beside(
        algorithm,
        &entropy.to_kind(wide_kind(entropy.kind())),
        mask,
        whole,
    ))
}

/// Every slot where padding is part of the mean, else the mask.
fn counted(with_padding: bool, mask: &Tensor) -> Tensor {
    let mask = mask::booleans(mask);
    if with_padding { mask.ones_like() } else { mask }
}

fn rollout_logprobs<'a>(input: &PolicyInput<'a>) -> Result<&'a Tensor, Error> {
    let Some(rollout) = input.rollout_logprobs else {
        let why = "the correction compares the actor's log-probs with the engine's".into();
        return Err(Error::Missing {
            name: "rollout_logprobs",
            why,
        });
    };
    Error::unless_shape("rollout_logprobs", &rollout.size(), &input.mask.size())?;
    Ok(rollout)
}

/// [batch] where a response is one action, else [batch, time], or [batch, 1] for all tokens of a row.
fn importance_weight(algorithm: &Algorithm, input: &PolicyInput, counted: &Tensor) -> Result<Option<Tensor>, Error> {
    if algorithm.correction().is_none() {
        return Ok(None);
    }
    let rollout = rollout_logprobs(input)?;
    let weights = correction::weights(algorithm, input.old_logprobs, rollout, counted, input.mask);
    Ok(weights.map(|weights| match ratio::is_one_action(algorithm) {
        true => weights.weight.squeeze_dim(-1),
        false => weights.weight,
    }))
}

fn weighted(loss: &Tensor, weight: Option<&Tensor>) -> Tensor {
    weight.map_or_else(|| loss.shallow_clone(), |weight| loss * weight)
}

/// One ratio per sequence; rows without a token are left out. The mean is over the update's sequences, as TRL's mean over micro-batches of one
/// size: ours hold as many sequences as fit.
fn sequence_loss(
    algorithm: &Algorithm,
    difference: &Tensor,
    logprobs: &Tensor,
    advantages: &Tensor,
    weight: Option<&Tensor>,
    mask: &Tensor,
    whole: &Denominator,
) -> PolicyLoss {
    let kind = difference.kind();
    let rows = mask.any_dim(-1, false); // [batch]
    let lengths = mask.sum_dim_intlist(-1, false, kind).clamp_min(1.0);
    let difference = difference.sum_dim_intlist(-1, false, kind);
    let logprobs = logprobs.sum_dim_intlist(-1, false, kind);
    let advantages = advantages.sum_dim_intlist(-1, false, kind) / &lengths; // the same on every token
    let surrogate = Surrogate::of(algorithm, &difference.exp(), &logprobs, &advantages);
    let loss = mask::keep(&weighted(&surrogate.loss, weight), &rows);
    let kl = KlSum {
        sum: number(&(difference.square() * 0.5)),
        count: number(&rows),
    };
    PolicyLoss {
        loss: loss.sum(kind) / at_least_one(whole.sequences),
        sums: sums(&surrogate, &rows, &kl),
    }
}

/// Scalars, float64.
struct KlSum {
    sum: Tensor,
    count: Tensor,
}

/// Of tokens, whosever ratio is clipped.
fn approx_kl(algorithm: &Algorithm, difference: &Tensor, counted: &Tensor) -> KlSum {
    match (algorithm.profile, algorithm.ratio) {
        (Profile::Trl | Profile::Alpacafarm, _) => KlSum {
            sum: number(&(difference.square() * 0.5)),
            count: number(&counted.ones_like()),
        },
        (Profile::Openrlhf, _) | (Profile::Verl, Ratio::Sequence) => KlSum {
            sum: number(difference).neg(),
            count: number(counted),
        },
        (Profile::Default, _) | (Profile::Verl, Ratio::Token) => KlSum {
            sum: number(&ratio::of_token(algorithm.profile, difference)).neg(),
            count: number(counted),
        },
    }
}

/// In the order of [`PolicyStats::of`].
fn sums(surrogate: &Surrogate, counted: &Tensor, kl: &KlSum) -> Tensor {
    let ratio = mask::keep(&surrogate.ratio.to_kind(Kind::Double), counted);
    let greatest = if ratio.numel() == 0 {
        number(&ratio)
    } else {
        ratio.max()
    };
    let sums = [
        &number(counted),
        &number(&surrogate.clipped.logical_and(counted)),
        &number(&surrogate.dual_clipped.logical_and(counted)),
        &kl.sum,
        &kl.count,
        &number(&ratio),
        &number(&ratio.square()),
        &greatest,
    ];
    Tensor::stack(&sums, 0)
}

/// The sum as a scalar, float64.
fn number(tensor: &Tensor) -> Tensor {
    tensor.detach().sum(Kind::Double)
}
