use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::time::Instant;

use tch::Tensor;

use super::*;
use crate::engine::hash_runner::{Fault, HashRunner, alone, next, request};
use crate::engine::request::{Details, FinishReason, News, Spent};
use crate::engine::runner::Draw;
use crate::model::Weights;

const LONG: Duration = Duration::from_secs(60);
const MAX_POSITIONS: usize = 100_000;
/// More than any request here draws.
const EVENTS: usize = 200_000;

fn start(fault: Fault, pace: Duration, config: EngineConfig) -> Engine {
    let make = move || {
        let mut runner = HashRunner::new(7000, 16, MAX_POSITIONS);
        (runner.fault, runner.pace) = (fault, pace);
        Ok(runner)
    };
    Engine::start(make, config).unwrap()
}

fn engine() -> Engine {
    start(Fault::None, Duration::ZERO, EngineConfig::default())
}

/// An engine slow enough that a request of thousands of tokens is in flight while the test acts.
fn slow_engine(config: EngineConfig) -> Engine {
    start(Fault::None, Duration::from_millis(1), config)
}

fn no_weights() -> Weights {
    Weights(BTreeMap::new())
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let ends = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < ends, "waited for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn assert_alone(completions: &[Completion], request: &Request) {
    assert_eq!(completions.len(), request.seeds.len());
    for (sample, completion) in completions.iter().enumerate() {
        let (tokens, logprobs, finish_reason) = alone(request, sample, MAX_POSITIONS);
        let versions = vec![0; tokens.len()];
        assert_eq!(
            *completion,
            Completion {
                tokens,
                logprobs,
                finish_reason,
                versions,
                top_logprobs: vec![],
                prompt_logprobs: None,
            }
        );
    }
}

#[test]
fn completions_come_in_the_order_of_requests_and_seeds() {
    let engine = engine();
    let requests: Vec<Request> = (1..20).map(|n| request(n, n as u64..n as u64 + 3, 30 - n)).collect();
    let completions = engine.generate(requests.clone(), LONG).unwrap();
    for (completions, request) in completions.iter().zip(&requests) {
        assert_alone(completions, request);
    }
    let stats = engine.stats();
    let drawn: usize = completions
        .iter()
        .flatten()
        .map(|completion| completion.tokens.len())
        .sum();
    assert_eq!(stats.counters.generation_tokens, drawn as u64);
    assert_eq!(stats.counters.prompt_tokens, (1..20).sum::<u64>());
    assert_eq!((stats.running, stats.waiting, stats.kv_cache_usage), (0, 0, 0.0));
}

#[test]
fn a_ticket_can_be_awaited() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (engine, request) = (engine(), request(5, 0..2, 9));
    let completions = runtime
        .block_on(async { engine.submit(request.clone()).unwrap().await })
        .unwrap();
    assert_alone(&completions, &request);
}

#[test]
fn a_request_without_seeds_has_no_completions() {
    assert_eq!(engine().generate(vec![request(3, 0..0, 4)], LONG), Ok(vec![vec![]]));
}

#[test]
fn an_aborted_request_returns_its_tokens_so_far() {
    let engine = slow_engine(EngineConfig::default());
    let wanted = request(5, 0..2, 50_000);
    let (events, mut heard) = tokio::sync::mpsc::channel(EVENTS);
    let ticket = engine.submit_streaming(wanted.clone(), events).unwrap();
    until("some tokens", || engine.stats().counters.generation_tokens > 10);
    engine.abort(vec![ticket.number()]);
    for completion in ticket.wait(LONG).unwrap() {
        assert_eq!(completion.finish_reason, FinishReason::Abort);
        assert!(!completion.tokens.is_empty() && completion.tokens.len() < 50_000);
        assert_eq!(completion.versions.len(), completion.tokens.len());
    }
    let news = std::iter::from_fn(|| heard.try_recv().ok().map(|event| event.news));
    let news: Vec<News> = news.collect();
    assert!(
        news.ends_with(&[News::Withdrawn, News::Withdrawn]),
        "whoever listens is told"
    );
    until("free blocks", || engine.stats().kv_cache_usage == 0.0);
}

