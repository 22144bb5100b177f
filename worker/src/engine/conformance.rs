//! What every runner must do, as tests over any of them. A runner's own tests name it in [`conforms`].

use std::sync::Arc;

use anyhow::Result;
use proptest::prelude::*;
use tch::{Device, Kind, Tensor};

use super::changes::Changes;
use super::hash_runner;
use super::request::{SamplingParams, TokenLogprob};
use super::runner::{Chunk, Draw, Drawn, ForwardBatch, Runner};
use crate::model::Weights;
use crate::native::change::Gaps;
use crate::native::decoder_shape::DecoderShape;

pub mod reference;

/// A runner under test.
pub trait Subject: Runner + Sized + std::fmt::Debug {
    /// Largest difference that a batch, its order or its chunking may make to logits, relative to the largest one; in
    /// float32 and in bfloat16. 0 is: no bit.
    const ROUNDING: (f32, f32);
    /// Largest difference from the reference, likewise.
    const ERROR: (f32, f32);
    /// Random batches that are tried.
    const CASES: u32;

    fn make(shape: &DecoderShape, num_blocks: usize, threads: usize) -> Result<Self>;

    /// Logits of the rows the last batch drew from.
    fn rows(&self) -> Vec<f32>;
}

pub fn params() -> SamplingParams {
    hash_runner::params(16)
}

pub fn draw(seed: u64, index: usize) -> Draw {
    Draw {
        params: Arc::new(params()),
        seed,
        index,
        ends: Arc::default(),
        top: None,
    }
}

/// Sizes that fill no vector, panel or tile evenly.
pub fn tiny(kind: Kind) -> DecoderShape {
    DecoderShape {
        layers: 2,
        hidden: 40,
        heads: 6,
        kv_heads: 2,
        head_dim: 12,
        intermediate: 52,
        vocab: 101,
        max_positions: 160,
        rms_eps: 1e-5,
        qkv_bias: false,
        output_bias: false,
        qk_norm: false,
        tied: true,
        inv_freq: (0..6).map(|i| 10000f32.powf(-(i as f32) / 6.0)).collect(),
        kind,
    }
}

/// A small model with all that Qwen adds.
pub fn qwen(kind: Kind) -> DecoderShape {
    DecoderShape {
        qkv_bias: true,
        qk_norm: true,
        ..tiny(kind)
    }
}

pub fn load<R: Runner>(runner: &mut R, weights: &Weights) -> Result<()> {
    runner.load(&weights.into())
}

pub fn random_weights(s: &DecoderShape) -> Weights {
    let mut weights = Weights::default();
    let mut seed = 0;
    let mut put = |name: String, size: &[usize], mean: f64, scale: f64| {
        seed += 1;
        let count: usize = size.iter().product();
        // Numbers of our own: tests run in parallel and libtorch's generator is shared.
        let values: Vec<f32> = (0..count as u64)
            .map(|i| ((crate::engine::sampler::uniform(seed, i) - 0.5) * 3.46 * scale + mean) as f32)
            .collect();
        let size: Vec<i64> = size.iter().map(|n| *n as i64).collect();
        weights
            .0
            .insert(name, Tensor::from_slice(&values).view(size.as_slice()).to_kind(s.kind));
    };
    let (q, kv) = (s.heads * s.head_dim, s.kv_heads * s.head_dim);
    put("model.embed_tokens.weight".into(), &[s.vocab, s.hidden], 0.0, 0.5);
    put("model.norm.weight".into(), &[s.hidden], 1.0, 0.2);
    if !s.tied {
        put("lm_head.weight".into(), &[s.vocab, s.hidden], 0.0, 0.3);
    }
    for i in 0..s.layers {
        let mut at = |name: &str, size: &[usize], mean: f64, scale: f64| {
            put(format!("model.layers.{i}.{name}"), size, mean, scale);
        };
        at("input_layernorm.weight", &[s.hidden], 1.0, 0.2);
        at("post_attention_layernorm.weight", &[s.hidden], 1.0, 0.2);
        for (name, rows) in [("q", q), ("k", kv), ("v", kv)] {
            at(&format!("self_attn.{name}_proj.weight"), &[rows, s.hidden], 0.0, 0.3);
            at(&format!("self_attn.{name}_proj.bias"), &[rows], 0.0, 0.5);
            at(&format!("self_attn.{name}_norm.weight"), &[s.head_dim], 1.0, 0.3);
        }
        at("self_attn.o_proj.weight", &[s.hidden, q], 0.0, 0.2);
        at("self_attn.o_proj.bias", &[s.hidden], 0.0, 0.2);
        at("mlp.gate_proj.weight", &[s.intermediate, s.hidden], 0.0, 0.3);
        at("mlp.up_proj.weight", &[s.intermediate, s.hidden], 0.0, 0.3);
        at("mlp.down_proj.weight", &[s.hidden, s.intermediate], 0.0, 0.2);
    }
    weights
}

