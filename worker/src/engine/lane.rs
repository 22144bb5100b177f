//! Sequences that run over the same cache blocks.

use super::blocks::Blocks;
use super::request::TokenScore;
use super::sequence::Sequence;

/// Sequences that share every token so far and so one block table: the siblings of a request until their prompt is computed,
/// a single sequence from then on.
#[derive(Debug)]
pub struct Lane {
    /// At least one; ids ascend.
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
    pub fn new(siblings: Vec<Sequence>) -> Self {
        Self {
            siblings,
            blocks: Vec::new(),
            computed: 0,
            scores: Vec::new(),
        }
    }

    /// Tokens to list beside each scored prompt token; None when none is scored.
    pub fn scores_prompt(&self) -> Option<usize> {
        self.siblings.first().and_then(Sequence::scores_prompt)
    }

    /// Tokens the siblings share.
    pub fn length(&self) -> usize {
        self.siblings.first().map_or(0, Sequence::length)
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
}