#[test]
fn requests_whose_listener_has_fallen_behind_are_withdrawn_and_others_go_on() {
    let engine = slow_engine(EngineConfig::default());
    let (events, mut heard) = tokio::sync::mpsc::channel(8);
    let unheard = [5, 6].map(|length| {
        let wanted = request(length, 0..2, 50_000);
        engine.submit_streaming(wanted, events.clone()).unwrap()
    });
    drop(events);
    let other = engine.submit(request(7, 0..2, 50)).unwrap();
    for ticket in unheard {
        for completion in ticket.wait(LONG).unwrap() {
            assert_eq!(completion.finish_reason, FinishReason::Abort);
        }
    }
    let told = std::iter::from_fn(|| heard.blocking_recv()).count();
    assert_eq!(told, 8, "the channel ends behind what it holds");
    for completion in other.wait(LONG).unwrap() {
        assert_eq!(completion.finish_reason, FinishReason::Length);
    }
    until("free blocks", || engine.stats().kv_cache_usage == 0.0);
}

#[test]
fn a_dropped_ticket_frees_its_sequences() {
    let engine = slow_engine(EngineConfig::default());
    let ticket = engine.submit(request(5, 0..4, 50_000)).unwrap();
    until("a running request", || engine.stats().running == 4);
    drop(ticket);
    until("free blocks", || {
        engine.stats().running == 0 && engine.stats().kv_cache_usage == 0.0
    });
}

#[test]
fn a_full_engine_refuses_and_generate_waits_for_its_turn() {
    let engine = slow_engine(EngineConfig {
        max_requests: 2,
        ..EngineConfig::default()
    });
    let held = [
        engine.submit(request(5, 0..1, 50_000)).unwrap(),
        engine.submit(request(5, 0..1, 50_000)).unwrap(),
    ];
    assert_eq!(
        engine.submit(request(1, 0..1, 1)).err(),
        Some(EngineError::QueueFull { limit: 2 })
    );
    drop(held);
    until("free places", || engine.submit(request(1, 0..1, 1)).is_ok());
    let requests: Vec<Request> = (1..9).map(|n| request(n, 0..2, 3)).collect();
    until("all places", || engine.places.available_permits() == 2);
    let completions = engine.generate(requests.clone(), LONG).unwrap();
    completions
        .iter()
        .zip(&requests)
        .for_each(|(completions, request)| assert_alone(completions, request));
}

#[test]
fn a_refused_request_names_the_reason_and_harms_no_other() {
    let engine = engine();
    let refused = engine.submit(request(MAX_POSITIONS, 0..1, 1)).unwrap();
    let (served, wanted) = (engine.submit(request(3, 0..1, 4)).unwrap(), request(3, 0..1, 4));
    assert!(
        refused
            .wait(LONG)
            .unwrap_err()
            .to_string()
            .contains("the model holds 100000")
    );
    assert_alone(&served.wait(LONG).unwrap(), &wanted);
}

#[test]
fn a_failing_runner_fails_every_ticket_with_the_cause() {
    for (fault, cause) in [
        (
            Fault::ErrorInPass(3),
            "the forward pass failed: out of memory on device 7",
        ),
        (Fault::LosesTokenInPass(3), "the runner drew 3 tokens of 4"),
        (Fault::Copy, "the device is gone"),
    ] {
        let engine = start(fault, Duration::ZERO, EngineConfig::default());
        engine.pause(Pause::Keep).wait(LONG).unwrap();
        let tickets = [
            engine.submit(request(5, 0..2, 50)).unwrap(),
            engine.submit(request(6, 0..2, 50)).unwrap(),
        ];
        engine.resume();
        for ticket in tickets {
            let error = ticket.wait(LONG).unwrap_err().to_string();
            assert!(error.contains(cause), "{error}");
        }
        let late = engine
            .submit(request(5, 0..1, 5))
            .unwrap()
            .wait(LONG)
            .unwrap_err()
            .to_string();
        assert!(late.contains(cause), "{late}");
        until("the end", || engine.failure().is_some());
        assert_eq!(engine.shutdown(LONG), Ok(()));
    }
}

