//! What runs in the next pass: a state machine over sequences and block numbers, without tensors, clocks or threads.
//!
//! Lanes wait first in, first out. Each pass takes the running lanes from the oldest to the youngest, then admits waiting ones,
//! as far as the token budget, the sequence limit and the cache reach. When blocks run out the youngest running lane loses its
//! own and waits again, at its old place; it is recomputed later and goes on with the same tokens. So the oldest lane always
//! advances, and every sequence ends after a bounded number of passes.

use std::collections::BTreeMap;

use super::blocks::Blocks;
use super::refusal::{Refusal, admit};
use super::request::{Completion, FinishReason, Request};
use super::runner::{Chunk, Drawn, ForwardBatch};
use super::sequence::{Lane, Sequence, SequenceId, StopRules};

/// Limits of one pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// New tokens in one pass; longer prompts are computed in chunks.
    pub max_batch_tokens: usize,
    /// Sequences in the running set.
    pub max_sequences: usize,
}

/// What one pass does: first the copies in order, then the forward.
#[derive(Debug, Default)]
pub struct Pass {
    /// Blocks to copy, (from, to), before the forward writes.
    pub copies: Vec<(u32, u32)>,
    /// The forward; empty when nothing waits or runs.
    pub batch: ForwardBatch,
}

/// A sample that is done.
#[derive(Debug)]
pub struct Finished {
    /// Which sample of which request.
    pub id: SequenceId,
    /// Its response.
    pub completion: Completion,
}

/// A lane in the pass that runs now.
#[derive(Debug)]
struct Scheduled {
    lane: SequenceId,
    tokens: usize,
    draws: usize,
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Times a lane lost its blocks.
    pub preemptions: u64,
    /// Prompt tokens computed, recomputation not counted.
    pub prompt_tokens: u64,
    /// Tokens drawn.
    pub generation_tokens: u64,
}

/// The waiting queue, the running set and the cache's blocks.
pub struct Scheduler {
    limits: Limits,
    rules: StopRules,
    blocks: Blocks,
    /// By age: admission takes the first.
    waiting: BTreeMap<SequenceId, Lane>,
    /// By age: preemption takes the last. Every lane here is older than every lane that waits.
    running: BTreeMap<SequenceId, Lane>,
    scheduled: Vec<Scheduled>,
    counters: Counters,
}

impl Scheduler {
    /// An idle scheduler over a free cache.
    pub fn new(limits: Limits, rules: StopRules, blocks: Blocks) -> Self {
        let limits = Limits {
            max_batch_tokens: limits.max_batch_tokens.max(1),
            max_sequences: limits.max_sequences.max(1),
        };
        let (waiting, running) = (BTreeMap::new(), BTreeMap::new());
        Self {
            limits,
            rules,
            blocks,
            waiting,
            running,
            scheduled: vec![],
            counters: Counters::default(),
        }
    }

    /// Puts a request at the end of the waiting queue. `number` must be larger than those before it.
    ///
    /// # Errors
    /// When the request can never run: it is malformed, or longer than the model's context or the cache.
    pub fn submit(&mut self, number: u64, request: &Request) -> Result<(), Refusal> {
        admit(request, &self.rules, &self.blocks)?;
        let sequence = |sample: usize, seed: u64| {
            let id = SequenceId {
                request: number,
                sample,
            };
            Sequence::new(id, request.prompt.clone(), request.params.clone(), seed)
        };
        let mut siblings = request
            .seeds
            .iter()
            .enumerate()
            .map(|(sample, &seed)| sequence(sample, seed))
            .peekable();
        // More siblings than may run at once share a prompt only within each handful.
        while let Some(first) = siblings.peek() {
            let id = first.id;
            let lane = Lane::new(siblings.by_ref().take(self.limits.max_sequences).collect());
            self.waiting.insert(id, lane);
        }
        Ok(())
    }

