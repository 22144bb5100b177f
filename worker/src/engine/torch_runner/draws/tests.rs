use std::iter::once;

use proptest::prelude::*;

use super::*;
use crate::engine::sampler::tests::plain;
use crate::engine::sampler::uniform;
use crate::native::{cuda, engine as native};

/// Logits over about ten nats, many of them equal.
fn logits(seed: u64, rows: usize, vocab: usize) -> Vec<f32> {
    (0..(rows * vocab) as u64)
        .map(|i| (uniform(seed, i) * 40.0).round() as f32 / 4.0)
        .collect()
}

fn rows_of(values: &[f32], vocab: usize) -> Tensor {
    Tensor::from_slice(values).view([-1, vocab as i64])
}

/// What the native sampler draws, at a number beside the draw's own.
fn native(values: &[f32], vocab: usize, draw: &Draw, suppressed: &[i32], shift: f64) -> Drawn {
    let row = &values[draw.logit_row as usize * vocab..][..vocab];
    let draw = Draw {
        uniform: (draw.uniform + shift).clamp(0.0, 1.0 - f64::EPSILON),
        ..*draw
    };
    let first = draw.first_suppressed as usize;
    native::sample(row, &draw, &suppressed[first..first + draw.suppressed as usize]).unwrap()
}

/// Where rows are drawn from.
#[derive(Clone, Copy)]
enum By {
    Operators,
    /// On the GPU of this process.
    Kernels,
}

impl By {
    fn draw(self, rows: &Tensor, draws: &[Draw], suppressed: &[i32]) -> Vec<Drawn> {
        match self {
            Self::Operators => draw(rows, draws, suppressed, None).unwrap(),
            Self::Kernels => {
                let rows = rows.to_device(crate::device::here().unwrap());
                draw(&rows, draws, suppressed, Some(cuda::shim().unwrap())).unwrap()
            }
        }
    }
}

/// Rows drawn from in a batch are those of the native sampler, but where the number falls on the edge between two tokens.
fn assert_native(by: By, values: &[f32], vocab: usize, draws: &[Draw], suppressed: &[i32]) {
    let own = by.draw(&rows_of(values, vocab), draws, suppressed);
    assert_eq!(own.len(), draws.len());
    for (own, wanted) in own.iter().zip(draws) {
        // Among many tokens several lie between numbers that rounding cannot tell apart.
        let shifts = once(0).chain((1..=40).flat_map(|step| [-step, step]));
        let mut near = shifts.map(|steps| native(values, vocab, wanted, suppressed, f64::from(steps) * 2.5e-7));
        let same = near.find(|near| near.token == own.token);
        let same = same.unwrap_or_else(|| panic!("{own:?} for {wanted:?}: no such token within 1e-5"));
        assert!((same.logprob - own.logprob).abs() < 1e-4, "{own:?}, {same:?}");
    }
}