#[test]
fn a_request_without_a_distribution_fails_alone_and_the_engine_goes_on() {
    let engine = start(Fault::NoneAfter(500), Duration::ZERO, EngineConfig::default());
    let spoiled = Request {
        prompt: vec![1, 500, 2].into(),
        ..request(3, 0..2, 50)
    };
    let (events, mut heard) = tokio::sync::mpsc::channel(EVENTS);
    engine.pause(Pause::Keep).wait(LONG).unwrap();
    let well = engine.submit(request(5, 0..2, 50)).unwrap();
    let failed = engine.submit_streaming(spoiled, events).unwrap();
    engine.resume();
    let error = failed.wait(LONG).unwrap_err();
    assert_eq!(error, EngineError::NoToken { sample: 0 });
    let words = "the rollout engine failed: the forward pass failed: no token can be drawn for sequence 0 of the request: its \
                 logits are NaN";
    assert!(error.to_string().starts_with(words), "{error}");
    assert_eq!(
        heard.blocking_recv(),
        None,
        "whoever listens is told by the end of the channel"
    );
    assert_alone(&well.wait(LONG).unwrap(), &request(5, 0..2, 50));
    assert_eq!(engine.failure(), None);
    let stats = engine.stats();
    assert_eq!((stats.running, stats.waiting, stats.kv_cache_usage), (0, 0, 0.0));
    assert_eq!((stats.counters.finished_error, stats.counters.finished_length), (2, 2));
}

#[test]
fn an_engine_whose_pass_does_not_end_in_time_has_failed_and_one_without_work_has_not() {
    let config = EngineConfig {
        pass_deadline: Duration::from_millis(200),
        ..EngineConfig::default()
    };
    let engine = start(Fault::None, Duration::from_millis(1000), config);
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(engine.failure(), None);
    let _ticket = engine.submit(request(5, 0..1, 5)).unwrap();
    // The first that is found: nobody says that the next look finds one.
    let failure = OnceCell::new();
    until("the deadline", || {
        engine.failure().is_some_and(|found| failure.set(found).is_ok())
    });
    let failure = failure.into_inner().unwrap().to_string();
    assert!(failure.contains("a pass has not ended for 0.2 s"), "{failure}");
}

#[test]
fn an_engine_whose_model_cannot_be_loaded_does_not_start() {
    let missing = || -> anyhow::Result<HashRunner> { anyhow::bail!("model.safetensors: no such file") };
    let error = Engine::start(missing, EngineConfig::default()).err().unwrap();
    assert!(
        error
            .to_string()
            .contains("cannot start: model.safetensors: no such file"),
        "{error}"
    );
    let slow = || {
        std::thread::sleep(Duration::from_secs(1));
        Ok(HashRunner::new(1, 1, 1))
    };
    let config = EngineConfig {
        start_deadline: Duration::from_millis(10),
        ..EngineConfig::default()
    };
    let error = Engine::start(slow, config).err().unwrap();
    assert!(error.to_string().contains("waiting for the model to load"), "{error}");
}

#[test]
fn every_token_tells_the_version_that_drew_it() {
    let engine = slow_engine(EngineConfig {
        policy_version: 4,
        ..EngineConfig::default()
    });
    let wanted = request(5, 0..2, 50_000);
    let ticket = engine.submit(wanted.clone()).unwrap();
    until("tokens of version 4", || engine.stats().counters.generation_tokens > 20);
    engine.update_weights(no_weights(), 5).wait(LONG).unwrap();
    let updated = engine.stats();
    assert_eq!((updated.policy_version, updated.counters.preemptions), (5, 2));
    until("tokens of version 5", || {
        engine.stats().counters.generation_tokens > updated.counters.generation_tokens + 20
    });
    engine.abort(vec![ticket.number()]);
    for (completion, &seed) in ticket.wait(LONG).unwrap().iter().zip(&wanted.seeds) {
        assert_eq!(
            (completion.versions.first(), completion.versions.last()),
            (Some(&4), Some(&5))
        );
        // After the update the whole cache is of the new weights, not only what was written since.
        let mut sequence = wanted.prompt.to_vec();
        for (index, (&token, &version)) in completion.tokens.iter().zip(&completion.versions).enumerate() {
            let draw = Draw {
                params: wanted.params.clone(),
                seed,
                index,
                ends: Arc::default(),
                top: None,
            };
            assert_eq!(next(&sequence, version - 4, &draw).token, token, "token {index}");
            sequence.push(token);
        }
    }
}

#[tokio::test]
async fn an_engine_that_packs_nothing_has_new_weights_gather_as_tensors() {
    let engine = slow_engine(EngineConfig::default());
    let mut staging = engine.stage(Kind::BFloat16).await.unwrap();
    let mut bytes = [1.0f32, 2.0].map(f32::to_ne_bytes).concat();
    staging
        .take("w", &[2], Kind::Float, || Ok(std::mem::take(&mut bytes)))
        .unwrap();
    let NewWeights::Tensors(weights) = staging.finish() else {
        panic!("there is nothing to pack into");
    };
    let gathered = weights.tensor("w").unwrap();
    assert_eq!(gathered, Tensor::from_slice(&[1.0f32, 2.0]).to_kind(Kind::BFloat16));
    engine.update_weights(weights, 9).await.unwrap();
    assert_eq!(engine.stats().policy_version, 9);
    engine.shutdown(LONG).unwrap();
    assert_eq!(engine.stage(Kind::Float).await.unwrap_err(), EngineError::Stopped);
}

