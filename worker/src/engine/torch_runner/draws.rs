//! Tokens drawn where the logits are, by the rules of [`sampler`](crate::engine::sampler): the distribution function is inverted, in
//! order of token, at the sample's own uniform number, so the same logits give the same tokens as the native sampler.
//!
//! As there, weights are summed in pieces and the pieces in float64: first the piece is found, then the token in it. Nothing
//! but the answers comes to the host, two numbers a draw, in one copy; what goes to the device goes by itself, so that all of it is
//! asked for while the forward pass is computed still.
//!
//! Where our own kernels compute, draws from the whole vocabulary are theirs (`native/cuda/kernels/draw.cuh`); what truncates, or may not
//! draw some token, is always drawn by the operators here.

use anyhow::{Context, Result};
use tch::{Device, Kind, Tensor};

use super::truncation::{Limits, truncated};
use crate::native::batch::{Draw, Drawn};
use crate::native::cuda::Shim;
use crate::native::device::send;

/// Most tokens of a piece.
const PIECE: i64 = 512;
/// Logits that are drawn from at once: with a sort some 50 bytes each are alive, 800 MB.
const AT_ONCE: i64 = 1 << 24;

/// The draws from rows of `logits` (`[rows, vocab]`, float32), in order; -1 where a row holds no distribution. `suppressed` are
/// the lists that the draws point into; `fused` has our kernels, where they compute.
pub(super) fn draw(logits: &Tensor, draws: &[Draw], suppressed: &[i32], fused: Option<&Shim>) -> Result<Vec<Drawn>> {
    if let Some(shim) = fused.filter(|_| !draws.is_empty() && are_plain(draws)) {
        let asked: Vec<i64> = draws.iter().flat_map(words).collect();
        let asked = send(&Tensor::f_from_slice(&asked)?.f_view([-1, WORDS])?, logits.device())?;
        let answers = Tensor::f_empty([draws.len() as i64], (Kind::Int64, logits.device()))?;
        shim.draw(logits, &asked, &answers)?;
        let answers = Vec::<i64>::try_from(&answers.f_to_device(Device::Cpu)?)?;
        return Ok(answers.into_iter().map(answer).collect());
    }
    let (_, vocab) = logits.size2()?;
    let at_once = usize::try_from(AT_ONCE / vocab.max(1))?.max(1);
    let mut drawn = Vec::with_capacity(draws.len());
    let mut parts = Vec::new();
    for draws in draws.chunks(at_once) {
        parts.push(Rows::new(logits, draws, suppressed)?.drawn()?);
    }
    if parts.is_empty() {
        return Ok(drawn);
    }
    // The only wait for the device.
    let answers = Tensor::f_cat(&parts, 1)?.f_to_device(Device::Cpu)?;
    let tokens = Vec::<f64>::try_from(&answers.f_get(0)?)?;
    let logprobs = Vec::<f64>::try_from(&answers.f_get(1)?)?;
    drawn.extend(tokens.iter().zip(&logprobs).map(|(token, logprob)| Drawn {
        token: *token as i32,
        logprob: *logprob as f32,
    }));
    Ok(drawn)
}

/// Whether all are from the whole vocabulary.
pub(super) fn are_plain(draws: &[Draw]) -> bool {
    draws.iter().all(|draw| draw.suppressed == 0 && !is_truncated(draw))
}

/// Numbers of int64 that a draw is for the kernels.
pub(super) const WORDS: i64 = 2;

/// A draw as the kernels read it (`Draw` of `native/cuda/kernels.h`): the uniform number, then one over the temperature, which is 0 for a
/// greedy one, and the row.
pub(super) fn words(draw: &Draw) -> [i64; WORDS as usize] {
    let inverse = if is_greedy(draw) { 0.0 } else { inverse(draw) };
    [
        draw.uniform.to_bits() as i64,
        i64::from(draw.logit_row) << 32 | i64::from(inverse.to_bits()),
    ]
}

/// What the kernels answer (`Drawn` there): the token, then its log-probability.
pub(super) fn answer(word: i64) -> Drawn {
    Drawn {
        token: word as i32,
        logprob: f32::from_bits((word >> 32) as u32),
    }
}

