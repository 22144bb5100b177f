//! A runner for tests: tokens are hashes of what it finds in its cache, so a wrong block table, a missed copy, a stale block
//! or a wrong draw gives other tokens.

use std::time::Duration;

use super::changes::Changes;
use super::request::{Details, FinishReason, Request, SamplingParams, TokenLogprob, TokenScore};
use super::runner::{Draw, Drawn, ForwardBatch, Output, Runner};
use crate::model::MergedWeights;

pub const VOCABULARY: u64 = 61;

/// What goes wrong, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    ErrorInPass(usize),
    LosesTokenInPass(usize),
    /// There is no distribution after this token.
    NoneAfter(u32),
    Copy,
    Load,
}

pub struct HashRunner {
    /// [block][slot]: a hash of the token there and of all before it.
    cache: Vec<Vec<u64>>,
    max_positions: usize,
    /// Stands for the weights: every load changes what is computed.
    weights: u64,
    passes: usize,
    pub fault: Fault,
    /// Time one pass takes.
    pub pace: Duration,
}

impl HashRunner {
    pub fn new(blocks: usize, block_size: usize, max_positions: usize) -> Self {
        let cache = vec![vec![0xdead_beef; block_size]; blocks];
        Self {
            cache,
            max_positions,
            weights: 0,
            passes: 0,
            fault: Fault::None,
            pace: Duration::ZERO,
        }
    }
}

