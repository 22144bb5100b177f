//! Memory of one rank of each role, estimated from the model's shape. No file is read here: the worker reads config.json.
//!
//! The estimate follows what is kept, not what an allocator reserves: weights in the role's number format; gradients and Adam's
//! two moments in float32, and what a bfloat16 model's weights lack to float32, shared over the actor's ranks as in ZeRO-2 (Rajbhandari
//! et al. 2020, arXiv 1910.02054, section 5); activations per token after Korthikanti et al. 2022 (arXiv 2205.05198,
//! section 4) with attention that keeps no score matrix, and what the backward pass of one layer works with; keys and values per token
//! of the cache. A pod with GPUs takes memory of its node besides ([`HostMemory`]), and a run on one machine has it all in one process
//! ([`ProcessMemory`]).

mod host;
mod model_shape;
mod one_process;
mod passes;

use serde::Serialize;

pub use self::host::HostMemory;
pub use self::model_shape::ModelShape;
use self::model_shape::product;
pub use self::one_process::ProcessMemory;
use crate::geometry::Geometry;
use crate::run_config::RunConfig;
use crate::spec::{DType, Engine, Overlap, Role};

const FLOAT32: u64 = 4;

/// Of logits at once: what a GPU keeps of them for the backward pass, and the slices that are computed with.
const MOST_LOGITS: u64 = 2 << 30;

/// The same on a CPU, which keeps 128 MiB at most and computes with slices of 4 to 16 (`native/training_logprobs.cpp` of the worker).
const MOST_LOGITS_ON_CPU: u64 = 160 << 20;

/// Tokens of a block of the builtin engine's cache where flash attention reads it, which is on a GPU in bfloat16, and most dimensions of a
/// head there (`engine/torch_runner/kernel.rs` of the worker).
const FLASH_BLOCK: u64 = 256;
const FLASH_HEAD: u64 = 256;

/// Sequences times longest sequence of one forward pass of a reference or a reward model, whose batches are counted in tokens. A longer
/// sequence comes alone.
pub const PASS_TOKENS: usize = 16_384;

/// Activations of the critic that wait for its update while the actor's is made.
const MOST_KEPT: u64 = 128 << 20;

/// Of a process on a CPU: its libraries, which are 142 MiB in a server of a tiny model, and what libtorch's passes leave with the allocator.
/// Runs of small models took 160 to 310 MiB beside the rest. A GPU's process is of its node's memory ([`HostMemory`]).
const PROCESS_ON_CPU: u64 = 256 << 20;

/// Shapes of a job's models. Those left out have the policy's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shapes {
    /// The policy's, and the reference's.
    pub policy: ModelShape,
    /// The critic's trunk.
    pub critic: Option<ModelShape>,
    /// The reward model's trunk.
    pub reward: Option<ModelShape>,
}

impl Shapes {
    /// The critic's, where the run has one.
    fn of_critic(&self, config: &RunConfig) -> Option<ModelShape> {
        config.model.critic.as_ref().map(|_| self.critic.unwrap_or(self.policy))
    }
}

/// Memory of one rank of a role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RoleMemory {
    /// The role.
    pub role: Role,
    /// What the memory holds.
    pub parts: Vec<Part>,
    /// Bytes in all.
    pub total: u64,
    /// What each of its pods takes of its node's memory beside the memory of its GPUs. None: it has none, and all of the above is of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<HostMemory>,
}

/// What a piece of memory holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// In words, such as `policy weights`.
    pub name: String,
    /// Bytes.
    pub bytes: u64,
}

/// Memory per rank (GPU, or process on the CPU) of every role that has pods, in bytes.
pub fn estimate(config: &RunConfig, geometry: &Geometry, shapes: &Shapes) -> Vec<RoleMemory> {
    let estimates = Role::ALL.map(|role| {
        let pods = geometry.role(role)?;
        let mut parts = match role {
            Role::Rollout => rollout(config, geometry, &shapes.policy, pods.gpus_per_pod),
            Role::Actor => actor(config, geometry, shapes),
            Role::Reference => reference(config, geometry, &shapes.policy),
            Role::Reward => reward(config, &shapes.reward.unwrap_or(shapes.policy)),
        };
        if pods.gpus_per_pod == 0 {
            parts.insert(0, process_on_cpu());
        }
        (pods.pods > 0).then(|| RoleMemory {
            role,
            total: total(&parts),
            parts,
            host: host::of(config, geometry, shapes, pods),
        })
    });
    estimates.into_iter().flatten().collect()
}

