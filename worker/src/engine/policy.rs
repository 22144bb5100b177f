//! The rollout engine of a policy on this machine.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use ppo_crds::run_config::Rollout;
use tch::{Device, Kind, Tensor};

use super::cache_size::{CacheSize, mebibytes, room};
use super::native_runner::{BLOCK_SIZE, NativeRunner};
use super::runner::Runner;
use super::torch_runner::kernel::Kernel;
use super::torch_runner::{Kernels, Placement, TorchRunner};
use super::{DecoderShape, Engine, EngineConfig};
use crate::manifest::Invalid;
use crate::model::rope::frequency_tensor;
use crate::model::{MergedWeights, ModelConfig};
use crate::native::cuda;
use crate::pace;
use crate::tokenizer::Tokenizer;

/// What an engine is made for.
#[derive(Debug)]
pub struct PolicyEngine<'a> {
    /// The policy's configuration.
    pub model: &'a ModelConfig,
    /// Precision of weights and cache.
    pub kind: Kind,
    /// What computes.
    pub device: Device,
    /// Whether training, or another model, takes memory of the same device later on.
    pub shares_device: bool,
    /// Which of our own kernels compute on a GPU.
    pub kernels: Kernels,
    /// Limits of the engine.
    pub rollout: &'a Rollout,
    /// Sequences that will be asked for at once.
    pub sequences: usize,
    /// Tokens of the longest of them, prompt and response.
    pub longest: usize,
    /// MiB of a cache on a CPU at most, where `rollout` names no size, unless one sequence takes more. None: enough for all.
    pub usual_cache: Option<u64>,
    /// Version of `weights`.
    pub policy_version: u64,
    /// For the weights to be loaded, where they are not so many that they have longer anyway ([`pace::deadline`]).
    pub start_deadline: Duration,
}

/// Starts an engine on `weights`: native kernels on a CPU, libtorch's operators on a GPU and for what the kernels do not compute.
///
/// # Errors
/// When memory does not suffice, or the device fails.
pub fn start(
    policy: &PolicyEngine,
    weights: impl Into<MergedWeights>,
    tokenizer: Option<Arc<Tokenizer>>,
) -> Result<Engine> {
    let weights = weights.into();
    let shape = shape(policy.model, policy.kind)?;
    let config = EngineConfig {
        max_batch_tokens: policy.rollout.max_batch_tokens,
        max_sequences: policy.rollout.max_sequences,
        policy_version: policy.policy_version,
        start_deadline: policy.start_deadline.max(pace::deadline(weights.bytes())),
        ends: tokenizer
            .as_ref()
            .map_or_else(Arc::default, |tokenizer| tokenizer.eos_ids().into()),
        detokenize: tokenizer.map(|tokenizer| -> super::stop::Detokenize {
            Arc::new(move |ids, skip_special| tokenizer.decode(ids, skip_special).unwrap_or_default())
        }),
        ..EngineConfig::default()
    };
    if policy.device == Device::Cpu && !shape.output_bias {
        let size = size(policy, BLOCK_SIZE, shape.native_block_bytes());
        // Here and not on the engine's thread, whose errors are words: whoever asked for too much has another exit status.
        let mut runner = native(&shape, size)?;
        let load = move || -> Result<NativeRunner> {
            runner.load(&weights)?;
            Ok(runner)
        };
        return Ok(Engine::start(load, config)?);
    }
    if policy.device == Device::Cpu {
        tracing::warn!(
            "the policy has a bias on the attention's output projection, which the rollout engine's own kernels do not \
             compute: it runs on libtorch's operators, which are slower"
        );
    }
    let (device, shares_device, kernels) = (policy.device, policy.shares_device, policy.kernels);
    let kernel = Kernel::of(&shape, device);
    let size = size(policy, kernel.block_size(), kernel.block_bytes(&shape));
    let max_sequences = policy.rollout.max_sequences;
    let make = move || {
        let room = free_memory(device)?.map(|free| room(free, TorchRunner::weight_bytes(&shape), shares_device));
        let room = room.or(size.room);
        let num_blocks = CacheSize { room, ..size }.blocks()?;
        let placement = Placement {
            device,
            kernel,
            num_blocks,
            max_sequences,
            kernels,
        };
        let mut runner = TorchRunner::new(&shape, placement)?;
        tracing::info!(
            "the rollout engine computes on {device:?} with room for {} tokens in its key/value cache ({} MiB)",
            num_blocks * size.block_size,
            (num_blocks * size.block_bytes) >> 20
        );
        runner.load(&weights)?;
        Ok(runner)
    };
    Ok(Engine::start(make, config)?)
}

