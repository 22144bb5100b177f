//! What `min_p`, `top_k` and `top_p` leave of each row: a prefix of the row sorted by likelihood.

use anyhow::Result;
use tch::{Kind, Tensor};

use crate::native::batch::Draw;

/// `logits` (`[draws, vocab]`) with those outside the kept set at minus infinity, by the rules of
/// [`sampler`](crate::engine::sampler): `min_p` first, then `top_k`, then `top_p` of the mass that is left; of equal logits the lower
/// token is the likelier. Rows whose draw truncates nothing, or is greedy, stay as they are. `most` and `inverse` (`[draws, 1]`) are
/// the largest logit of each row and one over its temperature.
pub(super) fn truncated(logits: &Tensor, draws: &[Draw], most: &Tensor, inverse: &Tensor) -> Result<Tensor> {
    let (device, (_, vocab)) = (logits.device(), logits.size2()?);
    let column = |number: &dyn Fn(&Draw) -> f64| -> Result<Tensor> {
        let numbers: Vec<f64> = draws.iter().map(number).collect();
        Ok(Tensor::f_from_slice(&numbers)?.f_view([-1, 1])?.f_to_device(device)?)
    };
    let least = column(&|draw| match draw.temperature > 0.0 && draw.min_p > 0.0 {
        true => f64::from(f64::from(draw.min_p).ln() as f32),
        false => f64::NEG_INFINITY,
    })?;
    let top_k = column(&|draw| match draw.temperature > 0.0 && draw.top_k > 0 {
        true => f64::from(draw.top_k),
        false => vocab as f64,
    })?;
    let top_p = column(&|draw| match draw.temperature > 0.0 && draw.top_p < 1.0 {
        true => f64::from(draw.top_p),
        false => f64::INFINITY,
    })?;

    let (sorted, tokens) = logits.f_sort_stable(true, 1, true)?;
    let exponents = sorted.f_sub(most)?.f_mul(inverse)?.f_to_kind(Kind::Double)?;
    let rank = Tensor::f_arange(vocab, (Kind::Double, device))?.f_unsqueeze(0)?;
    let within = exponents
        .f_ge_tensor(&least)?
        .f_logical_and(&rank.f_lt_tensor(&top_k)?)?;
    let weights = exponents.f_exp()?.f_mul(&within)?;
    let running = weights.f_cumsum(1, Kind::Double)?;
    let mass = running.f_narrow(1, vocab - 1, 1)?;
    // The token that reaches the mass is kept, and the likeliest one always.
    let reached = running.f_sub(&weights)?.f_ge_tensor(&mass.f_mul(&top_p)?)?;
    let kept = within
        .f_logical_and(&reached.f_logical_not()?)?
        .f_logical_or(&rank.f_eq(0.0)?)?;
    let kept = kept.f_zeros_like()?.f_scatter_(1, &tokens, &kept)?;
    Ok(logits.f_masked_fill(&kept.f_logical_not()?, f64::NEG_INFINITY)?)
}