fn any_draw(rows: i32) -> impl Strategy<Value = Draw> {
    let temperature = prop_oneof![Just(0.0f32), Just(1.0), 0.2f32..3.0];
    let top_p = prop_oneof![Just(1.0f32), 0.05f32..1.0];
    let min_p = prop_oneof![Just(0.0f32), 0.0f32..0.6];
    let top_k = prop_oneof![Just(0i32), 1i32..60];
    (0.0f64..1.0, temperature, top_p, min_p, top_k, 0..rows, 0i32..3).prop_map(
        |(uniform, temperature, top_p, min_p, top_k, logit_row, suppressed)| Draw {
            uniform,
            temperature,
            top_p,
            min_p,
            top_k,
            logit_row,
            first_suppressed: 0,
            suppressed,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_batch_of_draws_is_what_the_native_sampler_draws(
        seed in 0u64..10000, vocab in prop_oneof![3usize..900, Just(521), Just(1021), Just(2048)],
        draws in prop::collection::vec(any_draw(4), 1..12),
    ) {
        assert_native(By::Operators, &logits(seed, 4, vocab), vocab, &draws, &[1, 2]);
    }

    #[test]
    #[ignore = "needs a GPU: make test-gpu"]
    fn so_is_a_batch_on_a_gpu(
        seed in 0u64..10000, vocab in prop_oneof![3usize..900, Just(1021), Just(2048), Just(151_936)],
        draws in prop::collection::vec(any_draw(4), 1..12), is_plain in any::<bool>(),
    ) {
        let plain = |draw: Draw| Draw { top_p: 1.0, min_p: 0.0, top_k: 0, suppressed: 0, ..draw };
        let draws: Vec<Draw> = draws.into_iter().map(|draw| if is_plain { plain(draw) } else { draw }).collect();
        assert_native(By::Kernels, &logits(seed, 4, vocab), vocab, &draws, &[1, 2]);
    }
}

#[test]
fn rows_in_order_are_drawn_from_where_they_lie_and_stay_as_they_were() {
    let vocab = 300;
    let values = logits(3, 5, vocab);
    let draws: Vec<Draw> = (0..5)
        .map(|row| Draw {
            logit_row: row,
            uniform: uniform(7, row as u64),
            top_k: row % 2 * 9,
            suppressed: row % 3,
            ..plain(0.5)
        })
        .collect();
    assert_native(By::Operators, &values, vocab, &draws, &[0, 299]);
    let tensor = rows_of(&values, vocab);
    draw(&tensor, &draws, &[0, 299], None).unwrap();
    assert_eq!(Vec::<f32>::try_from(&tensor.flatten(0, -1)).unwrap(), values);
}

fn check_ends(by: By) {
    let mut values = vec![f32::NEG_INFINITY; 1000];
    (values[300], values[700]) = (0.0, 0.0);
    let at = |uniform: f64| by.draw(&rows_of(&values, 1000), &[Draw { uniform, ..plain(0.5) }], &[])[0].token;
    assert_eq!(at(0.0), 300);
    assert_eq!(at(1.0 - f64::EPSILON / 2.0), 700);
}

#[test]
fn the_ends_of_the_uniform_numbers_draw_tokens_that_have_probability() {
    check_ends(By::Operators);
}

#[test]
#[ignore = "needs a GPU: make test-gpu"]
fn on_a_gpu_they_do_too() {
    check_ends(By::Kernels);
}

fn check_rows_without_a_distribution(by: By, top_p: f32) {
    let vocab = 41;
    for bad in [f32::NAN, f32::INFINITY] {
        for temperature in [0.0, 1.0] {
            let mut values = vec![0.0; 2 * vocab];
            values[17] = bad;
            let draws = [0, 1].map(|logit_row| Draw {
                logit_row,
                temperature,
                top_p,
                ..plain(0.5)
            });
            let drawn = by.draw(&rows_of(&values, vocab), &draws, &[]);
            assert_eq!(drawn[0].token, -1);
            assert!(drawn[1].token >= 0);
        }
    }
    let all = Draw {
        suppressed: 2,
        ..plain(0.5)
    };
    assert_eq!(by.draw(&rows_of(&[1.0, 2.0], 2), &[all], &[0, 1])[0].token, -1);
    let none = rows_of(&[f32::NEG_INFINITY; 2], 2);
    assert_eq!(by.draw(&none, &[plain(0.5)], &[])[0].token, -1);
}

#[test]
fn rows_without_a_distribution_give_no_token_and_leave_the_others_alone() {
    check_rows_without_a_distribution(By::Operators, 0.5);
}

#[test]
#[ignore = "needs a GPU: make test-gpu"]
fn on_a_gpu_they_give_none_either() {
    check_rows_without_a_distribution(By::Kernels, 1.0);
}

#[test]
fn a_vocabulary_is_cut_into_equal_pieces() {
    assert_eq!(piece(49152), 512);
    assert_eq!(piece(151_936), 128);
    assert_eq!(piece(101), 101);
    assert_eq!(piece(1021), 1);
    assert_eq!(piece(50_257), 29);
}
