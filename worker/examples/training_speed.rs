//! Time of the forward and backward pass of a policy, as one micro-batch of PPO runs it.
//!
//! `cargo run --release --example training_speed -- MODEL_DIR {float32|bfloat16} [SEQUENCES] [PROMPT] [RESPONSE]`

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use ppo_worker::model::{Decoder, ModelConfig, Targets, TokenBatch, Weights, token_logprobs};
use tch::{Kind, Tensor};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let folder = Path::new(arguments.first().context("which model folder?")?);
    let kind = if arguments.get(1).is_some_and(|name| name == "bfloat16") {
        Kind::BFloat16
    } else {
        Kind::Float
    };
    let number = |place: usize, default: usize| arguments.get(place).map_or(Ok(default), |text| text.parse());
    let (sequences, prompt, response) = (number(2, 8)?, number(3, 44)?, number(4, 64)?);

    let config = ModelConfig::read(folder)?;
    let weights = Weights::load(folder, &config, kind)?;
    weights.require_gradients()?;
    let decoder = Decoder::new(&config, &weights)?;
    let length = prompt + response;
    let vocab = config.vocab as usize;
    let ids: Vec<Vec<u32>> = (0..sequences)
        .map(|row| {
            (0..length)
                .map(|place| ((row * 7919 + place * 104_729) % vocab) as u32)
                .collect()
        })
        .collect();
    let batch = TokenBatch::new(&ids)?;
    // The row before each response token predicts it.
    let rows: Vec<i64> = batch
        .starts()
        .iter()
        .flat_map(|start| start + prompt - 1..start + length - 1)
        .map(|row| row as i64)
        .collect();
    let targets: Vec<i64> = ids
        .iter()
        .flat_map(|row| row[prompt..].iter().map(|id| i64::from(*id)))
        .collect();
    let (rows, targets) = (Tensor::from_slice(&rows), Tensor::from_slice(&targets));

    // Two floating-point operations per weight and row; the embedding is a look-up, the output sees response rows alone.
    let head = (config.vocab * config.hidden) as f64;
    let tied = if config.tied { 1.0 } else { 2.0 };
    let trunk = config.shape().parameters() as f64 - tied * head;
    let forward_flops = 2.0 * (trunk * (sequences * length) as f64 + head * (sequences * response) as f64);

    let (mut forward, mut backward) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..5 {
        let start = Instant::now();
        let hidden = decoder.hidden_of(&batch, &rows)?;
        let loss = -token_logprobs(&decoder, &hidden, Targets::of(&targets)?, 1.0, None)?
            .logprobs
            .mean(Kind::Float);
        let middle = Instant::now();
        loss.backward();
        forward = forward.min((middle - start).as_secs_f64());
        backward = backward.min(middle.elapsed().as_secs_f64());
        for (_, mut parameter) in decoder.parameters() {
            parameter.zero_grad();
        }
    }
    println!(
        "{sequences} x {length} tokens, {kind:?}, {} threads: forward {:.1} ms ({:.0} GFLOP/s), backward {:.1} ms ({:.0} GFLOP/s)",
        tch::get_num_threads(),
        forward * 1e3,
        forward_flops / forward / 1e9,
        backward * 1e3,
        2.0 * forward_flops / backward / 1e9,
    );
    Ok(())
}
