use std::sync::Arc;

use proptest::prelude::*;

use super::super::hash_runner;
use super::super::request::SamplingParams;
use super::*;
use crate::native::engine;

fn params() -> SamplingParams {
    hash_runner::params(16)
}

/// A draw at a uniform number, of the first row.
pub(in crate::engine) fn plain(uniform: f64) -> native::Draw {
    native::Draw {
        uniform,
        temperature: 1.0,
        top_p: 1.0,
        min_p: 0.0,
        top_k: 0,
        logit_row: 0,
        first_suppressed: 0,
        suppressed: 0,
    }
}

fn sample(logits: &[f32], params: &SamplingParams, seed: u64, index: usize) -> native::Drawn {
    let mut suppressed = Vec::new();
    let draw = Draw {
        params: Arc::new(params.clone()),
        seed,
        index,
        ends: Arc::default(),
        top: None,
    };
    let draw = native_draw(&draw, 0, logits.len(), &mut suppressed).unwrap();
    engine::sample(logits, &draw, &suppressed).unwrap()
}

/// Logits over about ten nats, many of them equal.
fn logits(seed: u64, vocab: usize) -> Vec<f32> {
    (0..vocab as u64)
        .map(|i| (uniform(seed, i) * 40.0).round() as f32 / 4.0)
        .collect()
}

/// Probabilities after tempering and truncation, by sorting everything, in float64.
fn distribution(logits: &[f32], params: &SamplingParams, suppress: bool) -> Vec<f64> {
    let allowed = |i: usize| !(suppress && params.stop_token_ids.contains(&(i as u32)));
    let most = (0..logits.len())
        .filter(|i| allowed(*i))
        .map(|i| logits[i])
        .fold(f32::NEG_INFINITY, f32::max);
    let weight: Vec<f64> = (0..logits.len())
        .map(|i| {
            if allowed(i) {
                f64::from((logits[i] - most) / params.temperature).exp()
            } else {
                0.0
            }
        })
        .collect();
    let mut order: Vec<usize> = (0..logits.len())
        .filter(|i| weight[*i] > 0.0 && weight[*i] >= f64::from(params.min_p))
        .collect();
    order.sort_by(|a, b| weight[*b].total_cmp(&weight[*a]).then(a.cmp(b)));
    if params.top_k > 0 {
        order.truncate(params.top_k);
    }
    let mass: f64 = order.iter().map(|i| weight[*i]).sum();
    let mut reached = 0.0;
    let mut kept = vec![0.0; logits.len()];
    for i in order {
        if reached >= f64::from(params.top_p) * mass && params.top_p < 1.0 {
            break;
        }
        kept[i] = weight[i];
        reached += weight[i];
    }
    kept.iter().map(|weight| weight / reached).collect()
}

