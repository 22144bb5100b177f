//! What the scheduler allocates for a pass: small models draw tens of thousands of tokens a second.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::sync::Arc;

use ppo_worker::engine::blocks::Blocks;
use ppo_worker::engine::runner::{Drawn, Output};
use ppo_worker::engine::scheduler::{Limits, Scheduler};
use ppo_worker::engine::sequence::StopRules;
use ppo_worker::engine::{Details, Request, SamplingParams};

/// A request of three tokens for so many samples, of which none ends in this test.
fn request(samples: u64) -> Request {
    Request {
        prompt: vec![1, 2, 3].into(),
        seeds: (0..samples).collect(),
        params: Arc::new(SamplingParams {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            max_new_tokens: 100,
            min_new_tokens: 0,
            stop_token_ids: vec![0],
            stop: vec![],
            skip_special: true,
        }),
        details: Details::default(),
    }
}

/// Allocations of one pass, but for the runner's.
fn pass(scheduler: &mut Scheduler) -> u64 {
    let mut pass = None;
    let scheduled = allocation_counter::measure(|| pass = Some(scheduler.schedule()));
    let draws: usize = pass.unwrap().batch.chunks.iter().map(|chunk| chunk.draws.len()).sum();
    let output = Output {
        drawn: vec![
            Some(Drawn {
                token: 5,
                logprob: -1.0
            });
            draws
        ],
        ..Output::default()
    };
    let completed = allocation_counter::measure(|| drop(scheduler.complete(output, 0)));
    scheduled.count_total + completed.count_total
}

#[test]
fn a_pass_of_single_tokens_allocates_three_lists_a_sequence_and_four_for_all() {
    for (requests, samples) in [(8, 1), (1, 8), (32, 1), (4, 8)] {
        let limits = Limits {
            max_batch_tokens: 1000,
            max_sequences: 1000,
        };
        let rules = StopRules {
            max_positions: 100,
            ends: [7].into(),
            detokenize: None,
        };
        let mut scheduler = Scheduler::new(limits, rules, Blocks::new(1000, 16));
        for number in 0..requests {
            scheduler.submit(number, &request(samples)).unwrap();
        }
        // Responses of five to eight tokens fit what they had for the fifth, and all of it is in one block.
        for _ in 0..6 {
            pass(&mut scheduler);
        }
        let sequences = requests * samples;
        assert_eq!(scheduler.running_sequences() as u64, sequences);
        assert_eq!(
            pass(&mut scheduler),
            3 * sequences + 4,
            "{requests} requests of {samples}"
        );
    }
}