pub fn loaded<R: Subject>(shape: &DecoderShape, num_blocks: usize, threads: usize) -> R {
    let mut runner = R::make(shape, num_blocks, threads).unwrap();
    load(&mut runner, &random_weights(shape)).unwrap();
    runner
}

pub fn tokens(seed: u64, length: usize) -> Vec<u32> {
    (0..length as u64)
        .map(|i| (crate::engine::sampler::uniform(seed, i) * 101.0) as u32)
        .collect()
}

pub fn chunk(tokens: &[u32], start: usize, blocks: &[u32], draws: Vec<Draw>) -> Chunk {
    Chunk {
        tokens: tokens.to_vec(),
        start,
        blocks: blocks.to_vec(),
        draws,
        targets: vec![],
        target_tops: 0,
    }
}

/// Logits after each token, and the draws, with every position computed on its own.
fn one_by_one<R: Subject>(shape: &DecoderShape, tokens: &[u32]) -> (Vec<Vec<f32>>, Vec<Drawn>) {
    let mut runner: R = loaded(shape, 10, 1);
    let blocks: Vec<u32> = (0..10).collect();
    let (mut logits, mut drawn) = (Vec::new(), Vec::new());
    for (i, token) in tokens.iter().enumerate() {
        let batch = ForwardBatch {
            chunks: vec![chunk(&[*token], i, &blocks, vec![draw(5, i)])],
        };
        drawn.extend(runner.forward(&batch).unwrap().drawn.into_iter().flatten());
        logits.push(runner.rows());
    }
    (logits, drawn)
}

