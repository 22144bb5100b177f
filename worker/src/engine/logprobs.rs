//! Log-probabilities read from a row of logits, for requests that ask for more than the drawn token's own.
//!
//! The drawn token's own log-probability comes from the sampler; those listed beside it here are of the same distribution.

use anyhow::Result;

use super::request::{TokenLogprob, TokenScore};
use super::runner::{Draw, Drawn, ForwardBatch, Output};
use super::sampler::is_greedy;

/// Of the kept tokens' whole mass; the rest is rounding.
const WHOLE: f64 = 1.0 - 1e-5;

/// The drawn tokens with what is told beside them. `logits` gives a row of the batch's logits, rows being counted as
/// [`flatten`](super::flat::flatten) orders them; only rows that somebody asked about are read.
///
/// # Errors
/// When a row of logits cannot be had.
pub(super) fn detailed(
    batch: &ForwardBatch,
    mut drawn: Vec<Option<Drawn>>,
    mut logits: impl FnMut(usize) -> Result<Vec<f32>>,
) -> Result<Output> {
    let (mut tops, mut scores) = (Vec::new(), Vec::new());
    let mut own = drawn.iter_mut();
    let mut row = 0;
    for chunk in &batch.chunks {
        for &target in &chunk.targets {
            scores.push(score(&logits(row)?, target, chunk.target_tops));
            row += 1;
        }
        if chunk.draws.is_empty() {
            continue;
        }
        let asked = chunk.draws.iter().any(|draw| draw.top.is_some());
        let read = if asked { logits(row)? } else { vec![] };
        row += 1;
        for (draw, drawn) in chunk.draws.iter().zip(own.by_ref()) {
            let Some(count) = draw.top else { continue };
            tops.push(match drawn {
                Some(drawn) => {
                    let (top, logprob) = beside(&read, draw, *drawn, count);
                    drawn.logprob = logprob;
                    top
                }
                None => Vec::new(),
            });
        }
    }
    Ok(Output { drawn, tops, scores })
}

/// Scores `target` under the untempered distribution of `logits`, with the `count` likeliest tokens.
pub fn score(logits: &[f32], target: u32, count: usize) -> TokenScore {
    let normalizer = log_sum_exp(logits);
    let own = logits.get(target as usize).copied().unwrap_or(f32::NEG_INFINITY);
    let likelier = logits
        .iter()
        .enumerate()
        .filter(|(token, logit)| **logit > own || (**logit == own && *token < target as usize))
        .count();
    let top = largest(logits, count, |_| true);
    TokenScore {
        logprob: (f64::from(own) - normalizer) as f32,
        rank: likelier + 1,
        top: top.into_iter().map(|entry| entry.under(1.0, normalizer)).collect(),
    }
}

/// The `count` likeliest tokens of the distribution that `drawn` was drawn from; tokens that could not be drawn are left
/// out. A greedy token has no distribution: there it is the untempered one, and the second value is the token's own
/// log-probability under it.
pub fn beside(logits: &[f32], draw: &Draw, drawn: Drawn, count: usize) -> (Vec<TokenLogprob>, f32) {
    let params = &draw.params;
    let own = f64::from(logits.get(drawn.token as usize).copied().unwrap_or(0.0));
    if is_greedy(params.temperature) {
        let normalizer = log_sum_exp(logits);
        let top = largest(logits, count, |_| true);
        let top = top.into_iter().map(|entry| entry.under(1.0, normalizer)).collect();
        return (top, (own - normalizer) as f32);
    }
    let suppressed: Vec<u32> = draw.suppressed().collect();
    let may_be_drawn = |token: u32| !suppressed.contains(&token);
    let temperature = f64::from(params.temperature);
    // What the sampler normalised by, whatever it had truncated before.
    let normalizer = own / temperature - f64::from(drawn.logprob);
    let most_kept = match params.top_k {
        0 => usize::MAX,
        top_k => top_k,
    };
    let entries = largest(logits, count.min(most_kept), may_be_drawn);
    let most = entries.first().map_or(0.0, |likeliest| likeliest.logit);
    // In the sampler's own arithmetic: both have to leave out the same tokens.
    let inverse = 1.0 / params.temperature;
    let least = match params.min_p > 0.0 {
        true => f64::from(params.min_p).ln() as f32,
        false => f32::NEG_INFINITY,
    };
    let mut top = Vec::new();
    let mut mass = 0.0;
    for entry in entries {
        // The probabilities of those that top_p keeps, which come first, add up to 1. By the other two alone tokens without any
        // mass to speak of may be kept.
        let is_beyond_top_p = params.top_p < 1.0 && mass > WHOLE;
        if is_beyond_top_p || entry.logit == f32::NEG_INFINITY || (entry.logit - most) * inverse < least {
            break;
        }
        let entry = entry.under(temperature, normalizer);
        mass += f64::from(entry.logprob).exp();
        top.push(entry);
    }
    (top, drawn.logprob)
}

#[derive(Clone, Copy)]
struct Entry {
    token: u32,
    logit: f32,
}