    /// Decides the next pass. [`Scheduler::complete`] must follow with what it drew.
    pub fn schedule(&mut self) -> Pass {
        let mut pass = Pass::default();
        self.scheduled.clear();
        let mut budget = self.limits.max_batch_tokens;
        self.advance_running(&mut pass, &mut budget);
        self.admit(&mut pass, &mut budget);
        pass
    }

    /// Oldest first, so that the youngest is the one that finds no room.
    fn advance_running(&mut self, pass: &mut Pass, budget: &mut usize) {
        let ids: Vec<SequenceId> = self.running.keys().copied().collect();
        for id in ids {
            if *budget == 0 {
                return;
            }
            let Some(mut lane) = self.running.remove(&id) else {
                continue;
            };
            let tokens = lane.pending().min(*budget);
            while !reserve(&mut self.blocks, &mut lane, tokens, &mut pass.copies) {
                match self.running.pop_last() {
                    Some((youngest, victim)) if youngest > id => self.preempt(youngest, victim),
                    older => {
                        // The lane is itself the youngest. Alone it always fits: submit() saw to that.
                        self.running.extend(older);
                        self.preempt(id, lane);
                        return;
                    }
                }
            }
            self.run(id, lane, tokens, pass, budget);
        }
    }

    /// First in, first out: while the head of the queue does not fit, nobody overtakes it.
    fn admit(&mut self, pass: &mut Pass, budget: &mut usize) {
        while *budget > 0 {
            let Some((_, lane)) = self.waiting.first_key_value() else {
                return;
            };
            let (siblings, length) = (lane.siblings.len(), lane.length());
            if self.running_sequences() + siblings > self.limits.max_sequences {
                return;
            }
            // Room for the shared tokens, and for each sibling to begin a block of its own: a lane admitted without the second
            // would be preempted in the next pass. One that has the cache to itself is let in all the same.
            let head_room = if self.running.is_empty() { 0 } else { siblings };
            if self.blocks.needed(length) + head_room > self.blocks.free() {
                return;
            }
            let Some((id, mut lane)) = self.waiting.pop_first() else {
                return;
            };
            reserve(&mut self.blocks, &mut lane, length, &mut pass.copies);
            let tokens = length.min(*budget);
            self.run(id, lane, tokens, pass, budget);
        }
    }

    /// Puts the lane's next `tokens` tokens into the pass.
    fn run(&mut self, id: SequenceId, lane: Lane, tokens: usize, pass: &mut Pass, budget: &mut usize) {
        let start = lane.computed;
        let is_complete = tokens == lane.pending();
        let draws: Vec<_> = if is_complete {
            lane.siblings.iter().map(Sequence::draw).collect()
        } else {
            vec![]
        };
        self.scheduled.push(Scheduled {
            lane: id,
            tokens,
            draws: draws.len(),
        });
        pass.batch.chunks.push(Chunk {
            tokens: lane
                .siblings
                .first()
                .map_or_else(Vec::new, |sequence| sequence.tokens(start, tokens)),
            start,
            blocks: lane.blocks[..self.blocks.needed(start + tokens)].to_vec(),
            draws,
        });
        *budget -= tokens;
        self.running.insert(id, lane);
    }

    fn preempt(&mut self, id: SequenceId, mut lane: Lane) {
        self.counters.preemptions += 1;
        self.blocks.release_all(std::mem::take(&mut lane.blocks));
        lane.computed = 0;
        self.waiting.insert(id, lane);
    }