#[test]
fn an_engine_sleeps_when_it_is_idle_and_wakes_with_new_weights() {
    let engine = slow_engine(EngineConfig::default());
    let wanted = request(5, 0..2, 100);
    let drawing = engine.submit(wanted.clone()).unwrap();
    until("some tokens", || engine.stats().counters.generation_tokens > 10);
    engine.sleep();
    // It does not fall asleep over work.
    assert_alone(&drawing.wait(LONG).unwrap(), &wanted);
    engine.sleep();
    let refused = engine.generate(vec![wanted.clone()], LONG);
    assert_eq!(refused.unwrap_err(), EngineError::Asleep);
    engine.update_weights(no_weights(), 0).wait(LONG).unwrap();
    assert_eq!(engine.generate(vec![wanted], LONG).unwrap()[0].len(), 2);
}

#[test]
fn weights_that_do_not_load_end_the_engine() {
    let engine = start(Fault::Load, Duration::from_millis(1), EngineConfig::default());
    let ticket = engine.submit(request(5, 0..1, 50_000)).unwrap();
    let error = engine
        .update_weights(no_weights(), 7)
        .wait(LONG)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("cannot load the weights of version 7: tensor lm_head.weight is missing"),
        "{error}"
    );
    assert!(matches!(ticket.wait(LONG), Err(EngineError::Failed(_))));
}

#[test]
fn who_leaves_a_frozen_engine_gives_up_the_place_and_the_blocks() {
    let config = EngineConfig {
        max_requests: 2,
        ..EngineConfig::default()
    };
    let engine = slow_engine(config);
    let [stays, leaves] = [5, 6].map(|token| engine.submit(request(token, 0..2, 100)).unwrap());
    until("all four", || engine.stats().running == 4);
    engine.pause(Pause::Keep).wait(LONG).unwrap();
    let before = engine.stats().kv_cache_usage;
    drop(leaves);
    until("two sequences fewer", || engine.stats().running == 2);
    assert!(engine.stats().kv_cache_usage < before);
    let third = engine.submit(request(7, 0..1, 5)).expect("its place is free");
    engine.resume();
    assert_alone(&stays.wait(LONG).unwrap(), &request(5, 0..2, 100));
    assert_alone(&third.wait(LONG).unwrap(), &request(7, 0..1, 5));
}

#[test]
fn a_frozen_engine_queues_and_goes_on_where_it_was() {
    let engine = slow_engine(EngineConfig::default());
    let wanted = request(5, 0..2, 100);
    let first = engine.submit(wanted.clone()).unwrap();
    until("some tokens", || engine.stats().counters.generation_tokens > 10);
    engine.pause(Pause::Keep).wait(LONG).unwrap();
    let frozen = engine.stats();
    let second = engine.submit(wanted.clone()).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(
        engine.stats().counters.generation_tokens,
        frozen.counters.generation_tokens
    );
    engine.resume();
    assert_alone(&first.wait(LONG).unwrap(), &wanted);
    assert_alone(&second.wait(LONG).unwrap(), &wanted);
}

#[test]
fn requests_that_come_at_once_are_all_counted() {
    let engine = engine();
    engine.pause(Pause::Keep).wait(LONG).unwrap();
    let submit = |_| engine.submit(request(5, 0..2, 10)).unwrap();
    let _tickets: Vec<_> = (0..100).map(submit).collect();
    until("all that wait", || engine.stats().waiting == 200);
}

#[test]
fn a_draining_engine_finishes_what_it_has_and_refuses_more() {
    let engine = slow_engine(EngineConfig::default());
    let wanted = request(5, 0..2, 50);
    let ticket = engine.submit(wanted.clone()).unwrap();
    let drained = engine.pause(Pause::Wait);
    assert_eq!(
        engine.submit(wanted.clone()).unwrap().wait(LONG),
        Err(EngineError::Paused)
    );
    drained.wait(LONG).unwrap();
    assert_eq!(engine.stats().running, 0);
    assert_alone(&ticket.wait(Duration::ZERO).unwrap(), &wanted);
    engine.resume();
    assert_alone(&engine.submit(wanted.clone()).unwrap().wait(LONG).unwrap(), &wanted);
}

