use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;
use crate::engine::hash_runner::{self, HashRunner, alone, request};
use crate::engine::request::{Completion, Details, SamplingParams, TokenLogprob};
use crate::engine::runner::Runner;

const MAX_POSITIONS: usize = 40;

/// A token with the likeliest ones beside it.
type Told = (Drawn, Option<Vec<TokenLogprob>>);

/// A scheduler beside the runner it drives.
struct World {
    scheduler: Scheduler,
    runner: HashRunner,
    done: HashMap<SequenceId, Completion>,
    /// Every token as it was drawn.
    told: HashMap<SequenceId, Vec<Told>>,
    /// Samples that came to run.
    admitted: HashSet<SequenceId>,
    passes: usize,
}

impl World {
    fn new(blocks: usize, block_size: usize, limits: Limits) -> Self {
        let rules = StopRules {
            max_positions: MAX_POSITIONS,
            ends: [7].into(),
            detokenize: None,
        };
        Self {
            scheduler: Scheduler::new(limits, rules, Blocks::new(blocks, block_size)),
            runner: HashRunner::new(blocks, block_size, MAX_POSITIONS),
            done: HashMap::new(),
            told: HashMap::new(),
            admitted: HashSet::new(),
            passes: 0,
        }
    }

    /// One pass, with every invariant checked. Returns the chunks' token counts.
    fn pass(&mut self) -> Vec<usize> {
        let was_idle = self.scheduler.is_idle();
        let pass = self.scheduler.schedule();
        self.check(&pass);
        assert_eq!(
            pass.batch.chunks.is_empty(),
            was_idle,
            "a pass does something as long as there is something to do"
        );
        self.admitted.extend(&pass.admitted);
        for (from, to) in pass.copies {
            self.runner.copy_block(from, to).unwrap();
        }
        let scored: usize = pass.batch.chunks.iter().map(|chunk| chunk.targets.len()).sum();
        assert!(scored <= MAX_SCORES);
        let output = self.runner.forward(&pass.batch).unwrap();
        let outcome = self.scheduler.complete(output, 0);
        for Advance { id, drawn, top, .. } in outcome.advances {
            assert!(self.admitted.contains(&id), "{id:?} is drawn and never came to run");
            self.told.entry(id).or_default().push((drawn, top));
        }
        self.done
            .extend(outcome.finished.into_iter().map(|done| (done.id, done.completion)));
        self.check_blocks();
        self.passes += 1;
        pass.batch.chunks.iter().map(|chunk| chunk.tokens.len()).collect()
    }

    fn run(&mut self) {
        while !self.scheduler.is_idle() {
            self.pass();
        }
    }

    fn check(&self, pass: &Pass) {
        self.check_blocks();
        let scheduler = &self.scheduler;
        let tokens: usize = pass.batch.chunks.iter().map(|chunk| chunk.tokens.len()).sum();
        assert!(tokens <= scheduler.limits.max_batch_tokens);
        assert!(scheduler.running_sequences() <= scheduler.limits.max_sequences);
        assert!(
            scheduler.running.is_sorted_by_key(Lane::id),
            "an older lane is behind a younger one"
        );
        if let (Some(youngest), Some((head, _))) = (scheduler.running.last(), scheduler.waiting.first_key_value()) {
            assert!(youngest.id() < *head, "a waiting sequence was overtaken");
        }
        for chunk in &pass.batch.chunks {
            for &written in &chunk.blocks[chunk.start / scheduler.blocks.size()..] {
                assert!(
                    !scheduler.blocks.is_shared(written),
                    "block {written} is written while another reads it"
                );
            }
        }
    }

    /// Every hold is a running lane's, and every block is free or held.
    fn check_blocks(&self) {
        let scheduler = &self.scheduler;
        let mut holders = vec![0; scheduler.blocks.total()];
        scheduler
            .running
            .iter()
            .flat_map(|lane| &lane.blocks)
            .for_each(|&block| holders[block as usize] += 1);
        assert_eq!(scheduler.blocks.holders(), holders);
        assert_eq!(
            scheduler.blocks.free(),
            holders.iter().filter(|&&holders| holders == 0).count()
        );
        assert!(
            scheduler
                .waiting
                .values()
                .all(|lane| lane.blocks.is_empty() && lane.computed == 0)
        );
    }