    /// Takes what the scheduled pass drew, in the order of its draws; `version` of the policy drew it. Returns what is done.
    pub fn complete(&mut self, drawn: &[Drawn], version: u64) -> Vec<Finished> {
        let mut drawn = drawn.iter().copied();
        let mut finished = Vec::new();
        for scheduled in std::mem::take(&mut self.scheduled) {
            let drawn: Vec<Drawn> = drawn.by_ref().take(scheduled.draws).collect();
            let Some(mut lane) = self.running.remove(&scheduled.lane) else {
                continue;
            };
            lane.computed += scheduled.tokens;
            if scheduled.draws == 0 {
                self.running.insert(scheduled.lane, lane);
                continue;
            }
            if lane.siblings.first().is_some_and(|sequence| !sequence.has_begun()) {
                self.counters.prompt_tokens += lane.length() as u64;
            }
            self.counters.generation_tokens += drawn.len() as u64;
            self.fork(lane, drawn, version, &mut finished);
        }
        finished
    }

    /// Gives each sibling its token and a lane of its own over the same blocks; those that are done leave.
    fn fork(&mut self, lane: Lane, drawn: Vec<Drawn>, version: u64, finished: &mut Vec<Finished>) {
        for (mut sequence, drawn) in lane.siblings.into_iter().zip(drawn) {
            let id = sequence.id;
            if let Some(reason) = sequence.push(drawn, version, &self.rules) {
                finished.push(Finished {
                    id,
                    completion: sequence.finish(reason),
                });
                continue;
            }
            let blocks = self.blocks.share(&lane.blocks);
            self.running.insert(
                id,
                Lane {
                    siblings: vec![sequence],
                    blocks,
                    computed: lane.computed,
                },
            );
        }
        self.blocks.release_all(lane.blocks);
    }

    /// Withdraws every sample of a request that is not done; the tokens so far are returned.
    pub fn abort(&mut self, request: u64) -> Vec<Finished> {
        let of_request = SequenceId { request, sample: 0 }..=SequenceId {
            request,
            sample: usize::MAX,
        };
        let ids: Vec<SequenceId> = self
            .waiting
            .range(of_request.clone())
            .chain(self.running.range(of_request))
            .map(|(id, _)| *id)
            .collect();
        let lanes = ids
            .into_iter()
            .filter_map(|id| self.waiting.remove(&id).or_else(|| self.running.remove(&id)));
        let mut finished = Vec::new();
        for lane in lanes.collect::<Vec<_>>() {
            self.blocks.release_all(lane.blocks);
            finished.extend(lane.siblings.into_iter().map(|sequence| Finished {
                id: sequence.id,
                completion: sequence.finish(FinishReason::Abort),
            }));
        }
        finished
    }

    /// Sends every running lane back to wait, as when the cache's contents are stale: they are recomputed and go on.
    pub fn preempt_all(&mut self) {
        while let Some((id, lane)) = self.running.pop_last() {
            self.preempt(id, lane);
        }
    }

    /// Whether nothing runs and nothing waits.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Sequences in the running set.
    pub fn running_sequences(&self) -> usize {
        self.running.values().map(|lane| lane.siblings.len()).sum()
    }

    /// Sequences that wait.
    pub fn waiting_sequences(&self) -> usize {
        self.waiting.values().map(|lane| lane.siblings.len()).sum()
    }

    /// The cache's blocks.
    pub fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// Counters since the start.
    pub fn counters(&self) -> Counters {
        self.counters
    }
}

/// Gives the lane the blocks for its next `tokens` positions, every one its own to write. False when the cache has too few;
/// what was taken until then stays with the lane.
fn reserve(blocks: &mut Blocks, lane: &mut Lane, tokens: usize, copies: &mut Vec<(u32, u32)>) -> bool {
    let first_written = lane.computed / blocks.size();
    // Only the tail block can be both shared and written: full blocks are never written again.
    if let Some(&tail) = lane.blocks.get(first_written).filter(|&&tail| blocks.is_shared(tail)) {
        let Some(own) = blocks.allocate() else { return false };
        copies.push((tail, own));
        blocks.release(tail);
        lane.blocks[first_written] = own;
    }
    while lane.blocks.len() < blocks.needed(lane.computed + tokens) {
        let Some(block) = blocks.allocate() else { return false };
        lane.blocks.push(block);
    }
    true
}

#[cfg(test)]
mod tests;