/// vLLM splits weights, cache and what is inside a layer over its GPUs; the builtin engine computes on one. Each engine's cache is made for
/// all samples of a step: one that is left alone by the others draws them all.
fn rollout(config: &RunConfig, geometry: &Geometry, shape: &ModelShape, gpus: u64) -> Vec<Part> {
    let on_cpu = gpus == 0;
    let cache = engine_cache(config, geometry, shape, gpus);
    let gpus = match config.rollout.engine {
        Engine::Vllm => gpus.max(1),
        Engine::Builtin => 1,
    };
    let number = bytes(config.dtype(Role::Rollout));
    let weights = product(&[shape.parameters(), number]).div_ceil(gpus);
    // vLLM takes what is left of its share of a GPU, unless it is told how much.
    let takes_the_rest =
        !on_cpu && config.rollout.engine == Engine::Vllm && config.rollout.kv_cache_mebibytes.is_none();
    let cache_name = match takes_the_rest {
        true => "key/value cache, at least",
        false => "key/value cache",
    };
    let [batch, logits] = engine_passes(config, geometry, shape, gpus);
    let mut parts = vec![part("policy weights", weights)];
    if on_cpu && config.rollout.engine == Engine::Builtin {
        // Gathered beside those that it draws with; a GPU's gather in the pod's own memory.
        parts.push(part("policy weights that arrive", weights));
        if number != bytes(config.model.dtype) {
            // One after the other, as it came and as it is packed.
            let both = number.saturating_add(bytes(config.model.dtype));
            parts.push(part(
                "weight that is converted",
                product(&[shape.largest_weight(), both]),
            ));
        }
    }
    parts.extend([
        part(cache_name, cache.div_ceil(gpus)),
        part("activations of one batch", batch),
        part("logits", logits),
    ]);
    parts
}

/// Sequences that an engine draws at once.
fn engine_sequences(config: &RunConfig, geometry: &Geometry) -> u64 {
    (config.rollout.max_sequences as u64).min(geometry.samples_per_step)
}

/// Bytes of the cache over all `gpus` of an engine's pod: as the engine is told, else what all sequences take.
fn engine_cache(config: &RunConfig, geometry: &Geometry, shape: &ModelShape, gpus: u64) -> u64 {
    let needed = product(&[engine_sequences(config, geometry), cache_of_one(config, shape, gpus)]);
    let told = config
        .rollout
        .engine
        .cache_mebibytes(gpus, config.rollout.kv_cache_mebibytes);
    told.map_or(needed, |mebibytes| mebibytes.saturating_mul(1 << 20))
}

/// Bytes of activations of an engine's batch, and of its logits, on each of the `gpus` that share its model.
fn engine_passes(config: &RunConfig, geometry: &Geometry, shape: &ModelShape, gpus: u64) -> [u64; 2] {
    let batch = product(&[
        config.rollout.max_batch_tokens as u64,
        shape.split_layer_values_per_token(gpus),
        bytes(config.dtype(Role::Rollout)),
    ]);
    let logits = product(&[engine_sequences(config, geometry), shape.vocab, FLOAT32]);
    [batch, logits]
}

/// Bytes of the cache's blocks that a sequence of the greatest length takes, over all `gpus` of an engine's pod. 0: it is on a CPU.
pub fn cache_of_one(config: &RunConfig, shape: &ModelShape, gpus: u64) -> u64 {
    let dtype = config.dtype(Role::Rollout);
    let has_flash = dtype == DType::Bfloat16 && shape.head_dim.is_multiple_of(8) && shape.head_dim <= FLASH_HEAD;
    let heads = match config.rollout.engine {
        Engine::Builtin => shape.kv_heads,
        // Each GPU keeps a head at least, so that of more GPUs than heads several keep the same one.
        Engine::Vllm => shape.kv_heads.max(gpus),
    };
    let block = match config.rollout.engine {
        Engine::Builtin if gpus > 0 && has_flash => FLASH_BLOCK,
        Engine::Builtin | Engine::Vllm => (config.rollout.block_size as u64).max(1),
    };
    let blocks = (config.longest_sequence() as u64).div_ceil(block);
    product(&[blocks, block, shape.cache_values_per_token(heads), bytes(dtype)])
}

/// Whether a rank keeps the critic's forward pass over the first update's samples from before the updates, beside the actor's, which the
/// actor's update uses up before the critic's own activations come: while it is small.
pub fn keeps_critic_pass(config: &RunConfig, critic: &ModelShape, ranks: u64) -> bool {
    config.keeps_first_pass(ranks) && activations(config, critic) <= MOST_KEPT
}

