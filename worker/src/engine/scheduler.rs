//! What runs in the next pass: a state machine over sequences and block numbers, without tensors, clocks or threads.
//!
//! Lanes wait first in, first out. Each pass takes the running lanes from the oldest to the youngest, then admits waiting ones,
//! as far as the token budget, the sequence limit and the cache reach. When blocks run out the youngest running lane loses its
//! own and waits again, at its old place; it is recomputed later and goes on with the same tokens. So the oldest lane always
//! advances, and every sequence ends after a bounded number of passes.

mod counters;
mod pass;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use self::counters::Counters;
pub use self::pass::{Advance, Finished, Outcome, Pass};
use self::pass::{Budget, MAX_SCORES};
use super::blocks::Blocks;
use super::lane::Lane;
use super::refusal::{Refusal, admit};
use super::request::{FinishReason, Request, TokenScore};
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
            Sequence::new(id, request, seed)
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
        let ids: Vec<SequenceId> = self.running.keys().copied().collect();
        for id in ids {
            if budget.tokens == 0 {
                return;
            }
            let Some(mut lane) = self.running.remove(&id) else {
                continue;
            };
            let tokens = budget.share(&lane, lane.pending());
            if tokens == 0 {
                self.running.insert(id, lane);
                continue;
            }
            while !lane.reserve(&mut self.blocks, tokens, &mut pass.copies) {
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
    fn admit(&mut self, pass: &mut Pass, budget: &mut Budget) {
        while budget.tokens > 0 {
            let Some((_, lane)) = self.waiting.first_key_value() else {
                return;
            };
            let (siblings, length) = (lane.siblings.len(), lane.length());
            let tokens = budget.share(lane, length);
            if tokens == 0 {
                return;
            }
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
            lane.reserve(&mut self.blocks, length, &mut pass.copies);
            self.run(id, lane, tokens, pass, budget);
        }
    }

    /// Puts the lane's next `tokens` tokens into the pass.
    fn run(&mut self, id: SequenceId, lane: Lane, tokens: usize, pass: &mut Pass, budget: &mut Budget) {
        let start = lane.computed;
        let is_complete = tokens == lane.pending();
        let draws: Vec<_> = if is_complete {
            lane.siblings.iter().map(Sequence::draw).collect()
        } else {
            vec![]
        };
        let tokens_from = |from: usize| {
            lane.siblings
                .first()
                .map_or_else(Vec::new, |sequence| sequence.tokens(from, tokens))
        };
        // Each prompt token is scored by the row before it; behind the last one there is nothing to score.
        let scored = lane.scores_prompt();
        let targets = scored.map_or_else(Vec::new, |_| tokens_from(start + 1));
        self.scheduled.push(Scheduled {
            lane: id,
            tokens,
            draws: draws.len(),
            targets: targets.len(),
        });
        budget.scores = budget.scores.saturating_sub(targets.len());
        pass.batch.chunks.push(Chunk {
            tokens: tokens_from(start),
            start,
            blocks: lane.blocks[..self.blocks.needed(start + tokens)].to_vec(),
            draws,
            targets,
            target_tops: scored.unwrap_or(0),
        });
        budget.tokens -= tokens;
        self.running.insert(id, lane);
    }

    fn preempt(&mut self, id: SequenceId, mut lane: Lane) {
        self.counters.preemptions += 1;
        self.blocks.release_all(std::mem::take(&mut lane.blocks));
        lane.computed = 0;
        lane.scores.clear();
        self.waiting.insert(id, lane);
    }

    /// Takes what the scheduled pass gave; `version` of the policy drew it.
    pub fn complete(&mut self, output: Output, version: u64) -> Outcome {
        let (mut drawn, mut tops, mut scores) = (
            output.drawn.into_iter(),
            output.tops.into_iter(),
            output.scores.into_iter(),
        );
        let mut outcome = Outcome::default();
        for scheduled in std::mem::take(&mut self.scheduled) {
            let drawn: Vec<Drawn> = drawn.by_ref().take(scheduled.draws).collect();
            let scores: Vec<TokenScore> = scores.by_ref().take(scheduled.targets).collect();
            let Some(mut lane) = self.running.remove(&scheduled.lane) else {
                continue;
            };
            lane.computed += scheduled.tokens;
            lane.scores.extend(scores);
            if scheduled.draws == 0 {
                self.running.insert(scheduled.lane, lane);
                continue;
            }
            if lane.siblings.first().is_some_and(|sequence| !sequence.has_begun()) {
                self.counters.prompt_tokens += lane.length() as u64;
            }
            self.counters.generation_tokens += drawn.len() as u64;
            if lane.scores_prompt().is_some() {
                let scores: Arc<[TokenScore]> = std::mem::take(&mut lane.scores).into();
                for sequence in &mut lane.siblings {
                    sequence.set_prompt_logprobs(scores.clone());
                }
            }
            let advances = lane.siblings.iter().zip(drawn).map(|(sequence, drawn)| Advance {
                id: sequence.id,
                drawn,
                top: if sequence.wants_top() { tops.next() } else { None },
            });
            let advances: Vec<Advance> = advances.collect();
            self.fork(lane, &advances, version, &mut outcome.finished);
            outcome.advances.extend(advances);
        }
        outcome
    }

    /// Gives each sibling its token and a lane of its own over the same blocks; those that are done leave.
    fn fork(&mut self, lane: Lane, advances: &[Advance], version: u64, finished: &mut Vec<Finished>) {
        for (mut sequence, advance) in lane.siblings.into_iter().zip(advances) {
            let id = sequence.id;
            if let Some(reason) = sequence.push(advance.drawn, advance.top.clone(), version, &self.rules) {
                self.counters.count(reason);
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
                    computed: lane.computed,
                    blocks,
                    ..Lane::new(vec![sequence])
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
            lane.siblings
                .iter()
                .for_each(|_| self.counters.count(FinishReason::Abort));
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

#[cfg(test)]
mod tests;
