//! What `min_p`, `top_k` and `top_p` leave of each row: a prefix of the row sorted by likelihood.

use anyhow::Result;
use tch::{Kind, Tensor};

use crate::native::batch::Draw;

/// What each draw may not go beyond, float64, `[draws, 1]`; of a draw that truncates nothing, or is greedy, no token is beyond it.
pub(super) struct Limits<'a> {
    /// Logarithm of the least probability, of the likeliest token's.
    pub min_p: &'a Tensor,
    /// Most tokens.
    pub top_k: &'a Tensor,
    /// Part of the mass.
    pub top_p: &'a Tensor,
}

impl Limits<'_> {
    pub fn min_p(draw: &Draw) -> f64 {
        match draw.temperature > 0.0 && draw.min_p > 0.0 {
            true => f64::from(f64::from(draw.min_p).ln() as f32),
            false => f64::NEG_INFINITY,
        }
    }

    pub fn top_k(draw: &Draw, vocab: i64) -> f64 {
        match draw.temperature > 0.0 && draw.top_k > 0 {
            true => f64::from(draw.top_k),
            false => vocab as f64,
        }
    }

    pub fn top_p(draw: &Draw) -> f64 {
        match draw.temperature > 0.0 && draw.top_p < 1.0 {
            true => f64::from(draw.top_p),
            false => f64::INFINITY,
        }
    }
}

/// `logits` (`[draws, vocab]`) with those outside the kept set at minus infinity, by the rules of
/// [`sampler`](crate::engine::sampler): `min_p` first, then `top_k`, then `top_p` of the mass that is left; of equal logits the lower
/// token is the likelier. `most` and `inverse` (`[draws, 1]`) are the largest logit of each row and one over its temperature.
pub(super) fn truncated(logits: &Tensor, limits: &Limits, most: &Tensor, inverse: &Tensor) -> Result<Tensor> {
    let (device, (_, vocab)) = (logits.device(), logits.size2()?);
    let (sorted, tokens) = logits.f_sort_stable(true, 1, true)?;
    let exponents = sorted.f_sub(most)?.f_mul(inverse)?.f_to_kind(Kind::Double)?;
    let rank = Tensor::f_arange(vocab, (Kind::Int64, device))?.f_unsqueeze(0)?;
    let within = exponents
        .f_ge_tensor(limits.min_p)?
        .f_logical_and(&rank.f_lt_tensor(limits.top_k)?)?;
    let weights = exponents.f_exp()?.f_mul(&within)?;
    let running = weights.f_cumsum(1, Kind::Double)?;
    let mass = running.f_narrow(1, vocab - 1, 1)?;
    // The token that reaches the mass is kept, and the likeliest one always.
    let reached = running.f_sub(&weights)?.f_ge_tensor(&mass.f_mul(limits.top_p)?)?;
    let kept = within.f_logical_and(&reached.f_logical_not()?)?;
    let count = kept
        .f_sum_dim_intlist([1i64].as_slice(), true, Kind::Int64)?
        .f_clamp(1, vocab)?;
    // By the last that is kept, and not by a scatter of what is: a row is sorted once, whatever operators libtorch chooses.
    let last = count.f_sub_scalar(1)?;
    let (least, end) = (sorted.f_gather(1, &last, false)?, tokens.f_gather(1, &last, false)?);
    let equal = logits.f_eq_tensor(&least)?.f_logical_and(&rank.f_le_tensor(&end)?)?;
    let kept = logits.f_gt_tensor(&least)?.f_logical_or(&equal)?;
    Ok(logits.f_masked_fill(&kept.f_logical_not()?, f64::NEG_INFINITY)?)
}
