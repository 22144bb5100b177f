use std::sync::Arc;

use proptest::prelude::*;

use super::super::request::SamplingParams;
use super::super::runner::{Chunk, Draw};
use super::*;
use crate::model::Weights;

mod reference;

fn params() -> SamplingParams {
    SamplingParams {
        temperature: 1.0,
        top_p: 1.0,
        top_k: 0,
        min_p: 0.0,
        max_new_tokens: 16,
        min_new_tokens: 0,
        stop_token_ids: vec![],
        stop: vec![],
    }
}

fn draw(seed: u64, index: usize) -> Draw {
    Draw {
        params: Arc::new(params()),
        seed,
        index,
        top: None,
    }
}

/// Sizes that fill no vector, panel or tile evenly.
fn tiny(kind: Kind) -> DecoderShape {
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
        qk_norm: false,
        tied: true,
        inv_freq: (0..6).map(|i| 10000f32.powf(-(i as f32) / 6.0)).collect(),
        rope_attention_scaling: 1.0,
        kind,
    }
}

fn load(runner: &mut NativeRunner, weights: &Weights) -> Result<()> {
    runner.load(&weights.into())
}

fn random_weights(s: &DecoderShape) -> Weights {
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
        at("mlp.gate_proj.weight", &[s.intermediate, s.hidden], 0.0, 0.3);
        at("mlp.up_proj.weight", &[s.intermediate, s.hidden], 0.0, 0.3);
        at("mlp.down_proj.weight", &[s.hidden, s.intermediate], 0.0, 0.2);
    }
    weights
}

fn loaded(shape: &DecoderShape, num_blocks: usize, threads: usize) -> NativeRunner {
    let mut runner = NativeRunner::new(shape, num_blocks, threads).unwrap();
    load(&mut runner, &random_weights(shape)).unwrap();
    runner
}

fn tokens(seed: u64, length: usize) -> Vec<u32> {
    (0..length as u64)
        .map(|i| (crate::engine::sampler::uniform(seed, i) * 101.0) as u32)
        .collect()
}