    fn assert_done(&self, number: u64, request: &Request) {
        for sample in 0..request.seeds.len() {
            let completion = &self.done[&SequenceId {
                request: number,
                sample,
            }];
            let (tokens, logprobs, reason) = alone(request, sample, MAX_POSITIONS);
            assert_eq!(
                (&completion.tokens, &completion.logprobs, completion.finish_reason),
                (&tokens, &logprobs, reason)
            );
            assert_eq!(completion.versions.len(), tokens.len());
            let Details {
                top_logprobs,
                prompt_logprobs,
            } = request.details;
            let tops = top_logprobs.map(|count| hash_runner::response_tops(&request.prompt, &tokens, count));
            assert_eq!(completion.top_logprobs, tops.unwrap_or_default());
            let scores = prompt_logprobs.map(|count| hash_runner::prompt_scores(&request.prompt, count));
            assert_eq!(completion.prompt_logprobs.as_deref(), scores.as_deref());
            let told = &self.told[&SequenceId {
                request: number,
                sample,
            }];
            assert_eq!(told.iter().map(|(drawn, _)| drawn.token).collect::<Vec<_>>(), tokens);
            let told_tops: Vec<_> = told.iter().filter_map(|(_, top)| top.clone()).collect();
            assert_eq!(told_tops, completion.top_logprobs);
        }
    }
}

fn requests() -> impl Strategy<Value = Vec<Request>> {
    let token = 0u32..hash_runner::VOCABULARY as u32;
    let one = (
        prop::collection::vec(token.clone(), 1..24),
        prop::collection::vec(any::<u64>(), 1..10),
        (1usize..24, 0usize..6, prop::collection::vec(token, 0..4)),
        (prop::option::of(0usize..3), prop::option::of(0usize..3)),
    );
    let one = one.prop_map(
        |(prompt, seeds, (max_new_tokens, min_new_tokens, stop_token_ids), (top_logprobs, prompt_logprobs))| Request {
            prompt: prompt.into(),
            seeds,
            params: SamplingParams {
                min_new_tokens,
                stop_token_ids,
                ..hash_runner::params(max_new_tokens)
            }
            .into(),
            details: Details {
                top_logprobs,
                prompt_logprobs,
            },
        },
    );
    prop::collection::vec(one, 1..8)
}

fn limits() -> impl Strategy<Value = Limits> {
    (1usize..48, 1usize..12).prop_map(|(max_batch_tokens, max_sequences)| Limits {
        max_batch_tokens,
        max_sequences,
    })
}

/// Blocks that hold the longest of `requests` alone, and `spare` more.
fn enough_blocks(requests: &[Request], block_size: usize, spare: usize) -> usize {
    let longest = requests
        .iter()
        .map(|request| (request.prompt.len() + request.params.max_new_tokens).min(MAX_POSITIONS));
    (longest.max().unwrap_or(1) - 1).div_ceil(block_size).max(1) + spare
}

#[test]
fn as_many_run_at_once_as_the_cache_has_blocks_for() {
    let limits = Limits {
        max_batch_tokens: 100,
        max_sequences: 8,
    };
    let mut world = World::new(5, 16, limits);
    for number in 0..5 {
        world.scheduler.submit(number, &request(8, 0..1, 6)).unwrap();
    }
    assert_eq!(world.pass(), [8; 5]);
    // Of three siblings that share a block two copy it.
    let mut world = World::new(4, 16, limits);
    world.scheduler.submit(0, &request(8, 0..1, 6)).unwrap();
    world.scheduler.submit(1, &request(8, 0..3, 6)).unwrap();
    assert_eq!((world.pass(), world.pass()), (vec![8; 2], vec![1; 4]));
    world.run();
    assert_eq!(world.scheduler.counters().preemptions, 0);
}

