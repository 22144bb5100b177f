//! From sampling parameters to the draws the native decoder makes, and the random numbers behind them.
//!
//! A token is drawn by inverting the distribution function, in order of token id, at one uniform number. The number is a
//! function of the sample's seed and the token's index in its response alone ([`uniform`]), so a sample does not depend on
//! what else is in the batch, on preemption, or on how many draws came before.
//!
//! Order of operations, as in vLLM: stop tokens and the model's ends suppressed before `min_new_tokens`, temperature, `min_p`, `top_k`, `top_p`
//! of the mass that is left. Among equal logits the lower id counts as likelier. The log-probability is of the
//! distribution drawn from; temperatures below 1e-5 are greedy, with log-probability 0.

use anyhow::{Context, Result};

use super::runner::{Draw, Drawn};
use crate::native::batch as native;

/// Temperatures below this are greedy: dividing logits by less leaves no distribution in float32.
const GREEDY_BELOW: f32 = 1e-5;

/// Whether the likeliest token is taken instead of a drawn one.
pub fn is_greedy(temperature: f32) -> bool {
    (0.0..GREEDY_BELOW).contains(&temperature)
}

/// The uniform number in [0, 1) of the token at `index` in the response of the sample with this seed: the high 53 of the
/// first 64 bits of Philox4x32-10 with key `seed` and counter `index`.
pub fn uniform(seed: u64, index: u64) -> f64 {
    let [low, high, ..] = philox(
        [index as u32, (index >> 32) as u32, 0, 0],
        [seed as u32, (seed >> 32) as u32],
    );
    let bits = u64::from(high) << 32 | u64::from(low);
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 5.3).
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let a = u64::from(counter[0]) * 0xD251_1F53;
        let b = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

/// The native form of a draw; appends the tokens it suppresses to `suppressed`. Stop tokens outside the vocabulary cannot
/// be drawn and are left out.
///
/// # Errors
/// When `top_k` is beyond 2^31.
pub(super) fn native_draw(
    draw: &Draw,
    logit_row: i32,
    vocab: usize,
    suppressed: &mut Vec<i32>,
) -> Result<native::Draw> {
    let params = &draw.params;
    let first = suppressed.len();
    let drawable = draw.suppressed().filter(|id| (*id as usize) < vocab);
    suppressed.extend(drawable.map(|id| id as i32));
    Ok(native::Draw {
        uniform: uniform(draw.seed, draw.index as u64),
        temperature: if is_greedy(params.temperature) {
            0.0
        } else {
            params.temperature
        },
        top_p: params.top_p,
        min_p: params.min_p,
        top_k: i32::try_from(params.top_k.min(vocab)).context("top_k is too large")?,
        logit_row,
        first_suppressed: i32::try_from(first)?,
        suppressed: i32::try_from(suppressed.len() - first)?,
    })
}

/// What a runner drew; None for a draw that gave no token, which native code and kernels say by a negative one.
pub(super) fn given(drawn: Vec<native::Drawn>) -> Vec<Option<Drawn>> {
    let given = drawn.into_iter().map(|native::Drawn { token, logprob }| {
        let token = u32::try_from(token).ok()?;
        Some(Drawn { token, logprob })
    });
    given.collect()
}

#[cfg(test)]
pub(super) mod tests;