fn chunk(tokens: &[u32], start: usize, blocks: &[u32], draws: Vec<Draw>) -> Chunk {
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
fn one_by_one(shape: &DecoderShape, tokens: &[u32]) -> (Vec<Vec<f32>>, Vec<Drawn>) {
    let mut runner = loaded(shape, 10, 1);
    let blocks: Vec<u32> = (0..10).collect();
    let (mut logits, mut drawn) = (Vec::new(), Vec::new());
    for (i, token) in tokens.iter().enumerate() {
        let batch = ForwardBatch {
            chunks: vec![chunk(&[*token], i, &blocks, vec![draw(5, i)])],
        };
        drawn.extend(runner.forward(&batch).unwrap().drawn);
        logits.push(runner.logits());
    }
    (logits, drawn)
}

fn worst(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Whole-prompt and token-by-token logits against the reference, relative to the largest logit.
fn check_against_reference(shape: &DecoderShape, tolerance: f32) {
    let weights = random_weights(shape);
    let ids = tokens(3, 37);
    let expected: Vec<f32> = Vec::try_from(reference::logits(shape, &weights, &ids).flatten(0, -1)).unwrap();
    let scale = expected.iter().fold(0f32, |most, x| most.max(x.abs()));
    assert!(scale > 1.0, "the model says something: {scale}");
    let (rows, _) = one_by_one(shape, &ids);
    let error = worst(&rows.concat(), &expected);
    assert!(error < tolerance * scale, "{error} of {scale}");
}

#[test]
fn a_llama_agrees_with_the_reference() {
    check_against_reference(&tiny(Kind::Float), 1e-5);
}

#[test]
fn a_model_with_vector_sized_dimensions_agrees_with_the_reference() {
    let shape = DecoderShape {
        hidden: 64,
        heads: 4,
        kv_heads: 4,
        head_dim: 64,
        intermediate: 128,
        inv_freq: (0..32).map(|i| 10000f32.powf(-(i as f32) / 32.0)).collect(),
        ..tiny(Kind::Float)
    };
    check_against_reference(&shape, 1e-5);
}

#[test]
fn a_qwen2_with_bias_agrees_with_the_reference() {
    check_against_reference(
        &DecoderShape {
            qkv_bias: true,
            ..tiny(Kind::Float)
        },
        1e-5,
    );
}

#[test]
fn a_qwen3_with_head_norms_agrees_with_the_reference() {
    check_against_reference(
        &DecoderShape {
            qk_norm: true,
            ..tiny(Kind::Float)
        },
        1e-5,
    );
}

#[test]
fn an_untied_head_agrees_with_the_reference() {
    check_against_reference(
        &DecoderShape {
            tied: false,
            ..tiny(Kind::Float)
        },
        1e-5,
    );
}

#[test]
fn multi_query_attention_agrees_with_the_reference() {
    check_against_reference(
        &DecoderShape {
            kv_heads: 1,
            ..tiny(Kind::Float)
        },
        1e-5,
    );
}

#[test]
fn scaled_rotary_positions_agree_with_the_reference() {
    let mut shape = DecoderShape {
        rope_attention_scaling: 1.2,
        ..tiny(Kind::Float)
    };
    shape.inv_freq.iter_mut().for_each(|frequency| *frequency /= 4.0);
    check_against_reference(&shape, 1e-5);
}

#[test]
fn bfloat16_agrees_with_the_reference_rounded_where_values_are_stored() {
    let all = DecoderShape {
        qkv_bias: true,
        qk_norm: true,
        tied: false,
        ..tiny(Kind::BFloat16)
    };
    check_against_reference(&all, 0.01);
    check_against_reference(
        &DecoderShape {
            hidden: 41,
            intermediate: 51,
            ..tiny(Kind::BFloat16)
        },
        0.01,
    );
}

#[test]
fn the_logprob_is_of_the_tempered_logits_and_greedy_takes_the_largest() {
    let mut runner = loaded(&tiny(Kind::Float), 4, 2);
    let cool = Draw {
        params: Arc::new(SamplingParams {
            temperature: 0.7,
            ..params()
        }),
        seed: 9,
        index: 0,
        top: None,
    };
    let greedy = Draw {
        params: Arc::new(SamplingParams {
            temperature: 0.0,
            ..params()
        }),
        seed: 9,
        index: 0,
        top: None,
    };
    let ids = tokens(1, 20);
    let drawn = runner
        .forward(&ForwardBatch {
            chunks: vec![chunk(&ids, 0, &[2, 1], vec![cool, greedy])],
        })
        .unwrap()
        .drawn;
    let logits = Tensor::from_slice(&runner.logits());
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

/// Runs several sequences through random batches: random chunk lengths, order, blocks and threads. Returns logits and draws
/// after every position that ended a chunk.
struct Run {
    sequences: Vec<Vec<u32>>,
    choices: Vec<u8>,
    threads: usize,
}

fn check_any_batch_is_the_same(kind: Kind, run: &Run) -> Result<(), TestCaseError> {
    let shape = DecoderShape {
        qkv_bias: true,
        qk_norm: true,
        ..tiny(kind)
    };
    let expected: Vec<_> = run.sequences.iter().map(|ids| one_by_one(&shape, ids)).collect();
    let n = run.sequences.len();
    let mut runner = loaded(&shape, n * 10, run.threads);
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
        let logits = runner.logits();
        for (row, s) in members.iter().enumerate() {
            let (all_logits, all_drawn) = &expected[*s];
            prop_assert_eq!(
                &logits[row * shape.vocab..][..shape.vocab],
                all_logits[done[*s] - 1].as_slice()
            );
            prop_assert_eq!(drawn[row], all_drawn[done[*s] - 1]);
        }
        // A preempted sequence is computed again from its first token.
        if !preempted && choose(3) == 0 {
            done[members[0]] = 0;
            preempted = true;
        }
    }
    Ok(())
}

fn runs() -> impl Strategy<Value = Run> {
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn float32_rows_are_the_same_bits_in_any_batch_chunking_order_placement_and_thread_count(run in runs()) {
        check_any_batch_is_the_same(Kind::Float, &run)?;
    }

    #[test]
    fn bfloat16_rows_are_the_same_bits_in_any_batch_chunking_order_placement_and_thread_count(run in runs()) {
        check_any_batch_is_the_same(Kind::BFloat16, &run)?;
    }
}

#[test]
fn a_copied_block_serves_a_sibling() {
    let mut runner = loaded(&tiny(Kind::Float), 8, 2);
    let ids = tokens(1, 20);
    runner
        .forward(&ForwardBatch {
            chunks: vec![chunk(&ids, 0, &[0, 1], vec![])],
        })
        .unwrap();
    runner.copy_block(1, 5);
    let both = ForwardBatch {
        chunks: vec![
            chunk(&[7], 20, &[0, 1], vec![draw(1, 0)]),
            chunk(&[7], 20, &[0, 5], vec![draw(1, 0)]),
        ],
    };
    let drawn = runner.forward(&both).unwrap().drawn;
    assert_eq!(drawn[0], drawn[1]);
}

#[test]
fn siblings_of_a_prompt_draw_from_the_same_logits() {
    let mut runner = loaded(&tiny(Kind::Float), 8, 2);
    let ids = tokens(1, 20);
    let draws = (0..64).map(|seed| draw(seed, 0)).collect();
    let drawn = runner
        .forward(&ForwardBatch {
            chunks: vec![chunk(&ids, 0, &[0, 1], draws)],
        })
        .unwrap()
        .drawn;
    assert_eq!(runner.logits().len(), 101);
    assert!(drawn.iter().any(|other| other.token != drawn[0].token));
    let again = ForwardBatch {
        chunks: vec![chunk(&ids, 0, &[4, 3], vec![draw(63, 0)])],
    };
    assert_eq!(runner.forward(&again).unwrap().drawn[0], drawn[63]);
}

#[test]
fn new_weights_replace_the_old() {
    let shape = tiny(Kind::Float);
    let mut runner = loaded(&shape, 4, 2);
    let batch = ForwardBatch {
        chunks: vec![chunk(&tokens(1, 20), 0, &[0, 1], vec![draw(1, 0)])],
    };
    runner.forward(&batch).unwrap();
    let old = runner.logits();
    let mut weights = random_weights(&shape);
    for tensor in weights.0.values_mut() {
        *tensor = &*tensor * 1.5;
    }
    load(&mut runner, &weights).unwrap();
    runner.forward(&batch).unwrap();
    assert_ne!(runner.logits(), old);
    load(&mut runner, &random_weights(&shape)).unwrap();
    runner.forward(&batch).unwrap();
    assert_eq!(runner.logits(), old);
}

#[test]
fn a_tensor_that_is_missing_or_misshapen_is_named() {
    let shape = tiny(Kind::Float);
    let mut weights = random_weights(&shape);
    let name = "model.layers.1.mlp.up_proj.weight";
    let good = weights
        .0
        .insert(name.into(), Tensor::zeros([3, 4], (Kind::Float, Device::Cpu)))
        .unwrap();
    let mut runner = NativeRunner::new(&shape, 4, 1).unwrap();
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

#[test]
fn nan_weights_are_an_error_not_a_token() {
    let shape = tiny(Kind::Float);
    let mut weights = random_weights(&shape);
    let name = "model.layers.0.mlp.down_proj.weight".to_string();
    let bad = &weights.0[&name] * f64::NAN;
    weights.0.insert(name, bad);
    for temperature in [0.0, 1.0] {
        let mut runner = NativeRunner::new(&shape, 4, 1).unwrap();
        load(&mut runner, &weights).unwrap();
        let draw = Draw {
            params: Arc::new(SamplingParams {
                temperature,
                ..params()
            }),
            seed: 0,
            index: 0,
            top: None,
        };
        let error = runner
            .forward(&ForwardBatch {
                chunks: vec![chunk(&[1], 0, &[0], vec![draw])],
            })
            .unwrap_err();
        assert!(error.to_string().contains("NaN"), "{error}");
    }
}

#[test]
fn a_batch_that_points_outside_is_refused() {
    let mut runner = loaded(&tiny(Kind::Float), 4, 1);
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
        top: None,
    };
    refused(chunk(&[1], 0, &[0], vec![hot]), "temperature");
    assert!(runner.forward(&ForwardBatch::default()).unwrap().drawn.is_empty());
}

#[test]
fn a_shape_the_kernels_cannot_run_is_refused() {
    let odd = DecoderShape {
        head_dim: 13,
        ..tiny(Kind::Float)
    };
    assert!(
        NativeRunner::new(&odd, 4, 1)
            .unwrap_err()
            .to_string()
            .contains("head_dim 13")
    );
    let uneven = DecoderShape {
        kv_heads: 4,
        ..tiny(Kind::Float)
    };
    assert!(
        NativeRunner::new(&uneven, 4, 1)
            .unwrap_err()
            .to_string()
            .contains("kv_heads")
    );
    let half = DecoderShape {
        kind: Kind::Half,
        ..tiny(Kind::Float)
    };
    assert!(NativeRunner::new(&half, 4, 1).unwrap_err().to_string().contains("Half"));
}

#[test]
fn every_instruction_set_agrees_with_the_reference_and_is_batch_invariant() {
    const CHOICE: &str = "PPO_CPU_INSTRUCTIONS";
    if std::env::var_os(CHOICE).is_some() {
        return; // inside one of the runs below
    }
    for instructions in ["portable", "avx2", "avx512"] {
        let run = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["engine::native_runner::tests", "engine::sampler::tests"])
            .env(CHOICE, instructions)
            .output()
            .unwrap();
        assert!(
            run.status.success(),
            "{instructions}: {}",
            String::from_utf8_lossy(&run.stdout)
        );
    }
}

#[test]
fn given_tokens_are_scored_the_same_in_any_chunking_and_tops_hold_the_drawn_token() {
    let shape = tiny(Kind::Float);
    let ids = tokens(1, 40);
    let blocks = [0, 1, 2];
    let scored = |cuts: &[usize]| {
        let mut runner = loaded(&shape, 4, 2);
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
                let listed = output.tops[0].iter().find(|entry| entry.token == output.drawn[0].token);
                assert!(listed.is_none_or(|listed| (listed.logprob - output.drawn[0].logprob).abs() < 1e-5));
                assert_eq!(output.tops[0].len(), 3);
            }
        }
        scores
    };
    let whole = scored(&[0, 40]);
    assert_eq!(whole.len(), 39);
    assert_eq!(whole, scored(&[0, 1, 17, 33, 40]));
    let mut runner = loaded(&shape, 4, 1);
    let last = chunk(&ids[..39], 0, &blocks, vec![draw(1, 0)]);
    runner.forward(&ForwardBatch { chunks: vec![last] }).unwrap();
    let logits = Tensor::from_slice(&runner.logits()).log_softmax(-1, Kind::Double);
    assert!((logits.double_value(&[i64::from(ids[39])]) - f64::from(whole[38].logprob)).abs() < 1e-5);
}