/// A runner without weights.
fn native(shape: &DecoderShape, size: CacheSize) -> Result<NativeRunner> {
    let blocks = size.blocks()?;
    let threads = usize::try_from(tch::get_num_threads()).unwrap_or(1).max(1);
    let made = NativeRunner::new(shape, blocks, threads);
    made.map_err(|error| match size.mebibytes {
        Some(mebibytes) => {
            let words = format!(
                "cannot make a key/value cache of {mebibytes} MiB, as roles.rollout.kvCacheMebibytes or --kv-cache-mebibytes says: \
                 {error:#}: ask for less"
            );
            Invalid::new(words).into()
        }
        None => error.context(format!(
            "cannot make a key/value cache of {blocks} blocks of {BLOCK_SIZE} tokens"
        )),
    })
}

fn size(policy: &PolicyEngine, block_size: usize, block_bytes: usize) -> CacheSize {
    let longest = policy.longest.min(policy.model.max_positions);
    let of_one = longest.div_ceil(block_size).saturating_mul(block_bytes);
    let usual = policy.usual_cache.filter(|_| policy.device == Device::Cpu);
    CacheSize {
        mebibytes: policy.rollout.kv_cache_mebibytes,
        sequences: policy.sequences.clamp(1, policy.rollout.max_sequences),
        longest,
        block_size,
        block_bytes,
        room: usual.map(|usual| mebibytes(usual).max(of_one)),
    }
}

/// Bytes that a GPU has free. None: the device is none, or nobody can tell.
fn free_memory(device: Device) -> Result<Option<u64>> {
    let Device::Cuda(index) = device else { return Ok(None) };
    match cuda::shim() {
        Ok(shim) => Ok(Some(shim.memory(i32::try_from(index)?)?.free)),
        // The runner says why.
        Err(_) => Ok(None),
    }
}

fn shape(model: &ModelConfig, kind: Kind) -> Result<DecoderShape> {
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
        output_bias: model.output_bias,
        qk_norm: model.qk_norm,
        tied: model.tied,
        inv_freq: Vec::<f32>::try_from(&frequencies as &Tensor)?,
        kind,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::engine::hash_runner::params;
    use crate::engine::{Details, Request};
    use crate::model::Weights;

    /// Tokens of a random model, with or without a bias that the native kernels do not compute.
    fn generated(attention_bias: bool) -> Vec<u32> {
        let config = json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48, "vocab_size": 64, "rms_norm_eps": 1e-5,
            "max_position_embeddings": 64, "attention_bias": attention_bias, "tie_word_embeddings": true, "hidden_act": "silu",
        });
        let model = ModelConfig::from_json(config.as_object().unwrap().clone()).unwrap();
        let rollout = Rollout {
            engine: ppo_crds::spec::Engine::Builtin,
            replicas: 1,
            min_replicas: 1,
            block_size: 16,
            max_batch_tokens: 64,
            max_sequences: 4,
            kv_cache_mebibytes: None,
            dtype: None,
        };
        let policy = PolicyEngine {
            model: &model,
            kind: Kind::Float,
            device: Device::Cpu,
            shares_device: true,
            kernels: Kernels::default(),
            rollout: &rollout,
            sequences: 2,
            longest: 40,
            usual_cache: None,
            policy_version: 0,
            start_deadline: pace::LEAST,
        };
        let engine = start(&policy, Weights::random(&model, Kind::Float, 1).unwrap(), None).unwrap();
        let request = Request {
            prompt: vec![1, 2, 3].into(),
            seeds: vec![7],
            params: Arc::new(params(12)),
            details: Details::default(),
        };
        let completions = engine.generate(vec![request], Duration::from_secs(60)).unwrap();
        completions[0][0].tokens.clone()
    }

    #[test]
    fn a_model_that_the_native_kernels_refuse_generates_all_the_same() {
        assert_eq!(generated(true).len(), 12);
        assert_eq!(generated(false).len(), 12);
    }
}