#[test]
fn the_generator_is_philox() {
    // Known answers published with the authors' Random123 library (kat_vectors).
    assert_eq!(
        philox([0; 4], [0; 2]),
        [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
    );
    assert_eq!(
        philox([u32::MAX; 4], [u32::MAX; 2]),
        [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
    );
}

#[test]
fn uniform_numbers_are_uniform_and_streams_differ() {
    let numbers: Vec<f64> = (0..100)
        .flat_map(|seed| (0..100).map(move |index| uniform(seed, index)))
        .collect();
    let mut counts = [0f64; 20];
    for number in &numbers {
        assert!((0.0..1.0).contains(number));
        counts[(number * 20.0) as usize] += 1.0;
    }
    let chi: f64 = counts.iter().map(|count| (count - 500.0).powi(2) / 500.0).sum();
    assert!(chi < 43.8, "19 degrees of freedom, 0.1 %: {chi}");
    assert_ne!(uniform(1, 2), uniform(2, 1));
}

/// Chi-square of 20000 draws against the naive distribution; tokens of probability 0 must never appear.
fn check_frequencies(logits: &[f32], params: &SamplingParams) {
    const DRAWS: usize = 20000;
    let expected = distribution(logits, params, false);
    let mut counts = vec![0f64; logits.len()];
    for seed in 0..DRAWS as u64 {
        counts[sample(logits, params, seed, 3).token as usize] += 1.0;
    }
    // Tokens expected fewer than 10 times are pooled.
    let (mut chi, mut cells, mut rare, mut rare_expected) = (0f64, 0, 0f64, 0f64);
    for (count, probability) in counts.iter().zip(&expected) {
        let expected = probability * DRAWS as f64;
        assert!(expected > 0.0 || *count == 0.0);
        if expected < 10.0 {
            rare += count;
            rare_expected += expected;
        } else {
            chi += (count - expected).powi(2) / expected;
            cells += 1;
        }
    }
    if rare_expected > 1.0 {
        chi += (rare - rare_expected).powi(2) / rare_expected;
        cells += 1;
    }
    // The 99.9 % point of chi-square, by Wilson and Hilferty (1931).
    let freedom = f64::from(cells - 1).max(1.0);
    let limit = freedom * (1.0 - 2.0 / (9.0 * freedom) + 3.09 * (2.0 / (9.0 * freedom)).sqrt()).powi(3);
    assert!(chi < limit, "{chi} with {freedom} degrees of freedom");
}

#[test]
fn tokens_come_as_often_as_the_softmax_says() {
    check_frequencies(&logits(1, 300), &params());
    check_frequencies(
        &logits(2, 700),
        &SamplingParams {
            temperature: 0.5,
            ..params()
        },
    );
    check_frequencies(
        &logits(3, 5),
        &SamplingParams {
            temperature: 3.0,
            ..params()
        },
    );
}

#[test]
fn truncated_tokens_come_as_often_as_the_naive_distribution_says() {
    check_frequencies(&logits(4, 300), &SamplingParams { top_k: 7, ..params() });
    check_frequencies(&logits(5, 300), &SamplingParams { top_p: 0.6, ..params() });
    check_frequencies(
        &logits(6, 300),
        &SamplingParams {
            min_p: 0.3,
            top_p: 0.9,
            top_k: 40,
            ..params()
        },
    );
}

#[test]
fn the_uniform_number_sweeps_the_distribution_in_order_of_token() {
    let values = logits(7, 600);
    let expected = distribution(&values, &params(), false);
    let mut cumulative = 0.0;
    for (token, probability) in expected.iter().enumerate() {
        if *probability > 1e-4 {
            let draw = plain(cumulative + probability / 2.0);
            assert_eq!(engine::sample(&values, &draw, &[]).unwrap().token, token as i32);
        }
        cumulative += probability;
    }
}

#[test]
fn the_ends_of_the_uniform_numbers_draw_tokens_that_have_probability() {
    let mut values = vec![f32::NEG_INFINITY; 1000];
    (values[300], values[700]) = (0.0, 0.0);
    let draw = plain(0.0);
    assert_eq!(engine::sample(&values, &draw, &[]).unwrap().token, 300);
    let last = native::Draw {
        uniform: 1.0 - f64::EPSILON / 2.0,
        ..draw
    };
    assert_eq!(engine::sample(&values, &last, &[]).unwrap().token, 700);
}

proptest! {
    #[test]
    fn a_draw_lies_in_the_naive_kept_set_with_its_logprob(
        seed in 0u64..10000, vocab in 1usize..900, temperature in 0.2f32..3.0, top_k in 0usize..50, top_p in 0.05f32..1.0,
        min_p in prop_oneof![Just(0.0f32), 0.0f32..0.6], min_new_tokens in 0usize..2,
    ) {
        let values = logits(seed, vocab);
        let stop = if vocab > 3 { vec![1, 3, 100_000] } else { vec![] };
        let params = SamplingParams { temperature, top_k, top_p, min_p, min_new_tokens, stop_token_ids: stop, ..params() };
        let suppress = min_new_tokens > 0;
        let drawn = sample(&values, &params, seed, 0);
        let expected = distribution(&values, &params, suppress);
        let kept = expected.iter().filter(|probability| **probability > 0.0).count();
        let probability = expected[drawn.token as usize];
        prop_assert!(probability > 0.0, "token {} is not among the {kept} kept", drawn.token);
        prop_assert!((f64::from(drawn.logprob) - probability.ln()).abs() < 1e-4, "{} {}", drawn.logprob, probability.ln());
    }

    #[test]
    fn greedy_takes_the_first_of_the_largest(seed in 0u64..10000, vocab in 1usize..600) {
        let values = logits(seed, vocab);
        let drawn = sample(&values, &SamplingParams { temperature: 0.0, top_k: 3, ..params() }, seed, 0);
        let most = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let first = values.iter().position(|value| *value == most).unwrap();
        prop_assert_eq!(drawn, native::Drawn { token: first as i32, logprob: 0.0 });
    }
}

#[test]
fn stop_tokens_are_drawn_only_once_the_minimum_is_reached() {
    let values = [0.0, 50.0, 0.0, 0.0];
    let params = SamplingParams {
        min_new_tokens: 4,
        stop_token_ids: vec![1],
        ..params()
    };
    assert_ne!(sample(&values, &params, 0, 3).token, 1);
    assert_eq!(sample(&values, &params, 0, 4).token, 1);
    let greedy = SamplingParams {
        temperature: 0.0,
        ..params
    };
    assert_eq!(sample(&values, &greedy, 0, 3).token, 0);
}

#[test]
fn the_models_ends_are_kept_away_before_the_minimum_though_they_end_nothing() {
    let ends = |index: usize| {
        let draw = Draw {
            params: Arc::new(SamplingParams {
                min_new_tokens: 4,
                stop_token_ids: vec![1],
                ..params()
            }),
            ends: [2, 50].into(),
            seed: 0,
            index,
            top: None,
        };
        let mut suppressed = Vec::new();
        native_draw(&draw, 0, 10, &mut suppressed).unwrap();
        suppressed
    };
    assert_eq!(ends(3), [1, 2]);
    assert!(ends(4).is_empty());
}

#[test]
fn logits_without_a_distribution_give_no_token() {
    for bad in [f32::NAN, f32::INFINITY] {
        for place in [0, 17, 40] {
            let mut values = vec![0.0; 41];
            values[place] = bad;
            for temperature in [0.0, 1.0] {
                assert_eq!(
                    sample(
                        &values,
                        &SamplingParams {
                            temperature,
                            ..params()
                        },
                        0,
                        0
                    )
                    .token,
                    -1
                );
                let truncated = SamplingParams {
                    temperature,
                    top_p: 0.5,
                    ..params()
                };
                assert_eq!(sample(&values, &truncated, 0, 0).token, -1);
            }
        }
    }
    let all = SamplingParams {
        min_new_tokens: 1,
        stop_token_ids: vec![0, 1],
        ..params()
    };
    assert_eq!(sample(&[1.0, 2.0], &all, 0, 0).token, -1);
    assert_eq!(sample(&[f32::NEG_INFINITY; 3], &params(), 0, 0).token, -1);
}

#[test]
fn a_draw_that_gives_no_token_is_told_at_its_place_beside_those_that_do() {
    let native = |token: i32| native::Drawn { token, logprob: -1.0 };
    let token = |token: u32| Some(Drawn { token, logprob: -1.0 });
    let given = given(vec![native(4), native(-1), native(0)]);
    assert_eq!(given, [token(4), None, token(0)]);
}

#[test]
fn a_temperature_next_to_zero_is_greedy() {
    let values = [1.0, 1.5, 1.5];
    let cold = SamplingParams {
        temperature: 1e-20,
        ..params()
    };
    assert_eq!(sample(&values, &cold, 7, 0), native::Drawn { token: 1, logprob: 0.0 });
}