impl Entry {
    fn under(self, temperature: f64, normalizer: f64) -> TokenLogprob {
        TokenLogprob {
            token: self.token,
            logprob: (f64::from(self.logit) / temperature - normalizer) as f32,
        }
    }
}

/// The largest logits, largest first; among equals the lower id comes first, as in the sampler.
fn largest(logits: &[f32], count: usize, wanted: impl Fn(u32) -> bool) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::with_capacity(count.min(logits.len()) + 1);
    for (token, &logit) in (0u32..).zip(logits) {
        let full = entries.len() >= count;
        if full && entries.last().is_none_or(|last| logit <= last.logit) || !wanted(token) {
            continue;
        }
        let place = entries.partition_point(|entry| entry.logit >= logit);
        entries.insert(place, Entry { token, logit });
        entries.truncate(count);
    }
    entries
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
    f64::from(most) + sum.ln()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::engine::request::SamplingParams;
    use crate::native::engine as native;

    fn draw(params: SamplingParams) -> Draw {
        Draw {
            params: Arc::new(params),
            seed: 3,
            index: 0,
            ends: Arc::default(),
            top: Some(100),
        }
    }

    fn plain() -> SamplingParams {
        crate::engine::hash_runner::params(4)
    }

    /// Draws as the engine does.
    fn drawn(logits: &[f32], wanted: &Draw) -> Drawn {
        let mut suppressed = Vec::new();
        let native = crate::engine::sampler::native_draw(wanted, 0, logits.len(), &mut suppressed).unwrap();
        let drawn = native::sample(logits, &native, &suppressed).unwrap();
        Drawn {
            token: drawn.token as u32,
            logprob: drawn.logprob,
        }
    }

    proptest! {
        #[test]
        fn what_is_listed_is_the_distribution_that_was_drawn_from(
            logits in prop::collection::vec(-4f32..4.0, 5..40), temperature in 0.3f32..2.0, top_p in 0.2f32..1.0,
            top_k in 0usize..6, min_p in 0f32..0.3, seed in any::<u64>(), min_new_tokens in 0usize..2,
        ) {
            let params = SamplingParams {
                temperature, top_p, top_k, min_p, min_new_tokens, stop_token_ids: vec![1, 3], ..plain()
            };
            let wanted = Draw { seed, ends: [2].into(), ..draw(params) };
            let token = drawn(&logits, &wanted);
            let (top, own) = beside(&logits, &wanted, token, logits.len());
            let mass: f64 = top.iter().map(|entry| f64::from(entry.logprob).exp()).sum();
            prop_assert!((mass - 1.0).abs() < 1e-3, "{mass}");
            let listed = top.iter().find(|entry| entry.token == token.token).unwrap();
            prop_assert!((listed.logprob - own).abs() < 1e-5);
            prop_assert!(top.windows(2).all(|pair| pair[0].logprob >= pair[1].logprob));
            prop_assert!(top_k == 0 || top.len() <= top_k);
            prop_assert!(min_new_tokens == 0 || top.iter().all(|entry| ![1, 2, 3].contains(&entry.token)));
        }
    }

    #[test]
    fn a_greedy_token_is_listed_under_the_untempered_distribution() {
        let wanted = draw(SamplingParams {
            temperature: 0.0,
            ..plain()
        });
        let logits = [0.0, 2.0f32.ln(), 0.0];
        let (top, own) = beside(&logits, &wanted, drawn(&logits, &wanted), 2);
        assert!((own - 0.5f32.ln()).abs() < 1e-6);
        assert_eq!(top.iter().map(|entry| entry.token).collect::<Vec<_>>(), [1, 0]);
    }

    #[test]
    fn as_many_tokens_are_listed_as_were_asked_for_unless_some_were_left_out() {
        let logits = [20.0, 0.0, 0.0, 0.0];
        let listed = |params: SamplingParams| {
            let wanted = draw(params);
            beside(&logits, &wanted, drawn(&logits, &wanted), 3).0.len()
        };
        assert_eq!(listed(plain()), 3);
        assert_eq!(listed(SamplingParams { top_p: 0.9, ..plain() }), 1);
        assert_eq!(listed(SamplingParams { top_k: 1, ..plain() }), 1);
        assert_eq!(listed(SamplingParams { min_p: 0.1, ..plain() }), 1);
        // These have next to no mass, and could have been drawn.
        assert_eq!(listed(SamplingParams { top_k: 2, ..plain() }), 2);
        assert_eq!(listed(SamplingParams { top_k: 3, ..plain() }), 3);
        assert_eq!(listed(SamplingParams { min_p: 1e-9, ..plain() }), 3);
    }

    #[test]
    fn a_given_token_has_a_rank_and_a_log_probability() {
        let logits = [1.0f32, 1.0, 3.0];
        let scored = score(&logits, 1, 1);
        let sum = 2.0 * 1f64.exp() + 3f64.exp();
        assert!((f64::from(scored.logprob) - (1.0 - sum.ln())).abs() < 1e-6);
        assert_eq!((scored.rank, scored.top[0].token, scored.top.len()), (3, 2, 1));
        assert!(score(&logits, 2, 0).top.is_empty());
    }
}