/// Bytes that a micro-batch of the longest samples keeps for the backward pass.
fn activations(config: &RunConfig, shape: &ModelShape) -> u64 {
    let tokens = product(&[
        config.batch.micro_train_batch_size as u64,
        config.longest_sequence() as u64,
    ]);
    let number = bytes(config.model.dtype);
    let adapter = config.model.adapter.as_ref();
    let adapted = adapter.map_or(0, |adapter| shape.adapter_bytes_per_token(adapter, config.model.dtype));
    let kept = product(&[shape.kept_values_per_token(), number]);
    let layer = product(&[tokens, kept.saturating_add(adapted)]);
    let inputs = product(&[tokens, shape.layers, shape.hidden, number]);
    if config.model.activation_checkpointing {
        inputs.saturating_add(layer)
    } else {
        product(&[shape.layers, layer])
    }
}

/// What one of the actor's `ranks` holds from its start to its end, whatever the samples: all weights, and its share of gradients and
/// optimizer state. Policy and critic are updated one after the other, so only the greater of their gradients counts.
pub fn held_by_rank(config: &RunConfig, ranks: u64, shapes: &Shapes) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut largest = 0;
    for model in models(config, shapes) {
        largest = largest.max(model.trained(config));
        parts.extend(learning(&model, config, ranks));
    }
    parts.push(part(
        "gradients of one update",
        product(&[largest, FLOAT32]).div_ceil(ranks.max(1)),
    ));
    parts
}

/// Bytes of a checkpoint: of all that learns the weights as they are, both moments, and what makes a bfloat16 model's weights float32
/// ones. These are 12 a parameter in either precision.
pub fn checkpoint_bytes(config: &RunConfig, shapes: &Shapes) -> u64 {
    let trained = models(config, shapes).into_iter().map(|model| model.trained(config));
    product(&[trained.fold(0, u64::saturating_add), 3 * FLOAT32])
}

/// Bytes of the trained model that the end of a run writes, whole.
pub fn result_bytes(config: &RunConfig, shapes: &Shapes) -> u64 {
    product(&[shapes.policy.parameters(), bytes(config.model.dtype)])
}

/// Policy and critic take turns, so only the greater of their activations counts, unless the critic's of the first update are kept.
fn actor(config: &RunConfig, geometry: &Geometry, shapes: &Shapes) -> Vec<Part> {
    let policy = &shapes.policy;
    let critic = shapes.of_critic(config);
    let number = bytes(config.model.dtype);
    let mut parts = held_by_rank(config, geometry.actor_ranks, shapes);
    if config.overlap == Overlap::OneStep {
        // What engines fetch while that changes which is trained.
        let copied = match &config.model.adapter {
            Some(adapter) => product(&[policy.adapter_parameters(adapter), FLOAT32]),
            None => product(&[policy.parameters(), number]),
        };
        parts.push(part("published weights", copied));
    }
    if sends_changes(config) {
        parts.push(part("marks of changed weights", policy.parameters().div_ceil(8)));
        if !is_on_gpu(geometry, Role::Actor) {
            parts.push(part("changed weights, at most", most_changed(policy)));
        }
    }
    parts.extend(passes::largest(config, geometry, policy, critic.as_ref()));
    parts
}

/// Whether engines get what a step changed (`rollout/weights/delta.rs` of the worker).
fn sends_changes(config: &RunConfig) -> bool {
    let is_builtin = config.rollout.engine == Engine::Builtin;
    is_builtin && config.model.dtype == DType::Bfloat16 && config.model.adapter.is_none()
}

/// Bytes of that, at most: an eighth of all weights, which are bfloat16.
fn most_changed(policy: &ModelShape) -> u64 {
    policy.parameters() / 4
}

/// A model that learns.
struct Learning {
    name: &'static str,
    shape: ModelShape,
    parameters: u64,
    /// Whether its weights are another model's, which an adapter leaves as they are.
    is_shared: bool,
}

impl Learning {
    /// Parameters that the optimizer updates.
    fn trained(&self, config: &RunConfig) -> u64 {
        let adapter = config.model.adapter.as_ref();
        adapter.map_or(self.parameters, |adapter| self.shape.adapter_parameters(adapter))
    }
}