/// Logits with what is asked of each, a row a draw.
struct Rows {
    /// `[draws, vocab]`, those that cannot be drawn at minus infinity.
    logits: Tensor,
    /// The largest of each row before truncation, `[draws, 1]`.
    most: Tensor,
    /// Where it is, `[draws, 1]`; the first of several.
    likeliest: Tensor,
    /// One over the temperature, float32; 1 for greedy draws. `[draws, 1]`.
    inverse: Tensor,
    /// Which draws are greedy, `[draws, 1]`; None: none is.
    greedy: Option<Tensor>,
    /// Float64, `[draws, 1]`.
    uniform: Tensor,
}

impl Rows {
    fn new(logits: &Tensor, draws: &[Draw], suppressed: &[i32]) -> Result<Self> {
        let device = logits.device();
        let (rows, vocab) = logits.size2()?;
        let numbers = numbers(draws, vocab, device)?;
        let [row, uniform, inverse, greedy, min_p, top_k, top_p] = &numbers;
        let in_order = draws.iter().map(|draw| i64::from(draw.logit_row)).eq(0..rows);
        let mut logits = if in_order {
            logits.shallow_clone()
        } else {
            logits.f_index_select(0, &row.f_squeeze_dim(1)?.f_to_kind(Kind::Int64)?)?
        };
        if let Some([rows, tokens]) = suppressions(draws, suppressed, device)? {
            let never = Tensor::f_full([1], f64::NEG_INFINITY, (Kind::Float, device))?;
            logits = logits.f_index_put(&[Some(rows), Some(tokens)], &never, false)?;
        }
        let (most, likeliest) = logits.f_max_dim(1, true)?;
        let inverse = inverse.f_to_kind(Kind::Float)?;
        if draws.iter().any(is_truncated) {
            logits = truncated(&logits, &Limits { min_p, top_k, top_p }, &most, &inverse)?;
        }
        let any_greedy = draws.iter().any(is_greedy);
        Ok(Self {
            logits,
            most,
            likeliest,
            inverse,
            greedy: any_greedy.then(|| greedy.f_ne(0.0)).transpose()?,
            uniform: uniform.shallow_clone(),
        })
    }

    /// Token and log-probability of each draw, `[2, draws]`, float64.
    fn drawn(&self) -> Result<Tensor> {
        let (count, vocab) = self.logits.size2()?;
        let length = piece(vocab);
        let weights = self.logits.f_sub(&self.most)?.f_mul(&self.inverse)?.f_exp_()?;
        let weights = weights.f_view([count, vocab / length, length])?;
        let sums = weights.f_sum_dim_intlist([2i64].as_slice(), false, Kind::Double)?;
        let (piece, before, total) = find(&sums, None, &self.uniform)?;
        let chosen = piece.f_unsqueeze(-1)?.f_expand([count, 1, length], false)?;
        let inside = weights
            .f_gather(1, &chosen, false)?
            .f_squeeze_dim(1)?
            .f_to_kind(Kind::Double)?;
        let target = self.uniform.f_mul(&total)?;
        let (offset, ..) = find(&inside, Some((&before, &target)), &self.uniform)?;
        let mut token = piece.f_mul_scalar(length)?.f_add(&offset)?;
        if let Some(greedy) = &self.greedy {
            token = self.likeliest.f_where_self(greedy, &token)?;
        }
        let logit = self.logits.f_gather(1, &token, false)?;
        let mut logprob = logit
            .f_sub(&self.most)?
            .f_mul(&self.inverse)?
            .f_to_kind(Kind::Double)?
            .f_sub(&total.f_log()?)?;
        if let Some(greedy) = &self.greedy {
            logprob = logprob.f_masked_fill(greedy, 0.0)?;
        }
        // NaN, infinity, or every token suppressed: there is no distribution.
        let token = token.f_masked_fill(&self.most.f_isfinite()?.f_logical_not()?, -1)?;
        Ok(Tensor::f_cat(&[token.f_to_kind(Kind::Double)?, logprob], 1)?.f_transpose(0, 1)?)
    }
}

