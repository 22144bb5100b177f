//! What the scheduler counts.

use crate::engine::request::FinishReason;

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Times a sequence lost its blocks and was recomputed.
    pub preemptions: u64,
    /// Prompt tokens computed; a prompt shared by several samples counts once, recomputed tokens do not count.
    pub prompt_tokens: u64,
    /// Tokens drawn.
    pub generation_tokens: u64,
    /// Samples that a stop condition ended.
    pub finished_stop: u64,
    /// Samples that ended at their greatest length.
    pub finished_length: u64,
    /// Samples that were withdrawn.
    pub finished_abort: u64,
    /// Samples that no token could be drawn for.
    pub finished_error: u64,
}

impl Counters {
    pub(super) fn count(&mut self, reason: FinishReason) {
        match reason {
            FinishReason::Stop => self.finished_stop += 1,
            FinishReason::Length => self.finished_length += 1,
            FinishReason::Abort => self.finished_abort += 1,
        }
    }
}