fn worst(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn of_kind((float, bfloat): (f32, f32), kind: Kind) -> f32 {
    if kind == Kind::Float { float } else { bfloat }
}

fn largest(row: &[f32]) -> f32 {
    row.iter().fold(0f32, |most, x| most.max(x.abs()))
}

/// Whether two rows of logits are the same but for what the runner's rounding may make of them.
fn same_rows<R: Subject>(a: &[f32], b: &[f32], kind: Kind) -> bool {
    worst(a, b) <= of_kind(R::ROUNDING, kind) * largest(b)
}

/// The same of draws in float32.
fn same_draws<R: Subject>(a: Option<Drawn>, b: Option<Drawn>) -> bool {
    let (Some(a), Some(b)) = (a, b) else { return a == b };
    a.token == b.token && (a.logprob - b.logprob).abs() <= 100.0 * R::ROUNDING.0
}

/// Whole-prompt and token-by-token logits against the reference, relative to the largest logit.
pub fn check_against_reference<R: Subject>(shape: &DecoderShape) {
    let tolerance = of_kind(R::ERROR, shape.kind);
    let weights = random_weights(shape);
    let ids = tokens(3, 37);
    let expected: Vec<f32> = Vec::try_from(reference::logits(shape, &weights, &ids).flatten(0, -1)).unwrap();
    let scale = largest(&expected);
    assert!(scale > 1.0, "the model says something: {scale}");
    let (rows, _) = one_by_one::<R>(shape, &ids);
    let error = worst(&rows.concat(), &expected);
    assert!(error < tolerance * scale, "{error} of {scale}");
}

/// How far token-by-token logits are from the reference, over all rows: root of the mean square, relative to the reference's own. A
/// token whose attention hangs by a rounding may be far off alone.
pub fn distance_from_reference<R: Subject>(shape: &DecoderShape) -> f64 {
    let ids = tokens(3, 37);
    let expected = reference::logits(shape, &random_weights(shape), &ids).flatten(0, -1);
    let (rows, _) = one_by_one::<R>(shape, &ids);
    let norm = |tensor: &Tensor| tensor.to_kind(Kind::Double).norm().double_value(&[]);
    norm(&(Tensor::from_slice(&rows.concat()) - &expected)) / norm(&expected)
}

pub fn a_llama_agrees_with_the_reference<R: Subject>() {
    check_against_reference::<R>(&tiny(Kind::Float));
}

pub fn a_model_with_vector_sized_dimensions_agrees_with_the_reference<R: Subject>() {
    let shape = DecoderShape {
        hidden: 64,
        heads: 4,
        kv_heads: 4,
        head_dim: 64,
        intermediate: 128,
        inv_freq: (0..32).map(|i| 10000f32.powf(-(i as f32) / 32.0)).collect(),
        ..tiny(Kind::Float)
    };
    check_against_reference::<R>(&shape);
}

pub fn a_qwen2_with_bias_agrees_with_the_reference<R: Subject>() {
    check_against_reference::<R>(&DecoderShape {
        qkv_bias: true,
        ..tiny(Kind::Float)
    });
}

pub fn a_qwen3_with_head_norms_agrees_with_the_reference<R: Subject>() {
    check_against_reference::<R>(&DecoderShape {
        qk_norm: true,
        ..tiny(Kind::Float)
    });
}

pub fn an_untied_head_agrees_with_the_reference<R: Subject>() {
    check_against_reference::<R>(&DecoderShape {
        tied: false,
        ..tiny(Kind::Float)
    });
}

pub fn multi_query_attention_agrees_with_the_reference<R: Subject>() {
    check_against_reference::<R>(&DecoderShape {
        kv_heads: 1,
        ..tiny(Kind::Float)
    });
}

pub fn scaled_rotary_positions_agree_with_the_reference<R: Subject>() {
    let mut shape = tiny(Kind::Float);
    shape.inv_freq.iter_mut().for_each(|frequency| *frequency /= 4.0);
    check_against_reference::<R>(&shape);
}

pub fn bfloat16_agrees_with_the_reference_rounded_where_values_are_stored<R: Subject>() {
    let all = DecoderShape {
        qkv_bias: true,
        qk_norm: true,
        tied: false,
        ..tiny(Kind::BFloat16)
    };
    check_against_reference::<R>(&all);
    check_against_reference::<R>(&DecoderShape {
        hidden: 41,
        intermediate: 51,
        ..tiny(Kind::BFloat16)
    });
}

pub fn the_logprob_is_of_the_tempered_logits_and_greedy_takes_the_largest<R: Subject>() {
    let mut runner: R = loaded(&tiny(Kind::Float), 4, 2);
    let cool = Draw {
        params: Arc::new(SamplingParams {
            temperature: 0.7,
            ..params()
        }),
        seed: 9,
        index: 0,
        ends: Arc::default(),
        top: None,
    };
    let greedy = Draw {
        params: Arc::new(SamplingParams {
            temperature: 0.0,
            ..params()
        }),
        seed: 9,
        index: 0,
        ends: Arc::default(),
        top: None,
    };
    let ids = tokens(1, 20);
    let drawn = runner
        .forward(&ForwardBatch {
            chunks: vec![chunk(&ids, 0, &[2, 1], vec![cool, greedy])],
        })
        .unwrap()
        .drawn;
    let drawn: Vec<Drawn> = drawn.into_iter().flatten().collect();
    let logits = Tensor::from_slice(&runner.rows());
    let expected = (&logits / 0.7)
        .log_softmax(-1, Kind::Float)
        .double_value(&[drawn[0].token as i64]);
    assert!((f64::from(drawn[0].logprob) - expected).abs() < 1e-5);
    assert_eq!(
        drawn[1],
        Drawn {
            token: logits.argmax(-1, false).int64_value(&[]) as u32,
            logprob: 0.0
        }
    );
}

/// Sequences, and how they are cut into batches.
pub struct Run {
    sequences: Vec<Vec<u32>>,
    choices: Vec<u8>,
    threads: usize,
}

/// Runs the sequences through random batches: random chunk lengths, order, blocks and threads. Logits and draws after every
/// position that ended a chunk must be those of the position computed on its own.
pub fn check_any_batch_is_the_same<R: Subject>(shape: &DecoderShape, run: &Run) -> Result<(), TestCaseError> {
    let kind = shape.kind;
    let expected: Vec<_> = run.sequences.iter().map(|ids| one_by_one::<R>(shape, ids)).collect();
    let n = run.sequences.len();
    let mut runner: R = loaded(shape, n * 10, run.threads);
    let mut choices = run.choices.iter().cycle().map(|c| *c as usize);
    let mut choose = |limit: usize| choices.next().unwrap_or(0) % limit;
    // Blocks are dealt in a scattered order; a stride coprime to the count visits each once.
    let stride = [7, 11, 13, 17][choose(4)];
    let blocks: Vec<Vec<u32>> = (0..n)
        .map(|s| (0..10).map(|b| ((s * 10 + b) * stride % (n * 10)) as u32).collect())
        .collect();
    let mut done = vec![0; n];
    let mut preempted = false;
    while done.iter().zip(&run.sequences).any(|(done, ids)| *done < ids.len()) {
        let mut batch = ForwardBatch::default();
        let mut members = Vec::new();
        let first = choose(n);
        for s in (0..n).map(|i| (i + first) % n) {
            let left = run.sequences[s].len() - done[s];
            if left == 0 || choose(4) == 0 {
                continue;
            }
            let length = 1 + choose(left.min(30));
            let part = &run.sequences[s][done[s]..done[s] + length];
            batch
                .chunks
                .push(chunk(part, done[s], &blocks[s], vec![draw(5, done[s] + length - 1)]));
            done[s] += length;
            members.push(s);
        }
        if members.is_empty() {
            continue;
        }
        let drawn = runner.forward(&batch).unwrap().drawn;
        let logits = runner.rows();
        for (row, s) in members.iter().enumerate() {
            let (all_logits, all_drawn) = &expected[*s];
            let (own, alone) = (&logits[row * shape.vocab..][..shape.vocab], &all_logits[done[*s] - 1]);
            prop_assert!(
                same_rows::<R>(own, alone, kind),
                "{} of {}",
                worst(own, alone),
                largest(alone)
            );
            // A token whose probability ends at the drawn number may give way to the next by rounding.
            if of_kind(R::ROUNDING, kind) == 0.0 {
                prop_assert_eq!(drawn[row], Some(all_drawn[done[*s] - 1]));
            }
        }
        // A preempted sequence is computed again from its first token.
        if !preempted && choose(3) == 0 {
            done[members[0]] = 0;
            preempted = true;
        }
    }
    Ok(())
}

pub fn runs() -> impl Strategy<Value = Run> {
    let sequences = prop::collection::vec((0u64..1000, 1usize..90), 1..6);
    (sequences, prop::collection::vec(any::<u8>(), 64), 1usize..4).prop_map(|(sequences, choices, threads)| Run {
        sequences: sequences
            .into_iter()
            .map(|(seed, length)| tokens(seed, length))
            .collect(),
        choices,
        threads,
    })
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lengths: Vec<_> = self.sequences.iter().map(Vec::len).collect();
        write!(
            f,
            "lengths {lengths:?}, {} threads, choices {:?}",
            self.threads, self.choices
        )
    }
}

