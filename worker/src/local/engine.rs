//! The rollout engine of a policy on this machine.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use ppo_crds::run_config::Rollout;
use tch::{Device, Kind, Tensor};

use crate::engine::native_runner::{BLOCK_SIZE, NativeRunner};
use crate::engine::runner::Runner;
use crate::engine::{DecoderShape, Engine, EngineConfig};
use crate::model::rope::frequency_tensor;
use crate::model::{MergedWeights, ModelConfig};
use crate::tokenizer::Tokenizer;

/// What an engine is made for.
#[derive(Debug)]
pub struct PolicyEngine<'a> {
    /// The policy's configuration.
    pub model: &'a ModelConfig,
    /// Precision of weights and cache.
    pub kind: Kind,
    /// Limits of the engine.
    pub rollout: &'a Rollout,
    /// Sequences that will be asked for at once.
    pub sequences: usize,
    /// Tokens of the longest of them, prompt and response.
    pub longest: usize,
    /// Version of `weights`.
    pub policy_version: u64,
}

/// Starts an engine on `weights`.
///
/// # Errors
/// When the model has a part the native kernels do not compute, or memory does not suffice.
pub fn start(
    policy: &PolicyEngine,
    weights: impl Into<MergedWeights>,
    tokenizer: Option<Arc<Tokenizer>>,
) -> Result<Engine> {
    let weights = weights.into();
    let shape = shape(policy.model, policy.kind)?;
    let blocks = blocks(policy, shape.block_bytes());
    let config = EngineConfig {
        max_batch_tokens: policy.rollout.max_batch_tokens,
        max_sequences: policy.rollout.max_sequences,
        policy_version: policy.policy_version,
        detokenize: tokenizer.map(|tokenizer| -> crate::engine::stop::Detokenize {
            Arc::new(move |ids| tokenizer.decode(ids, true).unwrap_or_default())
        }),
        ..EngineConfig::default()
    };
    let threads = usize::try_from(tch::get_num_threads()).unwrap_or(1).max(1);
    let make = move || {
        let mut runner = NativeRunner::new(&shape, blocks, threads)
            .with_context(|| format!("cannot make a key/value cache of {blocks} blocks of {BLOCK_SIZE} tokens"))?;
        runner.load(&weights)?;
        Ok(runner)
    };
    Ok(Engine::start(make, config)?)
}

/// Blocks of the cache: what `kvCacheMebibytes` holds, else enough for every sequence that runs at once.
fn blocks(policy: &PolicyEngine, block_bytes: usize) -> usize {
    if let Some(mebibytes) = policy.rollout.kv_cache_mebibytes {
        return (mebibytes as usize * (1 << 20) / block_bytes).max(1);
    }
    let sequences = policy.sequences.clamp(1, policy.rollout.max_sequences);
    sequences * policy.longest.min(policy.model.max_positions).div_ceil(BLOCK_SIZE)
}

fn shape(model: &ModelConfig, kind: Kind) -> Result<DecoderShape> {
    ensure!(
        !model.output_bias,
        "the rollout engine does not compute a bias on the attention's output projection"
    );
    let size = |value: i64| usize::try_from(value).context("a size in config.json is negative");
    let frequencies = frequency_tensor(model.rope_scaling, model.rope_theta, model.head_dim, Device::Cpu)?;
    Ok(DecoderShape {
        layers: size(model.layers)?,
        hidden: size(model.hidden)?,
        heads: size(model.heads)?,
        kv_heads: size(model.kv_heads)?,
        head_dim: size(model.head_dim)?,
        intermediate: size(model.intermediate)?,
        vocab: size(model.vocab)?,
        max_positions: model.max_positions,
        rms_eps: model.norm_eps as f32,
        qkv_bias: model.qkv_bias,
        qk_norm: model.qk_norm,
        tied: model.tied,
        inv_freq: Vec::<f32>::try_from(&frequencies as &Tensor)?,
        rope_attention_scaling: 1.0,
        kind,
    })
}