proptest! {
    #[test]
    fn a_sample_is_the_same_alone_and_in_any_batch(
        requests in requests(), limits in limits(), block_size in 1usize..7, spare in 0usize..24, arrivals in prop::collection::vec(0usize..20, 8),
    ) {
        let mut world = World::new(enough_blocks(&requests, block_size, spare), block_size, limits);
        for (number, request) in requests.iter().enumerate() {
            for _ in 0..arrivals[number] {
                world.pass();
            }
            world.scheduler.submit(number as u64, request).unwrap();
        }
        world.run();
        for (number, request) in requests.iter().enumerate() {
            world.assert_done(number as u64, request);
        }
        prop_assert_eq!(world.scheduler.blocks.used(), 0);
        prop_assert_eq!(world.scheduler.counters.prompt_tokens > 0, true);
    }

    #[test]
    fn no_sequence_starves(requests in requests(), limits in limits(), block_size in 1usize..7, spare in 0usize..6) {
        let mut world = World::new(enough_blocks(&requests, block_size, spare), block_size, limits);
        for (number, request) in requests.iter().enumerate() {
            world.scheduler.submit(number as u64, request).unwrap();
        }
        world.run();
        // At worst one after the other, each recomputed once when its turn as the oldest comes: chunks, then a token a pass.
        let worst: usize = requests.iter().map(|request| {
            let tokens = request.prompt.len() + request.params.max_new_tokens;
            request.seeds.len() * (tokens.div_ceil(limits.max_batch_tokens) + request.params.max_new_tokens)
        }).sum();
        prop_assert!(world.passes <= worst, "{} passes, {} at worst", world.passes, worst);
    }

    #[test]
    fn blocks_are_conserved_while_requests_come_and_go(
        requests in requests(), limits in limits(), block_size in 1usize..7, spare in 0usize..12,
        events in prop::collection::vec((0usize..8, 0u64..8), 0..24),
    ) {
        let mut world = World::new(enough_blocks(&requests, block_size, spare), block_size, limits);
        for (number, request) in requests.iter().enumerate() {
            world.scheduler.submit(number as u64, request).unwrap();
        }
        for (passes, victim) in events {
            for _ in 0..passes {
                world.pass();
            }
            let withdrawn = world.scheduler.abort(victim);
            world.check_blocks();
            world.done.extend(withdrawn.into_iter().map(|done| (done.id, done.completion)));
        }
        world.run();
        prop_assert_eq!(world.scheduler.blocks.used(), 0);
        for (number, request) in requests.iter().enumerate() {
            for sample in 0..request.seeds.len() {
                let completion = &world.done[&SequenceId { request: number as u64, sample }];
                let (tokens, _, reason) = alone(request, sample, MAX_POSITIONS);
                if completion.finish_reason == FinishReason::Abort {
                    prop_assert!(tokens.starts_with(&completion.tokens) && completion.tokens.len() < tokens.len());
                } else {
                    prop_assert_eq!((&completion.tokens, completion.finish_reason), (&tokens, reason));
                }
            }
        }
    }

    #[test]
    fn losing_the_whole_cache_changes_no_sample(
        requests in requests(), limits in limits(), block_size in 1usize..7, losses in prop::collection::vec(1usize..8, 1..5),
    ) {
        let mut world = World::new(enough_blocks(&requests, block_size, 12), block_size, limits);
        for (number, request) in requests.iter().enumerate() {
            world.scheduler.submit(number as u64, request).unwrap();
        }
        for passes in losses {
            for _ in 0..passes {
                world.pass();
            }
            world.scheduler.preempt_all();
            prop_assert_eq!(world.scheduler.blocks.used(), 0);
        }
        world.run();
        for (number, request) in requests.iter().enumerate() {
            world.assert_done(number as u64, request);
        }
    }
}

const WIDE: Limits = Limits {
    max_batch_tokens: 1000,
    max_sequences: 1000,
};

#[test]
fn siblings_share_the_blocks_of_their_prompt() {
    // 10 tokens in blocks of 4: two full blocks, one half full.
    let mut world = World::new(64, 4, WIDE);
    let request = request(10, 0..8, 3);
    world.scheduler.submit(0, &request).unwrap();
    assert_eq!(world.pass(), [10], "the prompt is computed once");
    assert_eq!(world.scheduler.blocks.used(), 3);
    assert_eq!(world.scheduler.running_sequences(), 8);
    // Each sibling writes into the third block: seven copy it, the last keeps it.
    assert_eq!(world.pass(), [1; 8]);
    assert_eq!(world.scheduler.blocks.used(), 2 + 8);
    world.run();
    world.assert_done(0, &request);
    assert_eq!(world.scheduler.counters.prompt_tokens, 10);
    assert_eq!(world.scheduler.counters.generation_tokens, 24);
}

#[test]
fn a_prompt_that_fills_its_blocks_is_never_copied() {
    let mut world = World::new(64, 4, WIDE);
    world.scheduler.submit(0, &request(8, 0..8, 3)).unwrap();
    world.pass();
    assert!(world.scheduler.schedule().copies.is_empty());
    assert_eq!(world.scheduler.blocks.used(), 2 + 8);
}