pub fn a_copied_block_serves_a_sibling<R: Subject>() {
    let mut runner: R = loaded(&tiny(Kind::Float), 8, 2);
    let ids = tokens(1, 20);
    runner
        .forward(&ForwardBatch {
            chunks: vec![chunk(&ids, 0, &[0, 1], vec![])],
        })
        .unwrap();
    runner.copy_block(1, 5).unwrap();
    let both = ForwardBatch {
        chunks: vec![
            chunk(&[7], 20, &[0, 1], vec![draw(1, 0)]),
            chunk(&[7], 20, &[0, 5], vec![draw(1, 0)]),
        ],
    };
    let drawn = runner.forward(&both).unwrap().drawn;
    assert!(same_draws::<R>(drawn[0], drawn[1]), "{drawn:?}");
}

pub fn siblings_of_a_prompt_draw_from_the_same_logits<R: Subject>() {
    let mut runner: R = loaded(&tiny(Kind::Float), 8, 2);
    let ids = tokens(1, 20);
    let draws = (0..64).map(|seed| draw(seed, 0)).collect();
    let drawn = runner
        .forward(&ForwardBatch {
            chunks: vec![chunk(&ids, 0, &[0, 1], draws)],
        })
        .unwrap()
        .drawn;
    assert_eq!(runner.rows().len(), 101);
    let token = |drawn: &Option<Drawn>| drawn.unwrap().token;
    assert!(drawn.iter().any(|other| token(other) != token(&drawn[0])));
    let again = ForwardBatch {
        chunks: vec![chunk(&ids, 0, &[4, 3], vec![draw(63, 0)])],
    };
    assert!(same_draws::<R>(runner.forward(&again).unwrap().drawn[0], drawn[63]));
}