#[test]
fn a_pause_that_something_overtakes_before_nothing_is_inside_does_not_say_that_it_came_to_its_end() {
    let engine = slow_engine(EngineConfig::default());
    let _ticket = engine.submit(request(5, 0..1, 50_000)).unwrap();
    let resumed = engine.pause(Pause::Wait);
    engine.resume();
    assert_eq!(resumed.wait(LONG), Err(EngineError::Overtaken));
    let frozen = engine.pause(Pause::Wait);
    engine.pause(Pause::Keep).wait(LONG).unwrap();
    assert_eq!(frozen.wait(LONG), Err(EngineError::Overtaken));
    // What is empty at once is paused before anything overtakes it.
    let emptied = engine.pause(Pause::Abort);
    engine.resume();
    assert_eq!(emptied.wait(LONG), Ok(()));
}

#[test]
fn an_emptied_engine_returns_the_tokens_so_far() {
    let engine = slow_engine(EngineConfig::default());
    let ticket = engine.submit(request(5, 0..2, 50_000)).unwrap();
    until("some tokens", || engine.stats().counters.generation_tokens > 10);
    engine.pause(Pause::Abort).wait(LONG).unwrap();
    assert!(
        ticket
            .wait(LONG)
            .unwrap()
            .iter()
            .all(|completion| completion.finish_reason == FinishReason::Abort)
    );
}

#[test]
fn a_wait_that_is_too_short_says_so_and_withdraws_the_request() {
    let engine = slow_engine(EngineConfig::default());
    let deadline = Duration::from_millis(20);
    let error = engine.generate(vec![request(5, 0..1, 50_000)], deadline).unwrap_err();
    assert_eq!(
        error,
        EngineError::Deadline {
            waited_for: "completions",
            deadline
        }
    );
    until("an idle engine", || engine.stats().running == 0);
}

#[test]
fn shutting_down_answers_everyone() {
    let engine = slow_engine(EngineConfig::default());
    let ticket = engine.submit(request(5, 0..1, 50_000)).unwrap();
    assert_eq!(engine.shutdown(LONG), Ok(()));
    assert_eq!(ticket.wait(LONG), Err(EngineError::Stopped));
    assert_eq!(
        engine.submit(request(5, 0..1, 5)).unwrap().wait(LONG),
        Err(EngineError::Stopped)
    );
    assert_eq!(engine.pause(Pause::Keep).wait(LONG), Err(EngineError::Stopped));
}

#[test]
fn an_engine_without_handles_finishes_what_it_has() {
    let engine = slow_engine(EngineConfig::default());
    let (wanted, ended) = (request(5, 0..2, 30), engine.ended.clone());
    let ticket = engine.submit(wanted.clone()).unwrap();
    drop(engine);
    assert_alone(&ticket.wait(LONG).unwrap(), &wanted);
    assert_eq!(ended.recv_timeout(LONG), Err(RecvTimeoutError::Disconnected));
}

#[test]
fn a_streamed_request_tells_every_token_in_order_and_then_the_same_completions() {
    let engine = engine();
    let wanted = Request {
        details: Details {
            top_logprobs: Some(2),
            prompt_logprobs: None,
        },
        ..request(5, 0..3, 20)
    };
    let (events, mut heard) = tokio::sync::mpsc::channel(EVENTS);
    let ticket = engine.submit_streaming(wanted.clone(), events).unwrap();
    let number = ticket.number();
    let completions = ticket.wait(LONG).unwrap();
    let mut told = vec![(vec![], vec![], vec![], None); 3];
    while let Ok(event) = heard.try_recv() {
        assert_eq!(event.request, number);
        let sample = &mut told[event.sample];
        match event.news {
            News::Token {
                drawn,
                top,
                version,
                ended,
            } => {
                assert!(sample.3.is_none(), "a token after the end");
                sample.3 = ended;
                sample.0.push(drawn.token);
                sample.1.push(drawn.logprob);
                sample.2.push(top);
                assert_eq!(version, 0);
            }
            News::Withdrawn => panic!("the last token says that it is the last"),
        }
    }
    for (completion, told) in completions.into_iter().zip(told) {
        assert_eq!(
            (
                completion.tokens,
                completion.logprobs,
                completion.top_logprobs,
                Some(completion.finish_reason)
            ),
            told
        );
    }
    let stats = engine.stats();
    assert_eq!(
        stats.counters.finished_stop + stats.counters.finished_length + stats.counters.finished_abort,
        3
    );
}