fn models(config: &RunConfig, shapes: &Shapes) -> Vec<Learning> {
    let policy_learns = Learning {
        name: "policy",
        shape: shapes.policy,
        parameters: shapes.policy.parameters(),
        is_shared: false,
    };
    let critic_learns = shapes.of_critic(config).map(|shape| Learning {
        name: "critic",
        shape,
        parameters: shape.trunk_parameters(),
        is_shared: config.model.adapter.is_some() && config.model.critic.as_ref() == Some(&config.model.policy),
    });
    [Some(policy_learns), critic_learns].into_iter().flatten().collect()
}

fn learning(model: &Learning, config: &RunConfig, ranks: u64) -> Vec<Part> {
    let (name, trained) = (model.name, model.trained(config));
    let shard = |bytes_per_parameter: u64| product(&[trained, bytes_per_parameter]).div_ceil(ranks.max(1));
    let mut parts = Vec::new();
    if !model.is_shared {
        let weights = product(&[model.parameters, bytes(config.model.dtype)]);
        parts.push(part(&format!("{name} weights"), weights));
    }
    if config.model.adapter.is_some() {
        parts.push(part(&format!("{name} adapter"), product(&[trained, FLOAT32])));
    }
    parts.push(part(&format!("{name} optimizer state"), shard(2 * FLOAT32)));
    if config.model.dtype == DType::Bfloat16 && config.model.adapter.is_none() {
        parts.push(part(
            &format!("{name} weights beyond bfloat16"),
            shard(FLOAT32 - bytes(DType::Bfloat16)),
        ));
    }
    parts
}

/// The reference's, on one rank. A piece of samples is split where it has more tokens than a pass.
fn reference(config: &RunConfig, geometry: &Geometry, shape: &ModelShape) -> Vec<Part> {
    let dtype = config.dtype(Role::Reference);
    let number = bytes(dtype);
    let most = product(&[pass_tokens(config), shape.layer_values_per_token(), number]);
    vec![
        part("weights", product(&[shape.parameters(), number])),
        part(
            "activations of one pass",
            scored_activations(config, shape, dtype).min(most),
        ),
        part(
            "logits",
            scored_logits(config, shape).min(most_logits(geometry, Role::Reference)),
        ),
    ]
}

/// Tokens of a pass whose batches are counted in tokens, at most.
fn pass_tokens(config: &RunConfig) -> u64 {
    PASS_TOKENS.max(config.longest_sequence()) as u64
}

/// The reward model's, on one rank.
fn reward(config: &RunConfig, shape: &ModelShape) -> Vec<Part> {
    let number = bytes(config.dtype(Role::Reward));
    let longest = config.longest_sequence() as u64;
    let all = product(&[config.batch.samples_per_step() as u64, longest]);
    let tokens = pass_tokens(config).min(all);
    vec![
        part("weights", product(&[shape.trunk_parameters(), number])),
        part(
            "activations of one pass",
            product(&[tokens, shape.layer_values_per_token(), number]),
        ),
    ]
}

/// Bytes of a pass without gradients over a piece of the longest samples, which keeps one layer's activations at a time.
fn scored_activations(config: &RunConfig, shape: &ModelShape, dtype: DType) -> u64 {
    product(&[
        config.batch.micro_rollout_batch_size as u64,
        config.longest_sequence() as u64,
        shape.layer_values_per_token(),
        bytes(dtype),
    ])
}

/// Bytes of that pass' logits, of the response's tokens.
fn scored_logits(config: &RunConfig, shape: &ModelShape) -> u64 {
    product(&[
        config.batch.micro_rollout_batch_size as u64,
        u64::from(config.generation.max_new_tokens),
        shape.vocab,
        FLOAT32,
    ])
}

/// Of logits of a role that does not sample, at once.
fn most_logits(geometry: &Geometry, role: Role) -> u64 {
    match is_on_gpu(geometry, role) {
        true => MOST_LOGITS,
        false => MOST_LOGITS_ON_CPU,
    }
}

fn is_on_gpu(geometry: &Geometry, role: Role) -> bool {
    geometry.role(role).is_some_and(|pods| pods.gpus_per_pod > 0)
}

fn total(parts: &[Part]) -> u64 {
    parts.iter().fold(0, |sum: u64, part| sum.saturating_add(part.bytes))
}

fn process_on_cpu() -> Part {
    part("process and libraries", PROCESS_ON_CPU)
}

fn part(name: &str, bytes: u64) -> Part {
    Part {
        name: name.into(),
        bytes,
    }
}

fn bytes(dtype: DType) -> u64 {
    match dtype {
        DType::Float32 => 4,
        DType::Bfloat16 => 2,
    }
}

#[cfg(test)]
pub(crate) mod tests;