pub fn new_weights_replace_the_old<R: Subject>() {
    let shape = tiny(Kind::Float);
    let mut runner: R = loaded(&shape, 4, 2);
    let batch = ForwardBatch {
        chunks: vec![chunk(&tokens(1, 20), 0, &[0, 1], vec![draw(1, 0)])],
    };
    runner.forward(&batch).unwrap();
    let old = runner.rows();
    let mut weights = random_weights(&shape);
    for tensor in weights.0.values_mut() {
        *tensor = &*tensor * 1.5;
    }
    load(&mut runner, &weights).unwrap();
    runner.forward(&batch).unwrap();
    assert!(!same_rows::<R>(&runner.rows(), &old, Kind::Float));
    load(&mut runner, &random_weights(&shape)).unwrap();
    runner.forward(&batch).unwrap();
    assert!(same_rows::<R>(&runner.rows(), &old, Kind::Float));
}

/// A change of a tensor as an engine gets it.
fn changes(tensors: &[(&str, &[i64], &[f32])]) -> Changes {
    let (mut body, mut ranges) = (Vec::new(), Vec::new());
    for (name, places, numbers) in tensors {
        let mut gaps = Gaps::default();
        gaps.extend(places);
        let start = body.len();
        body.extend(&gaps.bytes);
        let values = body.len();
        for number in *numbers {
            body.extend(((number.to_bits() >> 16) as u16).to_le_bytes());
        }
        ranges.push((*name, start..values, values..body.len()));
    }
    let mut changes = Changes::of(body);
    for (name, gaps, values) in ranges {
        changes.add(name, gaps, values).unwrap();
    }
    changes
}

/// Weights of which some numbers are others than those of `weights`, and these numbers as an engine gets them: here and there, the first and
/// the last of most tensors among them. bfloat16 has all of these.
pub fn changed_here_and_there(weights: &Weights) -> (Weights, Changes) {
    let (mut changed, mut parts) = (Weights::default(), Vec::new());
    for (name, tensor) in &weights.0 {
        if !name.ends_with("v_norm.weight") && !name.ends_with("o_proj.bias") {
            let count = tensor.numel() as i64;
            let places: Vec<i64> = (0..count)
                .filter(|place| place % 7 == 0 || place + 1 == count)
                .collect();
            let numbers: Vec<f32> = places.iter().map(|place| (place % 5) as f32 / 8.0 - 0.25).collect();
            let values = Tensor::from_slice(&numbers).to_kind(tensor.kind());
            let flat = tensor
                .copy()
                .view([-1])
                .index_copy(0, &Tensor::from_slice(&places), &values);
            changed.0.insert(name.clone(), flat.view(tensor.size().as_slice()));
            parts.push((name.as_str(), places, numbers));
        }
    }
    let parts: Vec<_> = parts
        .iter()
        .map(|(name, places, numbers)| (*name, &**places, &**numbers))
        .collect();
    (changed, changes(&parts))
}