#[test]
fn each_samples_tokens_are_timed_streamed_or_not_the_first_since_its_request_was_handed_in() {
    let engine = slow_engine(EngineConfig::default());
    let timed: Arc<Mutex<Vec<Waited>>> = Arc::default();
    let noted = timed.clone();
    engine.time_tokens(move |waited| noted.lock().push(waited));
    let began = Instant::now();
    let (events, _heard) = tokio::sync::mpsc::channel(EVENTS);
    let streamed = engine.submit_streaming(request(5, 0..2, 20), events).unwrap();
    let whole = engine.submit(request(6, 0..3, 20)).unwrap();
    let samples = [streamed.wait(LONG).unwrap(), whole.wait(LONG).unwrap()].concat();
    let took = began.elapsed();
    let tokens: usize = samples.iter().map(|sample| sample.tokens.len()).sum();
    let timed = timed.lock();
    let is_first = |waited: &&Waited| matches!(waited, Waited::First(_));
    let is_whole = |waited: &&Waited| matches!(waited, Waited::All(_));
    assert_eq!(timed.iter().filter(is_first).count(), 5);
    assert_eq!(timed.iter().filter(is_whole).count(), 5);
    assert_eq!(timed.len(), tokens + 5);
    for waited in timed.iter() {
        let (Waited::First(waited) | Waited::Next(waited)) = *waited else {
            continue;
        };
        // A pass takes a millisecond.
        assert!(
            waited >= Duration::from_millis(1) && waited <= took,
            "{waited:?} of {took:?}"
        );
    }
}

#[test]
fn the_time_of_a_sample_that_has_ended_is_told_in_parts_that_are_all_of_it_and_that_of_one_that_is_withdrawn_is_not() {
    // The second waits for the place of the first.
    let engine = slow_engine(EngineConfig {
        max_sequences: 1,
        ..EngineConfig::default()
    });
    let spent: Arc<Mutex<Vec<Spent>>> = Arc::default();
    let noted = spent.clone();
    engine.time_tokens(move |waited| {
        if let Waited::All(spent) = waited {
            noted.lock().push(spent);
        }
    });
    let began = Instant::now();
    // Both are there before the first begins.
    engine.pause(Pause::Keep).wait(LONG).unwrap();
    let requests = [request(5, 0..1, 20), request(6, 0..1, 20)];
    let tickets = requests.map(|request| engine.submit(request).unwrap());
    engine.resume();
    let samples = tickets.map(|ticket| ticket.wait(LONG).unwrap().remove(0).tokens.len());
    let took = began.elapsed();
    let withdrawn = engine.submit(request(7, 0..1, 50_000)).unwrap();
    until("it to run", || engine.stats().running == 1);
    engine.abort(vec![withdrawn.number()]);
    withdrawn.wait(LONG).unwrap();
    let spent = spent.lock();
    let sizes: Vec<(usize, usize)> = spent
        .iter()
        .map(|spent| (spent.prompt_tokens, spent.generation_tokens))
        .collect();
    assert_eq!(sizes, [(5, samples[0]), (6, samples[1])]);
    let whole = |spent: &Spent| spent.queued + spent.prefill + spent.decode;
    assert!(spent.iter().all(|spent| whole(spent) <= took), "{spent:?} of {took:?}");
    let (first, second) = (spent[0], spent[1]);
    assert!(second.queued >= first.prefill + first.decode, "{spent:?}");
    // Each token takes a pass, and each pass a millisecond.
    let passes = |tokens: usize| Duration::from_millis(tokens as u64);
    for spent in spent.iter() {
        assert!(spent.prefill >= passes(1), "{spent:?}");
        assert!(spent.decode >= passes(spent.generation_tokens - 1), "{spent:?}");
    }
}

#[test]
fn an_engine_tells_how_large_its_cache_is_before_anything_is_asked_of_it() {
    let stats = engine().stats();
    assert_eq!((stats.cache_blocks, stats.block_size), (7000, 16));
    let cache = engine().cache_tokens();
    assert_eq!(stats.cache_blocks * stats.block_size, cache);
}
