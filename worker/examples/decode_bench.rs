//! Throughput of the native CPU decoder without a scheduler: a static batch of random prompts, all submitted at once, 64 new
//! tokens each. tok/s = batch x 64 / wall seconds, prefill and sampling included; median of the runs.
//!
//! `decode_bench {small|nano} {float32|bfloat16} [BATCHES] [RUNS] [THREADS]`

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use ppo_worker::engine::decoder_shape::DecoderShape;
use ppo_worker::engine::native_runner::{BLOCK_SIZE, NativeRunner};
use ppo_worker::engine::request::SamplingParams;
use ppo_worker::engine::runner::{Chunk, Draw, ForwardBatch, Runner};
use ppo_worker::model::Weights;
use tch::{Device, Kind, Tensor};

const NEW_TOKENS: usize = 64;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let argument = |i: usize, default: &str| args.get(i).cloned().unwrap_or_else(|| default.into());
    let shape = shape(&argument(0, "small"), &argument(1, "float32"))?;
    let batches: Vec<usize> = argument(2, "1,8,32")
        .split(',')
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    let runs: usize = argument(3, "5").parse()?;
    let threads: usize = argument(4, "2").parse()?;

    let weights = random_weights(&shape);
    let start = Instant::now();
    let blocks_per_sequence = (64 + NEW_TOKENS).div_ceil(BLOCK_SIZE);
    let largest = batches.iter().copied().max().context("no batch given")?;
    let mut runner = NativeRunner::new(&shape, largest * blocks_per_sequence, threads)?;
    runner.load(&weights)?;
    drop(weights);
    println!(
        "ready in {:.2} s, {} instructions, {threads} threads",
        start.elapsed().as_secs_f64(),
        ppo_worker::native::engine::instructions()
    );
    for batch in batches {
        let (mut rates, mut prefills) = (Vec::new(), Vec::new());
        for run in 0..=runs {
            let (prefill, total) = generate(&mut runner, batch, shape.vocab, blocks_per_sequence)?;
            if run > 0 {
                rates.push((batch * NEW_TOKENS) as f64 / total);
                prefills.push(prefill * 1e3);
            }
        }
        rates.sort_by(f64::total_cmp);
        prefills.sort_by(f64::total_cmp);
        println!(
            "batch {batch:3}: {:8.1} tok/s (from {:.1} to {:.1}), prefill {:.1} ms, resident {} MiB",
            rates[runs / 2],
            rates[0],
            rates[runs - 1],
            prefills[runs / 2],
            resident_mib()?
        );
    }
    Ok(())
}

/// Seconds until the first tokens, and until the last.
fn generate(runner: &mut NativeRunner, batch: usize, vocab: usize, blocks_per_sequence: usize) -> Result<(f64, f64)> {
    let params = Arc::new(SamplingParams {
        temperature: 1.0,
        top_p: 1.0,
        top_k: 0,
        min_p: 0.0,
        max_new_tokens: NEW_TOKENS,
        min_new_tokens: 0,
        stop_token_ids: vec![],
        stop: vec![],
    });
    let mut positions: Vec<usize> = vec![0; batch];
    let mut next: Vec<Vec<u32>> = (0..batch).map(|i| prompt(i, vocab)).collect();
    let start = Instant::now();
    let mut prefill = 0.0;
    for index in 0..NEW_TOKENS {
        let chunks = (0..batch)
            .map(|i| Chunk {
                tokens: std::mem::take(&mut next[i]),
                start: positions[i],
                blocks: (0..blocks_per_sequence)
                    .map(|b| (i * blocks_per_sequence + b) as u32)
                    .collect(),
                draws: vec![Draw {
                    params: params.clone(),
                    seed: i as u64,
                    index,
                }],
            })
            .collect();
        let forward = ForwardBatch { chunks };
        let drawn = runner.forward(&forward)?;
        for (i, drawn) in drawn.iter().enumerate() {
            positions[i] += forward.chunks[i].tokens.len();
            next[i] = vec![drawn.token];
        }
        if index == 0 {
            prefill = start.elapsed().as_secs_f64();
        }
    }
    Ok((prefill, start.elapsed().as_secs_f64()))
}