pub fn numbers_that_change_one_by_one_give_what_all_of_the_new_weights_give<R: Subject>() {
    for (kind, tied, hidden) in [
        (Kind::Float, true, 40),
        (Kind::BFloat16, true, 41),
        (Kind::BFloat16, false, 40),
    ] {
        let shape = DecoderShape {
            tied,
            hidden,
            ..qwen(kind)
        };
        let batch = ForwardBatch {
            chunks: vec![chunk(&tokens(1, 20), 0, &[0, 1], vec![draw(1, 0)])],
        };
        let (changed, changes) = changed_here_and_there(&random_weights(&shape));
        let mut whole = R::make(&shape, 4, 2).unwrap();
        load(&mut whole, &changed).unwrap();
        whole.forward(&batch).unwrap();
        let mut runner: R = loaded(&shape, 4, 2);
        runner.change(&changes).unwrap();
        runner.forward(&batch).unwrap();
        assert_eq!(runner.rows(), whole.rows(), "{kind:?}, {hidden}");
    }
    let unknown = changes(&[("model.layers.9.mlp.down_proj.weight", &[0], &[0.0])]);
    let mut runner: R = loaded(&tiny(Kind::Float), 4, 1);
    assert!(runner.change(&unknown).unwrap_err().to_string().contains("layers.9"));
}

pub fn a_tensor_that_is_missing_or_misshapen_is_named<R: Subject>() {
    let shape = tiny(Kind::Float);
    let mut weights = random_weights(&shape);
    let name = "model.layers.1.mlp.up_proj.weight";
    let good = weights
        .0
        .insert(name.into(), Tensor::zeros([3, 4], (Kind::Float, Device::Cpu)))
        .unwrap();
    let mut runner = R::make(&shape, 4, 1).unwrap();
    let error = load(&mut runner, &weights).unwrap_err().to_string();
    assert!(
        error.contains(name) && error.contains("[3, 4]") && error.contains("[52, 40]"),
        "{error}"
    );
    weights.0.remove(name);
    assert!(load(&mut runner, &weights).unwrap_err().to_string().contains(name));
    let batch = ForwardBatch {
        chunks: vec![chunk(&[1], 0, &[0], vec![])],
    };
    assert!(runner.forward(&batch).unwrap_err().to_string().contains("weights"));
    weights.0.insert(name.into(), good);
    load(&mut runner, &weights).unwrap();
    assert!(runner.forward(&batch).is_ok());
}

pub fn nan_weights_give_no_token<R: Subject>() {
    let shape = tiny(Kind::Float);
    let mut weights = random_weights(&shape);
    let name = "model.layers.0.mlp.down_proj.weight".to_string();
    let bad = &weights.0[&name] * f64::NAN;
    weights.0.insert(name, bad);
    for temperature in [0.0, 1.0] {
        let mut runner = R::make(&shape, 4, 1).unwrap();
        load(&mut runner, &weights).unwrap();
        let draw = Draw {
            params: Arc::new(SamplingParams {
                temperature,
                ..params()
            }),
            seed: 0,
            index: 0,
            ends: Arc::default(),
            top: None,
        };
        let output = runner.forward(&ForwardBatch {
            chunks: vec![chunk(&[1], 0, &[0], vec![draw])],
        });
        assert_eq!(output.unwrap().drawn, [None]);
    }
}

pub fn a_sequence_without_a_distribution_spoils_none_beside_it_and_none_that_gets_its_blocks<R: Subject>() {
    check_that_no_distribution_spoils_none::<R>(tiny(Kind::Float));
}