/// Where the running sum of `weights` (`[rows, n]`, float64) first exceeds the target, `[rows, 1]`; the sum before it; the sum
/// of all. The running sum begins at 0 and the target is the uniform number of the whole, or both are given. The last
/// weight that is not 0 takes what rounding leaves over, and no weight of 0 is ever found.
fn find(weights: &Tensor, from: Option<(&Tensor, &Tensor)>, uniform: &Tensor) -> Result<(Tensor, Tensor, Tensor)> {
    let mut running = weights.f_cumsum(1, Kind::Double)?;
    let last = weights.size2()?.1 - 1;
    let total = running.f_narrow(1, last, 1)?.f_contiguous()?;
    let target = match from {
        None => uniform.f_mul(&total)?,
        Some((before, target)) => {
            running = running.f_add(before)?;
            // Rounding may have put the target before the first weight.
            target.f_maximum(before)?
        }
    };
    let end = running.f_narrow(1, last, 1)?.f_contiguous()?;
    let found = target.f_searchsorted(&running, false, true, "right", None::<&Tensor>)?;
    let last_with_weight = end.f_searchsorted(&running, false, false, "left", None::<&Tensor>)?;
    // Where a row has NaN nothing is found: any index will do.
    let found = found.f_minimum(&last_with_weight)?.f_clamp(0, last)?;
    let before = running
        .f_gather(1, &found, false)?
        .f_sub(&weights.f_gather(1, &found, false)?)?;
    Ok((found, before, total))
}

/// Row and token of every probability that is to be 0; None: there is none.
fn suppressions(draws: &[Draw], suppressed: &[i32], device: Device) -> Result<Option<[Tensor; 2]>> {
    let (mut rows, mut tokens) = (Vec::new(), Vec::new());
    for (row, draw) in (0i64..).zip(draws) {
        let first = draw.first_suppressed as usize;
        let list = suppressed.get(first..first + draw.suppressed as usize);
        for token in list.context("suppressed tokens out of range")? {
            rows.push(row);
            tokens.push(i64::from(*token));
        }
    }
    if rows.is_empty() {
        return Ok(None);
    }
    let send = |numbers: &[i64]| send(&Tensor::f_from_slice(numbers)?, device);
    Ok(Some([send(&rows)?, send(&tokens)?]))
}

/// What is asked of each draw, float64, each `[draws, 1]`, in one transfer: row of the logits, uniform number, one over the
/// temperature, whether it is greedy (1 or 0), and its [`Limits`].
fn numbers(draws: &[Draw], vocab: i64, device: Device) -> Result<[Tensor; 7]> {
    let columns: [&dyn Fn(&Draw) -> f64; 7] = [
        &|draw| f64::from(draw.logit_row),
        &|draw| draw.uniform,
        &|draw| f64::from(inverse(draw)),
        &|draw| f64::from(u8::from(is_greedy(draw))),
        &Limits::min_p,
        &|draw| Limits::top_k(draw, vocab),
        &Limits::top_p,
    ];
    let all: Vec<f64> = columns.iter().flat_map(|column| draws.iter().map(*column)).collect();
    let all = send(&Tensor::f_from_slice(&all)?.f_view([7, draws.len() as i64, 1])?, device)?;
    let parts: Vec<Tensor> = (0..7).map(|column| all.f_get(column)).collect::<Result<_, _>>()?;
    parts.try_into().ok().context("seven numbers of each draw")
}

fn is_greedy(draw: &Draw) -> bool {
    draw.temperature == 0.0
}

fn is_truncated(draw: &Draw) -> bool {
    draw.temperature > 0.0 && (draw.top_k > 0 || draw.top_p < 1.0 || draw.min_p > 0.0)
}

fn inverse(draw: &Draw) -> f32 {
    match draw.temperature > 0.0 {
        true => 1.0 / draw.temperature,
        false => 1.0,
    }
}

/// The longest piece of at most [`PIECE`] tokens that divides the vocabulary: no row has to be filled up.
fn piece(vocab: i64) -> i64 {
    (1..=PIECE.min(vocab))
        .rev()
        .find(|length| vocab % length == 0)
        .unwrap_or(1)
}

#[cfg(test)]
mod tests;