/// Lengths of the prompts: 32 draws from 24 to 64, the ones every engine of the comparison is given.
const LENGTHS: [usize; 32] = [
    52, 57, 42, 40, 27, 60, 43, 56, 38, 56, 50, 53, 41, 44, 37, 60, 53, 61, 43, 59, 46, 34, 35, 60, 47, 31, 24, 64, 30,
    49, 55, 63,
];

fn prompt(i: usize, vocab: usize) -> Vec<u32> {
    (0..LENGTHS[i % LENGTHS.len()])
        .map(|j| ((i * 7919 + j * 104_729) % vocab) as u32)
        .collect()
}

fn shape(model: &str, dtype: &str) -> Result<DecoderShape> {
    let (layers, hidden, heads, kv_heads, intermediate, vocab) = match model {
        "small" => (30, 576, 9, 3, 1536, 49152),
        "nano" => (4, 256, 4, 2, 688, 512),
        other => bail!("model {other}: small or nano"),
    };
    Ok(DecoderShape {
        layers,
        hidden,
        heads,
        kv_heads,
        head_dim: 64,
        intermediate,
        vocab,
        max_positions: 2048,
        rms_eps: 1e-5,
        qkv_bias: false,
        qk_norm: false,
        tied: true,
        inv_freq: (0..32).map(|i| 10000f32.powf(-(i as f32) / 32.0)).collect(),
        rope_attention_scaling: 1.0,
        kind: match dtype {
            "float32" => Kind::Float,
            "bfloat16" => Kind::BFloat16,
            other => bail!("dtype {other}: float32 or bfloat16"),
        },
    })
}

fn random_weights(s: &DecoderShape) -> Weights {
    tch::manual_seed(0);
    let mut weights = Weights::default();
    let mut put = |name: String, size: &[usize], scale: f64| {
        let size: Vec<i64> = size.iter().map(|n| *n as i64).collect();
        let values = match scale {
            0.0 => Tensor::ones(&size, (s.kind, Device::Cpu)),
            scale => (Tensor::randn(&size, (Kind::Float, Device::Cpu)) * scale).to_kind(s.kind),
        };
        weights.0.insert(name, values);
    };
    let (q, kv) = (s.heads * s.head_dim, s.kv_heads * s.head_dim);
    put("model.embed_tokens.weight".into(), &[s.vocab, s.hidden], 0.02);
    put("model.norm.weight".into(), &[s.hidden], 0.0);
    for i in 0..s.layers {
        let mut at =
            |name: &str, size: &[usize], scale: f64| put(format!("model.layers.{i}.{name}.weight"), size, scale);
        at("input_layernorm", &[s.hidden], 0.0);
        at("post_attention_layernorm", &[s.hidden], 0.0);
        at("self_attn.q_proj", &[q, s.hidden], 0.02);
        at("self_attn.k_proj", &[kv, s.hidden], 0.02);
        at("self_attn.v_proj", &[kv, s.hidden], 0.02);
        at("self_attn.o_proj", &[s.hidden, q], 0.02);
        at("mlp.gate_proj", &[s.intermediate, s.hidden], 0.02);
        at("mlp.up_proj", &[s.intermediate, s.hidden], 0.02);
        at("mlp.down_proj", &[s.hidden, s.intermediate], 0.02);
    }
    weights
}

/// Resident memory now, from the kernel's count of pages.
fn resident_mib() -> Result<usize> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: usize = statm
        .split(' ')
        .nth(1)
        .context("/proc/self/statm has no second number")?
        .parse()?;
    Ok((pages * 4096) >> 20)
}