/// One whose numbers are none, beside others and before them.
pub fn check_that_no_distribution_spoils_none<R: Subject>(shape: DecoderShape) {
    let shape = DecoderShape { tied: false, ..shape };
    let weights = random_weights(&shape);
    let embedding = &weights.0["model.embed_tokens.weight"];
    let row = embedding.get(7).fill_(f64::INFINITY);
    assert!(!bool::try_from(row.isfinite().all()).unwrap());
    let mut runner = R::make(&shape, 4, 1).unwrap();
    load(&mut runner, &weights).unwrap();
    let block = runner.block_size();
    let well = |block: u32| chunk(&[1, 2, 3], 0, &[block], vec![draw(5, 0)]);
    let mut drawn = |chunks: Vec<Chunk>| runner.forward(&ForwardBatch { chunks }).unwrap().drawn;
    let alone = drawn(vec![well(0)])[0];
    assert!(alone.is_some());
    let both = drawn(vec![chunk(&vec![7; 2 * block], 0, &[1, 2], vec![draw(5, 0)]), well(3)]);
    assert_eq!(both[0], None);
    assert!(same_draws::<R>(both[1], alone), "{both:?} {alone:?}");
    let next = drawn(vec![chunk(&[7], 2 * block, &[1, 2, 0], vec![draw(5, 1)]), well(3)]);
    assert!(
        next[0].is_none() && same_draws::<R>(next[1], alone),
        "{next:?} {alone:?}"
    );
    for block in [1, 2] {
        let later = drawn(vec![well(block)])[0];
        assert!(same_draws::<R>(later, alone), "{later:?} {alone:?}");
    }
}

pub fn a_batch_that_points_outside_is_refused<R: Subject>() {
    let mut runner: R = loaded(&tiny(Kind::Float), 4, 1);
    let mut refused = |chunk: Chunk, word: &str| {
        let error = runner
            .forward(&ForwardBatch { chunks: vec![chunk] })
            .unwrap_err()
            .to_string();
        assert!(error.contains(word), "{error}");
    };
    refused(chunk(&[101], 0, &[0], vec![]), "token 101");
    refused(chunk(&[1], 0, &[4], vec![]), "block 4");
    refused(chunk(&[1; 17], 0, &[0], vec![]), "blocks");
    refused(chunk(&[], 0, &[0], vec![]), "no tokens");
    refused(chunk(&[1], 160, &[0; 11], vec![]), "position");
    let hot = Draw {
        params: Arc::new(SamplingParams {
            temperature: f32::NAN,
            ..params()
        }),
        seed: 0,
        index: 0,
        ends: Arc::default(),
        top: None,
    };
    refused(chunk(&[1], 0, &[0], vec![hot]), "temperature");
    assert!(runner.forward(&ForwardBatch::default()).unwrap().drawn.is_empty());
}

pub fn a_shape_the_kernels_cannot_run_is_refused<R: Subject>() {
    let odd = DecoderShape {
        head_dim: 13,
        ..tiny(Kind::Float)
    };
    assert!(R::make(&odd, 4, 1).unwrap_err().to_string().contains("head_dim 13"));
    let uneven = DecoderShape {
        kv_heads: 4,
        ..tiny(Kind::Float)
    };
    assert!(R::make(&uneven, 4, 1).unwrap_err().to_string().contains("kv_heads"));
    let half = DecoderShape {
        kind: Kind::Half,
        ..tiny(Kind::Float)
    };
    assert!(R::make(&half, 4, 1).unwrap_err().to_string().contains("Half"));
}

