//! The interface between the engine's loop and the code that computes. It is all that the scheduler knows of tensors.

use std::sync::Arc;

use super::changes::Changes;
use super::request::{SamplingParams, TokenLogprob, TokenScore};
use crate::model::MergedWeights;
use crate::native::packed::PackedWeights;

/// One forward over new tokens of several sequences: prompts, chunks of prompts and single decode tokens mixed.
#[derive(Debug, Default)]
pub struct ForwardBatch {
    /// Each of another sequence, or of siblings that share every token so far.
    pub chunks: Vec<Chunk>,
}

/// New tokens of one sequence.
#[derive(Debug)]
pub struct Chunk {
    /// Ids to compute; at least one.
    pub tokens: Vec<u32>,
    /// Position of the first of `tokens` in its sequence; everything before it is in the cache.
    pub start: usize,
    /// Blocks of the sequence in order, covering `start + tokens.len()` positions.
    pub blocks: Vec<u32>,
    /// What to draw after the last token: empty while a prompt is incomplete, one entry per sibling after a shared prompt.
    pub draws: Vec<Draw>,
    /// Given tokens to score: the first after `tokens[0]`, the second after `tokens[1]`, and so on. Mostly empty.
    pub targets: Vec<u32>,
    /// Likeliest tokens listed beside each target.
    pub target_tops: usize,
}

/// One token to draw.
#[derive(Debug)]
pub struct Draw {
    /// How to draw it.
    pub params: Arc<SamplingParams>,
    /// Names the sample's random stream.
    pub seed: u64,
    /// The model's own end tokens.
    pub ends: Arc<[u32]>,
    /// Index of the drawn token in its response: the counter of the sample's random stream.
    pub index: usize,
    /// Likeliest tokens to list beside the drawn one; None lists none.
    pub top: Option<usize>,
}

impl Draw {
    /// Tokens that may not be drawn yet. Some may be named twice.
    pub fn suppressed(&self) -> impl Iterator<Item = u32> + '_ {
        let is_early = self.index < self.params.min_new_tokens;
        let ids = self.params.stop_token_ids.iter().chain(&*self.ends);
        ids.copied().filter(move |_| is_early)
    }
}

/// A drawn token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drawn {
    /// Its id.
    pub token: u32,
    /// Under the tempered, truncated distribution it was drawn from.
    pub logprob: f32,
}

/// What one forward gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Output {
    /// Drawn tokens, in order of chunks, then of draws. None: the logits are no distribution, or every token is suppressed.
    pub drawn: Vec<Option<Drawn>>,
    /// The likeliest tokens of each draw that asked for them, in the same order; none where no token was drawn.
    pub tops: Vec<Vec<TokenLogprob>>,
    /// Scores of the targets, in order of chunks, then of targets.
    pub scores: Vec<TokenScore>,
}

/// Owns the weights and the cache. Lives on the engine's thread.
pub trait Runner {
    /// Blocks of the key/value cache.
    fn num_blocks(&self) -> usize;

    /// Tokens one block holds.
    fn block_size(&self) -> usize;

    /// Longest sequence the model can hold.
    fn max_positions(&self) -> usize;

    /// Computes the batch, writes keys and values of its tokens, draws, and scores targets.
    ///
    /// # Errors
    /// When libtorch or the native code fails; the cache is then undefined.
    fn forward(&mut self, batch: &ForwardBatch) -> anyhow::Result<Output>;

    /// Copies a block's keys and values in every layer (a sibling that diverges inside a block).
    ///
    /// # Errors
    /// When the cache has no such block, or the device fails; the cache is then undefined.
    fn copy_block(&mut self, from: u32, to: u32) -> anyhow::Result<()>;

    /// Takes new weights, in Hugging Face names. The cache's contents are stale afterwards.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape.
    fn load(&mut self, weights: &MergedWeights) -> anyhow::Result<()>;

    /// Memory for other weights beside the present ones, to be packed while it computes with these; None where tensors are all that it
    /// takes.
    ///
    /// # Errors
    /// When memory runs out.
    fn stage(&mut self) -> anyhow::Result<Option<PackedWeights>> {
        Ok(None)
    }

    /// Takes the packed weights in place of the present ones. The cache's contents are stale afterwards.
    ///
    /// # Errors
    /// When they are another model's, or this runner [stages](Self::stage) none.
    fn swap(&mut self, _: PackedWeights) -> anyhow::Result<()> {
        anyhow::bail!("this runner takes tensors and no packed weights")
    }

    /// Writes numbers that changed over those that it has. The cache's contents are stale afterwards.
    ///
    /// # Errors
    /// When it has no weights, or not such tensors.
    fn change(&mut self, changes: &Changes) -> anyhow::Result<()>;

    /// Lets the system have what memory it can: weights and cache are needed no more until the next [`load`](Self::load).
    fn sleep(&mut self) {}
}

impl<R: Runner + ?Sized> Runner for Box<R> {
    fn num_blocks(&self) -> usize {
        (**self).num_blocks()
    }

    fn block_size(&self) -> usize {
        (**self).block_size()
    }

    fn max_positions(&self) -> usize {
        (**self).max_positions()
    }

    fn forward(&mut self, batch: &ForwardBatch) -> anyhow::Result<Output> {
        (**self).forward(batch)
    }

    fn copy_block(&mut self, from: u32, to: u32) -> anyhow::Result<()> {
        (**self).copy_block(from, to)
    }

    fn load(&mut self, weights: &MergedWeights) -> anyhow::Result<()> {
        (**self).load(weights)
    }

    fn stage(&mut self) -> anyhow::Result<Option<PackedWeights>> {
        (**self).stage()
    }

    fn swap(&mut self, weights: PackedWeights) -> anyhow::Result<()> {
        (**self).swap(weights)
    }

    fn change(&mut self, changes: &Changes) -> anyhow::Result<()> {
        (**self).change(changes)
    }

    fn sleep(&mut self) {
        (**self).sleep();
    }
}