#[test]
fn a_preempted_sequence_goes_on_where_it_was() {
    // Two sequences of up to 24 tokens in a cache of 32: the younger must give way, and comes back.
    let mut world = World::new(8, 4, WIDE);
    let both = [request(8, 0..1, 16), request(8, 1..2, 16)];
    world.scheduler.submit(0, &both[0]).unwrap();
    world.scheduler.submit(1, &both[1]).unwrap();
    world.run();
    assert!(world.scheduler.counters.preemptions > 0, "the test is about preemption");
    assert!(world.passes < 16 + 16, "they ran side by side as long as they could");
    assert_eq!(
        world.scheduler.counters.prompt_tokens, 16,
        "recomputing is not counted as prompt"
    );
    world.assert_done(0, &both[0]);
    world.assert_done(1, &both[1]);
}

#[test]
fn a_prompt_longer_than_the_budget_is_computed_in_chunks_beside_decoding() {
    let mut world = World::new(
        64,
        4,
        Limits {
            max_batch_tokens: 8,
            max_sequences: 8,
        },
    );
    let both = [request(2, 0..1, 10), request(20, 1..4, 2)];
    world.scheduler.submit(0, &both[0]).unwrap();
    world.scheduler.submit(1, &both[1]).unwrap();
    assert_eq!(world.pass(), [2, 6]);
    assert_eq!(world.pass(), [1, 7]);
    assert_eq!(world.pass(), [1, 7]);
    assert_eq!(world.pass(), [1, 1, 1, 1]);
    world.run();
    world.assert_done(0, &both[0]);
    world.assert_done(1, &both[1]);
}

#[test]
fn finished_sequences_make_room_at_once() {
    let mut world = World::new(
        64,
        4,
        Limits {
            max_batch_tokens: 100,
            max_sequences: 1,
        },
    );
    world.scheduler.submit(0, &request(4, 0..1, 1)).unwrap();
    world.scheduler.submit(1, &request(4, 1..2, 1)).unwrap();
    world.pass();
    assert_eq!(
        (world.scheduler.running_sequences(), world.scheduler.waiting_sequences()),
        (0, 1)
    );
    world.pass();
    assert!(world.scheduler.is_idle());
}

#[test]
fn more_siblings_than_may_run_at_once_take_turns() {
    let mut world = World::new(
        64,
        4,
        Limits {
            max_batch_tokens: 100,
            max_sequences: 3,
        },
    );
    let request = request(5, 0..8, 4);
    world.scheduler.submit(0, &request).unwrap();
    world.run();
    world.assert_done(0, &request);
    assert_eq!(
        world.scheduler.counters.prompt_tokens,
        3 * 5,
        "three handfuls, one prompt each"
    );
}

#[test]
fn a_sequence_without_a_distribution_ends_alone_and_frees_its_blocks() {
    let mut world = World::new(64, 4, WIDE);
    let well = Request {
        details: Details {
            top_logprobs: Some(2),
            ..Details::default()
        },
        ..request(6, 0..3, 5)
    };
    let failing = SequenceId { request: 0, sample: 1 };
    world.scheduler.submit(0, &well).unwrap();
    let pass = world.scheduler.schedule();
    world.admitted.extend(&pass.admitted);
    let mut output = world.runner.forward(&pass.batch).unwrap();
    (output.drawn[1], output.tops[1]) = (None, Vec::new());
    let outcome = world.scheduler.complete(output, 0);
    assert_eq!(outcome.failed, [failing]);
    assert_eq!(outcome.advances.len(), 2);
    for Advance { id, drawn, top, .. } in outcome.advances {
        world.told.entry(id).or_default().push((drawn, top));
    }
    world.check_blocks();
    world.run();
    assert_eq!(world.scheduler.counters.finished_error, 1);
    assert_eq!(world.scheduler.blocks.used(), 0);
    assert!(!world.done.contains_key(&failing));
    for sample in [0, 2] {
        let done = &world.done[&SequenceId { request: 0, sample }];
        let (tokens, ..) = alone(&well, sample, MAX_POSITIONS);
        let tops = hash_runner::response_tops(&well.prompt, &tokens, 2);
        assert_eq!((&done.tokens, &done.top_logprobs), (&tokens, &tops));
    }
}