pub fn given_tokens_are_scored_the_same_in_any_chunking_and_tops_hold_the_drawn_token<R: Subject>() {
    let shape = tiny(Kind::Float);
    let ids = tokens(1, 40);
    let blocks = [0, 1, 2];
    let scored = |cuts: &[usize]| {
        let mut runner: R = loaded(&shape, 4, 2);
        let mut scores = Vec::new();
        for pair in cuts.windows(2) {
            let (from, to) = (pair[0], pair[1]);
            let targets = ids[from + 1..(to + 1).min(ids.len())].to_vec();
            let wanted = Draw {
                top: Some(3),
                ..draw(5, 0)
            };
            let is_last = to == ids.len();
            let chunk = Chunk {
                targets,
                target_tops: 2,
                ..chunk(
                    &ids[from..to],
                    from,
                    &blocks,
                    if is_last { vec![wanted] } else { vec![] },
                )
            };
            let output = runner.forward(&ForwardBatch { chunks: vec![chunk] }).unwrap();
            scores.extend(output.scores);
            if is_last {
                let drawn = output.drawn[0].unwrap();
                let listed = output.tops[0].iter().find(|entry| entry.token == drawn.token);
                assert!(listed.is_none_or(|listed| (listed.logprob - drawn.logprob).abs() < 1e-5));
                assert_eq!(output.tops[0].len(), 3);
            }
        }
        scores
    };
    let whole = scored(&[0, 40]);
    assert_eq!(whole.len(), 39);
    for (whole, cut) in whole.iter().zip(scored(&[0, 1, 17, 33, 40])) {
        assert!((whole.logprob - cut.logprob).abs() <= 100.0 * R::ROUNDING.0);
        assert_eq!(whole.rank, cut.rank);
        let ids = |top: &[TokenLogprob]| top.iter().map(|entry| entry.token).collect::<Vec<_>>();
        assert_eq!(ids(&whole.top), ids(&cut.top));
    }
    let mut runner: R = loaded(&shape, 4, 1);
    let last = chunk(&ids[..39], 0, &blocks, vec![draw(1, 0)]);
    runner.forward(&ForwardBatch { chunks: vec![last] }).unwrap();
    let logits = Tensor::from_slice(&runner.rows()).log_softmax(-1, Kind::Double);
    assert!((logits.double_value(&[i64::from(ids[39])]) - f64::from(whole[38].logprob)).abs() < 1e-5);
}

/// The tests of this module for a runner; each with the attributes before its name.
macro_rules! conforms {
    ($(#[$attribute:meta])* $subject:ty) => {
        $crate::engine::conformance::conforms!(
            @all ($(#[$attribute])*) $subject:
            a_llama_agrees_with_the_reference
            a_model_with_vector_sized_dimensions_agrees_with_the_reference
            a_qwen2_with_bias_agrees_with_the_reference
            a_qwen3_with_head_norms_agrees_with_the_reference
            an_untied_head_agrees_with_the_reference
            multi_query_attention_agrees_with_the_reference
            scaled_rotary_positions_agree_with_the_reference
            bfloat16_agrees_with_the_reference_rounded_where_values_are_stored
            the_logprob_is_of_the_tempered_logits_and_greedy_takes_the_largest
            a_copied_block_serves_a_sibling
            siblings_of_a_prompt_draw_from_the_same_logits
            new_weights_replace_the_old
            numbers_that_change_one_by_one_give_what_all_of_the_new_weights_give
            a_tensor_that_is_missing_or_misshapen_is_named
            nan_weights_give_no_token
            a_sequence_without_a_distribution_spoils_none_beside_it_and_none_that_gets_its_blocks
            a_batch_that_points_outside_is_refused
            a_shape_the_kernels_cannot_run_is_refused
            given_tokens_are_scored_the_same_in_any_chunking_and_tops_hold_the_drawn_token
        );

        proptest::proptest! {
            #![proptest_config(proptest::prelude::ProptestConfig {
                cases: <$subject as $crate::engine::conformance::Subject>::CASES,
                ..proptest::prelude::ProptestConfig::default()
            })]

            #[test]
            $(#[$attribute])*
            fn float32_rows_are_the_same_in_any_batch_chunking_order_placement_and_thread_count(
                run in $crate::engine::conformance::runs(),
            ) {
                $crate::engine::conformance::check_any_batch_is_the_same::<$subject>(
                    &$crate::engine::conformance::qwen(tch::Kind::Float), &run,
                )?;
            }

            #[test]
            $(#[$attribute])*
            fn bfloat16_rows_are_the_same_in_any_batch_chunking_order_placement_and_thread_count(
                run in $crate::engine::conformance::runs(),
            ) {
                $crate::engine::conformance::check_any_batch_is_the_same::<$subject>(
                    &$crate::engine::conformance::qwen(tch::Kind::BFloat16), &run,
                )?;
            }
        }
    };
    (@all $attributes:tt $subject:ty: $($name:ident)*) => {
        $($crate::engine::conformance::conforms!(@one $attributes $subject, $name);)*
    };
    (@one ($(#[$attribute:meta])*) $subject:ty, $name:ident) => {
        #[test]
        $(#[$attribute])*
        fn $name() {
            $crate::engine::conformance::$name::<$subject>();
        }
    };
}
pub(crate) use conforms;