fn mix(a: u64, b: u64) -> u64 {
    let mut x = (a ^ b.rotate_left(32)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn slot(before: u64, token: u32, weights: u64) -> u64 {
    mix(mix(before, u64::from(token)), weights)
}

fn draw(slots: impl Iterator<Item = u64>, draw: &Draw) -> Drawn {
    let hash = mix(mix(slots.fold(0, mix), draw.seed), draw.index as u64);
    Drawn {
        token: (hash % VOCABULARY) as u32,
        logprob: -((hash >> 40) as f32) / 1e6,
    }
}

fn top(slots: impl Iterator<Item = u64>, count: usize) -> Vec<TokenLogprob> {
    let hash = slots.fold(1, mix);
    let entry = |place: u64| TokenLogprob {
        token: (mix(hash, place) % VOCABULARY) as u32,
        logprob: -(place as f32),
    };
    (0..count as u64).map(entry).collect()
}

fn score(slots: impl Iterator<Item = u64> + Clone, target: u32, tops: usize) -> TokenScore {
    let hash = mix(slots.clone().fold(2, mix), u64::from(target));
    TokenScore {
        logprob: -((hash >> 40) as f32) / 1e6,
        rank: (hash % VOCABULARY) as usize + 1,
        top: top(slots, tops),
    }
}

impl Runner for HashRunner {
    fn num_blocks(&self) -> usize {
        self.cache.len()
    }

    fn block_size(&self) -> usize {
        self.cache[0].len()
    }

    fn max_positions(&self) -> usize {
        self.max_positions
    }

    fn forward(&mut self, batch: &ForwardBatch) -> anyhow::Result<Output> {
        std::thread::sleep(self.pace);
        self.passes += 1;
        if self.fault == Fault::ErrorInPass(self.passes) {
            anyhow::bail!("out of memory on device 7");
        }
        let size = self.block_size();
        // All writes first, as a real forward does layer by layer: a block written for two sequences shows.
        for chunk in &batch.chunks {
            assert_eq!(chunk.blocks.len(), (chunk.start + chunk.tokens.len()).div_ceil(size));
            for (position, &token) in (chunk.start..).zip(&chunk.tokens) {
                let before = match position {
                    0 => 0,
                    _ => self.cache[chunk.blocks[(position - 1) / size] as usize][(position - 1) % size],
                };
                self.cache[chunk.blocks[position / size] as usize][position % size] = slot(before, token, self.weights);
            }
        }
        let mut output = Output::default();
        for chunk in &batch.chunks {
            let slots = |end: usize| {
                (0..end).map(|position| self.cache[chunk.blocks[position / size] as usize][position % size])
            };
            for (end, &target) in (chunk.start + 1..).zip(&chunk.targets) {
                output.scores.push(score(slots(end), target, chunk.target_tops));
            }
            for wanted in &chunk.draws {
                let end = chunk.start + chunk.tokens.len();
                let has_none = chunk.tokens.iter().any(|token| self.fault == Fault::NoneAfter(*token));
                output.drawn.push((!has_none).then(|| draw(slots(end), wanted)));
                output.tops.extend(wanted.top.map(|count| top(slots(end), count)));
            }
        }
        if self.fault == Fault::LosesTokenInPass(self.passes) {
            output.drawn.pop();
        }
        Ok(output)
    }

    fn copy_block(&mut self, from: u32, to: u32) -> anyhow::Result<()> {
        anyhow::ensure!(self.fault != Fault::Copy, "the device is gone");
        self.cache[to as usize] = self.cache[from as usize].clone();
        Ok(())
    }

    fn load(&mut self, _: &MergedWeights) -> anyhow::Result<()> {
        anyhow::ensure!(self.fault != Fault::Load, "tensor lm_head.weight is missing");
        self.weights += 1;
        Ok(())
    }

    fn change(&mut self, _: &Changes) -> anyhow::Result<()> {
        self.weights += 1;
        Ok(())
    }
}

/// The token after `sequence` under the weights that `weights` loads made.
pub fn next(sequence: &[u32], weights: u64, wanted: &Draw) -> Drawn {
    let mut slots: Vec<u64> = Vec::new();
    for &token in sequence {
        slots.push(slot(slots.last().copied().unwrap_or(0), token, weights));
    }
    draw(slots.into_iter(), wanted)
}

fn slots(sequence: &[u32]) -> Vec<u64> {
    let mut slots: Vec<u64> = Vec::new();
    for &token in sequence {
        slots.push(slot(slots.last().copied().unwrap_or(0), token, 0));
    }
    slots
}

/// Scores of the prompt's tokens, computed alone.
pub fn prompt_scores(prompt: &[u32], tops: usize) -> Vec<TokenScore> {
    let slots = slots(prompt);
    (1..prompt.len())
        .map(|end| score(slots[..end].iter().copied(), prompt[end], tops))
        .collect()
}

/// The likeliest tokens at every token of a response, computed alone.
pub fn response_tops(prompt: &[u32], response: &[u32], count: usize) -> Vec<Vec<TokenLogprob>> {
    let slots = slots(&[prompt, response].concat());
    (prompt.len()..prompt.len() + response.len())
        .map(|end| top(slots[..end].iter().copied(), count))
        .collect()
}

/// The response of one sample, computed alone and without a cache: tokens, log-probabilities and reason.
pub fn alone(request: &Request, sample: usize, max_positions: usize) -> (Vec<u32>, Vec<f32>, FinishReason) {
    let (mut sequence, mut logprobs, params) = (request.prompt.to_vec(), vec![], &request.params);
    loop {
        let wanted = Draw {
            params: params.clone(),
            seed: request.seeds[sample],
            index: logprobs.len(),
            ends: std::sync::Arc::default(),
            top: None,
        };
        let drawn = next(&sequence, 0, &wanted);
        sequence.push(drawn.token);
        logprobs.push(drawn.logprob);
        let response = &sequence[request.prompt.len()..];
        if params.stop_token_ids.contains(&drawn.token) && response.len() >= params.min_new_tokens {
            return (response.to_vec(), logprobs, FinishReason::Stop);
        }
        if response.len() >= params.max_new_tokens || sequence.len() >= max_positions {
            return (response.to_vec(), logprobs, FinishReason::Length);
        }
    }
}

/// Plain sampling of up to `max_new_tokens`.
pub fn params(max_new_tokens: usize) -> SamplingParams {
    SamplingParams {
        temperature: 1.0,
        top_p: 1.0,
        top_k: 0,
        min_p: 0.0,
        max_new_tokens,
        min_new_tokens: 0,
        stop_token_ids: vec![],
        stop: vec![],
        skip_special: true,
    }
}

/// A request with prompt tokens 0, 1, 2, ...
pub fn request(prompt: usize, seeds: std::ops::Range<u64>, max_new_tokens: usize) -> Request {
    let prompt: Vec<u32> = (0..prompt as u32).collect();
    Request {
        prompt: prompt.into(),
        seeds: seeds.collect(),
        params: params(max_new_tokens).into(),
        details: Details::default(),
    }
}
