//! Sequences that run over the same cache blocks.

use std::iter::once;
use std::sync::Arc;

use super::blocks::Blocks;
use super::request::TokenScore;
use super::sequence::{Sequence, SequenceId};

/// Sequences that share every token so far and so one block table: the siblings of a request until their prompt is computed,
/// a single sequence from then on.
#[derive(Debug)]
pub struct Lane {
    /// The oldest.
    pub sequence: Sequence,
    /// The others; ids ascend.
    pub siblings: Vec<Sequence>,
    /// Cache blocks in order of position.
    pub blocks: Vec<u32>,
    /// Positions whose keys and values are in the cache.
    pub computed: usize,
    /// Scores of the prompt's tokens so far, when they are wanted.
    pub scores: Vec<TokenScore>,
}

impl Lane {
    /// A lane with nothing in the cache.
    pub fn new(sequence: Sequence, siblings: Vec<Sequence>) -> Self {
        Self {
            sequence,
            siblings,
            blocks: Vec::new(),
            computed: 0,
            scores: Vec::new(),
        }
    }

    /// Names the lane: its oldest sequence.
    pub fn id(&self) -> SequenceId {
        self.sequence.id
    }

    /// Its sequences, the oldest first.
    pub fn sequences(&self) -> impl Iterator<Item = &Sequence> {
        once(&self.sequence).chain(&self.siblings)
    }

    /// How many they are.
    pub fn count(&self) -> usize {
        1 + self.siblings.len()
    }

    /// Tokens to list beside each scored prompt token; None when none is scored.
    pub fn scores_prompt(&self) -> Option<usize> {
        self.sequence.scores_prompt()
    }

    /// Tokens the siblings share.
    pub fn length(&self) -> usize {
        self.sequence.length()
    }

    /// Tokens not yet in the cache: 1 while decoding, more while a prompt is computed.
    pub fn pending(&self) -> usize {
        self.length() - self.computed
    }

    /// Takes the blocks for its next `tokens` positions, every one its own to write. False when the cache has too few;
    /// what was taken until then stays here.
    pub fn reserve(&mut self, blocks: &mut Blocks, tokens: usize, copies: &mut Vec<(u32, u32)>) -> bool {
        let first_written = self.computed / blocks.size();
        // Only the tail block can be both shared and written: full blocks are never written again.
        if let Some(&tail) = self.blocks.get(first_written).filter(|&&tail| blocks.is_shared(tail)) {
            let Some(own) = blocks.allocate() else { return false };
            copies.push((tail, own));
            blocks.release(tail);
            self.blocks[first_written] = own;
        }
        while self.blocks.len() < blocks.needed(self.computed + tokens) {
            let Some(block) = blocks.allocate() else { return false };
            self.blocks.push(block);
        }
        true
    }

    /// Hands the scores of the prompt's tokens to its sequences, if they want them.
    pub fn tell_scores(&mut self) {
        if self.scores_prompt().is_none() {
            return;
        }
        let scores: Arc<[TokenScore]> = std::mem::take(&mut self.scores).into();
        for sequence in once(&mut self.sequence).chain(&mut self.siblings) {
            sequence.set_prompt_logprobs(scores.clone());
        }
    }

    /// Keeps its `count` oldest sequences; the others are a lane of their own, if there are any. Only of one with nothing in the cache.
    pub fn split_off(&mut self, count: usize) -> Option<Self> {
        let kept = count.saturating_sub(1).min(self.siblings.len());
        let mut rest = self.siblings.split_off(kept).into_iter();
        let oldest = rest.next()?;
        Some(Self::new(oldest, rest.collect()))
    }

    /// Lets its siblings go: each gets a lane of its own over the same blocks.
    pub fn fork(&mut self, blocks: &mut Blocks) -> Vec<Self> {
        let siblings = std::mem::take(&mut self.siblings).into_iter();
        let lanes = siblings.map(|sequence| Self {
            blocks: blocks.share(&self.blocks),
            computed: self.computed,
            ..Self::new(sequence, Vec::new())
        });
        lanes.collect()
    }
}