/// A world with so many places of which `taken` are taken by sequences of 30 tokens, and a pass later.
fn world_with_taken(max_sequences: usize, taken: u64) -> World {
    let limits = Limits {
        max_batch_tokens: 100,
        max_sequences,
    };
    let mut world = World::new(200, 4, limits);
    for number in 0..taken {
        world.scheduler.submit(number, &request(3, 0..1, 30)).unwrap();
    }
    world.pass();
    world
}

#[test]
fn as_many_siblings_as_there_are_places_run_beside_one_that_runs_already_and_nobody_waits_for_it() {
    let mut world = world_with_taken(4, 1);
    let (many, after) = (request(5, 0..4, 6), request(4, 9..10, 2));
    world.scheduler.submit(1, &many).unwrap();
    world.scheduler.submit(2, &after).unwrap();
    world.pass();
    assert_eq!(
        (world.scheduler.running_sequences(), world.scheduler.waiting_sequences()),
        (4, 2)
    );
    let long = SequenceId { request: 0, sample: 0 };
    while !world.done.contains_key(&SequenceId { request: 2, sample: 0 }) {
        assert!(
            !world.done.contains_key(&long),
            "it waited for the one that ran already"
        );
        world.pass();
    }
    world.run();
    world.assert_done(1, &many);
    world.assert_done(2, &after);
    assert_eq!(
        world.scheduler.counters.prompt_tokens,
        3 + 2 * 5 + 4,
        "two parts, one prompt each"
    );
}

#[test]
fn siblings_are_not_parted_for_less_than_a_quarter_of_the_places() {
    for (taken, running) in [(7, 7), (6, 8)] {
        let mut world = world_with_taken(8, taken);
        world.scheduler.submit(taken, &request(5, 0..3, 6)).unwrap();
        world.pass();
        assert_eq!(world.scheduler.running_sequences(), running, "{taken} taken");
    }
}

#[test]
fn a_request_of_which_a_part_runs_is_withdrawn_whole() {
    let mut world = world_with_taken(4, 1);
    world.scheduler.submit(1, &request(5, 0..9, 6)).unwrap();
    world.pass();
    assert_eq!(world.scheduler.abort(1).len(), 9);
    assert_eq!(
        (world.scheduler.running_sequences(), world.scheduler.waiting_sequences()),
        (1, 0)
    );
}

#[test]
fn a_request_that_can_never_run_is_refused_with_the_reason() {
    let mut world = World::new(4, 4, WIDE);
    let refusal = |world: &mut World, request: &Request| world.scheduler.submit(0, request).unwrap_err().to_string();
    assert!(refusal(&mut world, &request(0, 0..1, 1)).contains("prompt is empty"));
    assert!(refusal(&mut world, &request(1, 0..1, 0)).contains("maxNewTokens is 0"));
    assert!(refusal(&mut world, &request(40, 0..1, 1)).contains("at most 39 fit"));
    assert!(refusal(&mut world, &request(10, 0..1, 8)).contains("needs 5 cache blocks, the cache has 4"));
    let with_stop = |stop: &str| Request {
        params: SamplingParams {
            stop: vec![stop.into()],
            ..hash_runner::params(1)
        }
        .into(),
        ..request(1, 0..1, 1)
    };
    assert!(refusal(&mut world, &with_stop("end")).contains("need a tokenizer"));
    assert!(refusal(&mut world, &with_stop("")).contains("empty"));
    assert!(world.scheduler.is_idle());
    // 10 + 7 tokens fill the 16 positions: the last token drawn is never computed.
    world.scheduler.submit(0, &request(10, 0..1, 7)).unwrap();
    world.run();
    world.assert_done(0, &request(10, 0..1, 7));
}

#[test]
fn scored_prompts_take_turns_within_the_rows_of_one_pass() {
    let mut world = World::new(64, 4, WIDE);
    let scored = |prompt: usize| Request {
        details: Details {
            prompt_logprobs: Some(1),
            ..Details::default()
        },
        ..request(prompt, 0..2, 2)
    };
    let requests: Vec<Request> = (0..6).map(|_| scored(36)).collect();
    for (number, request) in requests.iter().enumerate() {
        world.scheduler.submit(number as u64, request).unwrap();
    }
    // Three prompts score 35 tokens each; the fourth is computed as far as 128 rows reach.
    assert_eq!(world.pass(), [36, 36, 36, 23]);
    world.run();
    for (number, request) in requests.iter().enumerate() {
        world.assert_done(number as u64, request);
    }
}
