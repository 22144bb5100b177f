//! What runs in the next pass: a state machine over sequences and block numbers, without tensors, clocks or threads.
//!
//! Lanes wait first in, first out; of one whose siblings are more than the free places a part goes first. Each pass takes the running lanes from the oldest to the youngest, then admits waiting ones,
//! as far as the token budget, the sequence limit and the cache reach. When blocks run out the youngest running lane loses its
//! own and waits again, at its old place; it is recomputed later and goes on with the same tokens. So the oldest lane always
//! advances, and every sequence ends after a bounded number of passes.

mod counters;
mod pass;

use std::collections::BTreeMap;
use std::iter::once;

pub use self::counters::Counters;
pub use self::pass::{Advance, Finished, Outcome, Pass};
use self::pass::{Budget, MAX_SCORES};
use super::blocks::Blocks;
use super::lane::Lane;
use super::refusal::{Refusal, admit};
use super::request::{FinishReason, Request, TokenLogprob};
use super::runner::{Chunk, Drawn, Output};
use super::sequence::{Sequence, SequenceId, StopRules};

/// Limits of one pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// New tokens in one pass; longer prompts are computed in chunks.
    pub max_batch_tokens: usize,
    /// Sequences in the running set.
    pub max_sequences: usize,
}

/// A lane in the pass that runs now.
#[derive(Debug)]
struct Scheduled {
    lane: SequenceId,
    tokens: usize,
    draws: usize,
    targets: usize,
}

