//! One pass of the model: what it is given, how much fits into it, what it led to.

use crate::engine::lane::Lane;
use crate::engine::request::{Completion, FinishReason, TokenLogprob};
use crate::engine::runner::{Drawn, ForwardBatch};
use crate::engine::sequence::SequenceId;

/// What is left of a pass.
pub(super) struct Budget {
    pub(super) tokens: usize,
    /// Prompt tokens that may still be scored.
    pub(super) scores: usize,
}

/// Prompt tokens scored in one pass: each needs a row of logits over the whole vocabulary.
pub(super) const MAX_SCORES: usize = 128;

impl Budget {
    /// Of the lane's `pending` tokens those that fit.
    pub(super) fn share(&self, lane: &Lane, pending: usize) -> usize {
        let most = match lane.scores_prompt() {
            Some(_) => self.tokens.min(self.scores),
            None => self.tokens,
        };
        pending.min(most)
    }
}

/// What one pass does: first the copies in order, then the forward.
#[derive(Debug, Default)]
pub struct Pass {
    /// Blocks to copy, (from, to), before the forward writes.
    pub copies: Vec<(u32, u32)>,
    /// The forward; empty when nothing waits or runs.
    pub batch: ForwardBatch,
    /// Samples that come to run, for the first time or again.
    pub admitted: Vec<SequenceId>,
}

/// A sample that is done.
#[derive(Debug)]
pub struct Finished {
    /// Which sample of which request.
    pub id: SequenceId,
    /// Its response.
    pub completion: Completion,
}

/// A token that a pass drew.
#[derive(Debug)]
pub struct Advance {
    /// The sequence it belongs to.
    pub id: SequenceId,
    /// The token.
    pub drawn: Drawn,
    /// The likeliest tokens there, when the request asked for them.
    pub top: Option<Vec<TokenLogprob>>,
    /// Why the sequence is done with it. None: another token follows.
    pub ended: Option<FinishReason>,
}

/// What a pass led to.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Every token drawn.
    pub advances: Vec<Advance>,
    /// Samples that are done.
    pub finished: Vec<Finished>,
    /// Samples that no token could be drawn for. They are gone.
    pub failed: Vec<SequenceId>,
}