/// The waiting queue, the running set and the cache's blocks.
pub struct Scheduler {
    limits: Limits,
    rules: StopRules,
    blocks: Blocks,
    /// By age: admission takes the first.
    waiting: BTreeMap<SequenceId, Lane>,
    /// By age: preemption takes the last. Every lane here is older than every lane that waits.
    running: Vec<Lane>,
    /// By age too.
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
        Self {
            limits,
            rules,
            blocks,
            waiting: BTreeMap::new(),
            running: vec![],
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
            Sequence::new(id, request, seed)
        };
        let mut siblings = request
            .seeds
            .iter()
            .enumerate()
            .map(|(sample, &seed)| sequence(sample, seed));
        if let Some(oldest) = siblings.next() {
            self.waiting.insert(oldest.id, Lane::new(oldest, siblings.collect()));
        }
        Ok(())
    }

    /// Decides the next pass. [`Scheduler::complete`] must follow with what it drew.
    pub fn schedule(&mut self) -> Pass {
        let mut pass = Pass::default();
        pass.batch.chunks.reserve(self.running.len());
        self.scheduled.clear();
        self.scheduled.reserve(self.running.len());
        let mut budget = Budget {
            tokens: self.limits.max_batch_tokens,
            scores: MAX_SCORES,
        };
        self.advance_running(&mut pass, &mut budget);
        self.admit(&mut pass, &mut budget);
        pass
    }

    /// Oldest first, so that the youngest is the one that finds no room.
    fn advance_running(&mut self, pass: &mut Pass, budget: &mut Budget) {
        let mut place = 0;
        while let Some(lane) = self.running.get_mut(place).filter(|_| budget.tokens > 0) {
            let tokens = budget.share(lane, lane.pending());
            if tokens == 0 {
                place += 1;
            } else if lane.reserve(&mut self.blocks, tokens, &mut pass.copies) {
                self.scheduled
                    .push(put(lane, tokens, &self.rules, &self.blocks, pass, budget));
                place += 1;
            } else if let Some(youngest) = self.running.pop() {
                // It may be the lane itself. Alone that always fits: submit() saw to it.
                self.preempt(youngest);
            }
        }
    }

    /// First in, first out: while the head of the queue does not fit, nobody overtakes it.
    fn admit(&mut self, pass: &mut Pass, budget: &mut Budget) {
        while budget.tokens > 0 {
            let Some((_, lane)) = self.waiting.first_key_value() else {
                return;
            };
            let length = lane.length();
            let tokens = budget.share(lane, length);
            if tokens == 0 {
                return;
            }
            let count = self.admissible(lane.count());
            if count == 0 {
                return;
            }
            // Room for the shared tokens, and for the blocks that the next pass writes: a lane admitted without them would be preempted
            // then. All siblings begin a block where the last one is full, else all but one copy it. One lane that has the cache to itself
            // is let in all the same.
            let is_full = length.is_multiple_of(self.blocks.size());
            let head_room = match self.running.is_empty() {
                true => 0,
                false => count - usize::from(!is_full),
            };
            if self.blocks.needed(length) + head_room > self.blocks.free() {
                return;
            }
            let Some((_, mut lane)) = self.waiting.pop_first() else {
                return;
            };
            // Its ids ascend: the rest is younger than what runs, and older than what waits.
            if let Some(rest) = lane.split_off(count) {
                self.waiting.insert(rest.id(), rest);
            }
            lane.reserve(&mut self.blocks, length, &mut pass.copies);
            pass.admitted.extend(lane.sequences().map(|sequence| sequence.id));
            self.scheduled
                .push(put(&lane, tokens, &self.rules, &self.blocks, pass, budget));
            self.running.push(lane);
        }
    }

    /// How many of the `count` siblings at the head of the queue may run now. Each part of a lane computes the prompt anew, so one is split
    /// only where a quarter of the places is free: a single one that comes free each time would have it computed for every sibling.
    fn admissible(&self, count: usize) -> usize {
        let most = self.limits.max_sequences;
        let free = most.saturating_sub(self.running_sequences());
        match count > free && free * 4 < most {
            true => 0,
            false => count.min(free),
        }
    }

    fn preempt(&mut self, mut lane: Lane) {
        self.counters.preemptions += 1;
        self.blocks.release_all(std::mem::take(&mut lane.blocks));
        lane.computed = 0;
        lane.scores.clear();
        self.waiting.insert(lane.id(), lane);
    }

    /// Takes what the scheduled pass gave; `version` of the policy drew it.
    pub fn complete(&mut self, output: Output, version: u64) -> Outcome {
        let mut outcome = Outcome::default();
        outcome.advances.reserve(output.drawn.len());
        let (mut drawn, mut tops, mut scores) = (
            output.drawn.into_iter(),
            output.tops.into_iter(),
            output.scores.into_iter(),
        );
        let mut scheduled = std::mem::take(&mut self.scheduled).into_iter().peekable();
        let lanes = std::mem::take(&mut self.running);
        self.running.reserve(lanes.len());
        for mut lane in lanes {
            let Some(part) = scheduled.next_if(|part| part.lane == lane.id()) else {
                self.running.push(lane);
                continue;
            };
            lane.computed += part.tokens;
            lane.scores.extend(scores.by_ref().take(part.targets));
            if part.draws == 0 {
                self.running.push(lane);
                continue;
            }
            if !lane.sequence.has_begun() {
                self.counters.prompt_tokens += lane.length() as u64;
            }
            lane.tell_scores();
            let siblings = lane.fork(&mut self.blocks);
            for (lane, drawn) in once(lane).chain(siblings).zip(drawn.by_ref()) {
                let top = if lane.sequence.wants_top() { tops.next() } else { None };
                match drawn {
                    Some(drawn) => self.advance(lane, drawn, top, version, &mut outcome),
                    None => self.fail(lane, &mut outcome),
                }
            }
        }
        outcome
    }

    /// Gives the lane's only sequence its token. One that is done leaves.
    fn advance(
        &mut self,
        mut lane: Lane,
        drawn: Drawn,
        top: Option<Vec<TokenLogprob>>,
        version: u64,
        outcome: &mut Outcome,
    ) {
        let id = lane.id();
        self.counters.generation_tokens += 1;
        let ended = lane.sequence.push(drawn, top.clone(), version, &self.rules);
        outcome.advances.push(Advance { id, drawn, top, ended });
        let Some(reason) = ended else {
            self.running.push(lane);
            return;
        };
        self.counters.count(reason);
        self.blocks.release_all(lane.blocks);
        outcome.finished.push(Finished {
            id,
            completion: lane.sequence.finish(reason),
        });
    }

    /// The lane's only sequence cannot go on. Others can: what they are drawn from is computed from their own tokens alone.
    fn fail(&mut self, lane: Lane, outcome: &mut Outcome) {
        self.counters.finished_error += 1;
        outcome.failed.push(lane.id());
        self.blocks.release_all(lane.blocks);
    }

    /// Withdraws every sample of a request that is not done; the tokens so far are returned.
    pub fn abort(&mut self, request: u64) -> Vec<Finished> {
        let of_request = SequenceId { request, sample: 0 }..=SequenceId {
            request,
            sample: usize::MAX,
        };
        let waiting = self.waiting.extract_if(of_request, |_, _| true).map(|(_, lane)| lane);
        let running = self.running.extract_if(.., |lane| lane.id().request == request);
        let mut finished = Vec::new();
        for lane in waiting.chain(running) {
            self.blocks.release_all(lane.blocks);
            for sequence in once(lane.sequence).chain(lane.siblings) {
                self.counters.count(FinishReason::Abort);
                finished.push(Finished {
                    id: sequence.id,
                    completion: sequence.finish(FinishReason::Abort),
                });
            }
        }
        finished
    }

    /// Sends every running lane back to wait, as when the cache's contents are stale: they are recomputed and go on.
    pub fn preempt_all(&mut self) {
        while let Some(lane) = self.running.pop() {
            self.preempt(lane);
        }
    }

    /// Whether nothing runs and nothing waits.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Sequences in the running set.
    pub fn running_sequences(&self) -> usize {
        self.running.iter().map(Lane::count).sum()
    }

    /// Sequences that wait.
    pub fn waiting_sequences(&self) -> usize {
        self.waiting.values().map(Lane::count).sum()
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

/// Puts the lane's next `tokens` tokens into the pass.
fn put(
    lane: &Lane,
    tokens: usize,
    rules: &StopRules,
    blocks: &Blocks,
    pass: &mut Pass,
    budget: &mut Budget,
) -> Scheduled {
    let start = lane.computed;
    let is_complete = tokens == lane.pending();
    let draws: Vec<_> = if is_complete {
        lane.sequences().map(|sequence| sequence.draw(rules)).collect()
    } else {
        vec![]
    };
    // Each prompt token is scored by the row before it; behind the last one there is nothing to score.
    let scored = lane.scores_prompt();
    let targets = scored.map_or_else(Vec::new, |_| lane.sequence.tokens(start + 1, tokens));
    let scheduled = Scheduled {
        lane: lane.id(),
        tokens,
        draws: draws.len(),
        targets: targets.len(),
    };
    budget.tokens -= tokens;
    budget.scores = budget.scores.saturating_sub(targets.len());
    pass.batch.chunks.push(Chunk {
        tokens: lane.sequence.tokens(start, tokens),
        start,
        blocks: lane.blocks[..blocks.needed(start + tokens)].to_vec(),
        draws,
        targets,
        target_tops: scored.unwrap_or(0),
    });
    scheduled
}

#[cfg(test)]
mod tests;
