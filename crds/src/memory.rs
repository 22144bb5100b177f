//! Memory of one rank of each role, estimated from the model's shape. No file is read here: the worker reads config.json.
//!
//! The estimate follows what is kept, not what an allocator reserves: weights in the model's number format; gradients and Adam's
//! two moments in float32, and what a bfloat16 model's weights lack to float32, shared over the actor's ranks as in ZeRO-2 (Rajbhandari
//! et al. 2020, arXiv 1910.02054, section 5); activations per token after Korthikanti et al. 2022 (arXiv 2205.05198,
//! section 4) with attention that keeps no score matrix; keys and values per token of the cache.

use serde::Serialize;

use crate::geometry::Geometry;
use crate::run_config::RunConfig;
use crate::spec::{AdapterSpec, DType, Overlap, Projection, Role};

const FLOAT32: u64 = 4;

/// Of logits at once: what a GPU keeps of them for the backward pass, and the slices that are computed with.
const MOST_LOGITS: u64 = 2 << 30;

/// Activations of the critic that wait for its update while the actor's is made.
const MOST_KEPT: u64 = 128 << 20;

/// The numbers of a decoder's config.json that decide its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelShape {
    /// `hidden_size`.
    pub hidden: u64,
    /// `num_hidden_layers`.
    pub layers: u64,
    /// `num_attention_heads`.
    pub heads: u64,
    /// `num_key_value_heads`.
    pub kv_heads: u64,
    /// `head_dim`, or `hidden_size / num_attention_heads`.
    pub head_dim: u64,
    /// `intermediate_size`.
    pub intermediate: u64,
    /// `vocab_size`.
    pub vocab: u64,
    /// `tie_word_embeddings`.
    pub tied: bool,
    /// Whether the q, k and v projections have a bias (Qwen2).
    pub qkv_bias: bool,
}

impl ModelShape {
    /// Parameters with the language-model head.
    pub fn parameters(&self) -> u64 {
        let head = if self.tied {
            0
        } else {
            product(&[self.vocab, self.hidden])
        };
        self.trunk_parameters().saturating_add(head)
    }

    /// Parameters without a head: a critic's or reward model's, but for its one output.
    pub fn trunk_parameters(&self) -> u64 {
        let (query, key_value) = (self.query_width(), self.key_value_width());
        let qkv = query.saturating_add(key_value.saturating_mul(2));
        let attention = product(&[self.hidden, qkv.saturating_add(query)]);
        let bias = if self.qkv_bias { qkv } else { 0 };
        let mlp = product(&[3, self.hidden, self.intermediate]);
        let norms = self.hidden.saturating_mul(2);
        let layer = sum(&[attention, bias, mlp, norms]);
        sum(&[
            product(&[self.vocab, self.hidden]),
            product(&[self.layers, layer]),
            self.hidden,
        ])
    }

    /// Parameters of an adapter: `rank` rows and columns at each target of each layer.
    pub fn adapter_parameters(&self, adapter: &AdapterSpec) -> u64 {
        let widths = adapter.targets.iter().map(|target| {
            let (input, output) = self.projection(*target);
            input.saturating_add(output)
        });
        let layer = widths.fold(0, u64::saturating_add);
        product(&[u64::from(adapter.rank), self.layers, layer])
    }

    /// Input and output width of a projection.
    fn projection(&self, projection: Projection) -> (u64, u64) {
        match projection {
            Projection::Query => (self.hidden, self.query_width()),
            Projection::Key | Projection::Value => (self.hidden, self.key_value_width()),
            Projection::Output => (self.query_width(), self.hidden),
            Projection::Gate | Projection::Up => (self.hidden, self.intermediate),
            Projection::Down => (self.intermediate, self.hidden),
        }
    }

    /// Bytes that the backward pass of an adapter needs per token and layer besides what the layer keeps: each product's `x A^T` in
    /// float32, and the inputs in float32, which projections of one input share. Of these the layer has attention's output alone.
    fn adapter_bytes_per_token(&self, adapter: &AdapterSpec, dtype: DType) -> u64 {
        use Projection::{Down, Gate, Key, Output, Query, Up, Value};
        let low = product(&[u64::from(adapter.rank), adapter.targets.len() as u64, FLOAT32]);
        let more = if dtype == DType::Float32 { 0 } else { FLOAT32 };
        let inputs: [(&[Projection], u64, u64); 4] = [
            (&[Query, Key, Value], self.hidden, FLOAT32),
            (&[Output], self.query_width(), more),
            (&[Gate, Up], self.hidden, FLOAT32),
            (&[Down], self.intermediate, FLOAT32),
        ];
        let wanted = inputs
            .iter()
            .filter(|(of, ..)| of.iter().any(|one| adapter.targets.contains(one)));
        wanted.fold(low, |sum, (_, width, each)| {
            sum.saturating_add(product(&[*width, *each]))
        })
    }

    /// Values of keys and values that the cache keeps per token, over all layers.
    fn cache_values_per_token(&self) -> u64 {
        product(&[2, self.layers, self.key_value_width()])
    }

    /// Values of one layer per token: inputs of the two norms and of every product, the query, keys, values and output of attention,
    /// gate, up and their product.
    fn layer_values_per_token(&self) -> u64 {
        let made_again = sum(&[product(&[2, self.hidden]), self.intermediate]);
        self.kept_values_per_token().saturating_add(made_again)
    }

    /// Those that are kept for the backward pass, which makes what the norms gave, and the product of gate and up, once more.
    fn kept_values_per_token(&self) -> u64 {
        sum(&[
            product(&[2, self.hidden]),
            product(&[2, self.query_width()]),
            product(&[2, self.key_value_width()]),
            product(&[2, self.intermediate]),
        ])
    }

    fn query_width(&self) -> u64 {
        product(&[self.heads, self.head_dim])
    }

    fn key_value_width(&self) -> u64 {
        product(&[self.kv_heads, self.head_dim])
    }
}

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
        let parts = match role {
            Role::Rollout => rollout(config, geometry, &shapes.policy, pods.gpus_per_pod.max(1)),
            Role::Actor => actor(config, geometry, shapes),
            Role::Reference => forward_only(config, &shapes.policy, true),
            Role::Reward => forward_only(config, &shapes.reward.unwrap_or(shapes.policy), false),
        };
        let total = parts.iter().fold(0, |sum: u64, part| sum.saturating_add(part.bytes));
        (pods.pods > 0).then_some(RoleMemory { role, parts, total })
    });
    estimates.into_iter().flatten().collect()
}

/// An engine splits weights and cache over its GPUs.
fn rollout(config: &RunConfig, geometry: &Geometry, shape: &ModelShape, gpus: u64) -> Vec<Part> {
    let number = bytes(config.model.dtype);
    let block = config.rollout.block_size as u64;
    let sequences = (config.rollout.max_sequences as u64).min(geometry.samples_per_engine);
    let slots = longest(config).div_ceil(block.max(1)).saturating_mul(block);
    let needed = product(&[sequences, slots, shape.cache_values_per_token(), number]);
    let cache = config
        .rollout
        .kv_cache_mebibytes
        .map_or(needed, |mebibytes| mebibytes.saturating_mul(1 << 20));
    let batch = product(&[
        config.rollout.max_batch_tokens as u64,
        shape.layer_values_per_token(),
        number,
    ]);
    vec![
        part("policy weights", product(&[shape.parameters(), number]).div_ceil(gpus)),
        part("key/value cache", cache.div_ceil(gpus)),
        part("activations of one batch", batch.div_ceil(gpus)),
        part("logits", product(&[sequences, shape.vocab, FLOAT32])),
    ]
}

/// Whether a rank keeps the critic's forward pass over the first update's samples from before the updates, beside the actor's, which the
/// actor's update uses up before the critic's own activations come: while it is small.
pub fn keeps_critic_pass(config: &RunConfig, critic: &ModelShape, ranks: u64) -> bool {
    config.keeps_first_pass(ranks) && activations(config, critic) <= MOST_KEPT
}

/// Bytes that a micro-batch of the longest samples keeps for the backward pass.
fn activations(config: &RunConfig, shape: &ModelShape) -> u64 {
    let tokens = product(&[config.batch.micro_train_batch_size as u64, longest(config)]);
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

/// Policy and critic are updated one after the other, so only the greater of their gradients counts, and of their activations unless
/// the critic's of the first update are kept.
fn actor(config: &RunConfig, geometry: &Geometry, shapes: &Shapes) -> Vec<Part> {
    let policy = &shapes.policy;
    let critic = config.model.critic.as_ref().map(|_| shapes.critic.unwrap_or(*policy));
    let number = bytes(config.model.dtype);
    let mut parts = Vec::new();
    let mut largest = 0;
    for model in models(config, policy, critic.as_ref()) {
        largest = largest.max(model.trained(config));
        parts.extend(learning(&model, config, geometry));
    }
    parts.push(part(
        "gradients of one update",
        product(&[largest, FLOAT32]).div_ceil(geometry.actor_ranks.max(1)),
    ));
    if config.overlap == Overlap::OneStep {
        // What engines fetch while the weights change.
        parts.push(part("published weights", product(&[policy.parameters(), number])));
    }
    let pass = activations(config, policy);
    parts.push(match critic.map(|critic| (critic, activations(config, &critic))) {
        Some((critic, its)) if keeps_critic_pass(config, &critic, geometry.actor_ranks) => {
            part("activations of two passes", pass.saturating_add(its))
        }
        its => part("activations of one pass", pass.max(its.map_or(0, |(_, its)| its))),
    });
    // Logits of the response's tokens and their gradient, which go by in slices where they are many.
    let response = product(&[
        config.batch.micro_train_batch_size as u64,
        u64::from(config.generation.max_new_tokens),
    ]);
    parts.push(part(
        "logits and their gradient",
        product(&[2, response, policy.vocab, FLOAT32]).min(MOST_LOGITS),
    ));
    parts
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

fn models(config: &RunConfig, policy: &ModelShape, critic: Option<&ModelShape>) -> Vec<Learning> {
    let policy_learns = Learning {
        name: "policy",
        shape: *policy,
        parameters: policy.parameters(),
        is_shared: false,
    };
    let critic_learns = critic.map(|shape| Learning {
        name: "critic",
        shape: *shape,
        parameters: shape.trunk_parameters(),
        is_shared: config.model.adapter.is_some() && config.model.critic.as_ref() == Some(&config.model.policy),
    });
    [Some(policy_learns), critic_learns].into_iter().flatten().collect()
}

fn learning(model: &Learning, config: &RunConfig, geometry: &Geometry) -> Vec<Part> {
    let (name, trained) = (model.name, model.trained(config));
    let shard =
        |bytes_per_parameter: u64| product(&[trained, bytes_per_parameter]).div_ceil(geometry.actor_ranks.max(1));
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

/// A frozen model keeps one layer's activations at a time.
fn forward_only(config: &RunConfig, shape: &ModelShape, has_head: bool) -> Vec<Part> {
    let micro = config.batch.micro_rollout_batch_size as u64;
    let parameters = if has_head {
        shape.parameters()
    } else {
        shape.trunk_parameters()
    };
    let number = bytes(config.model.dtype);
    let mut parts = vec![
        part("weights", product(&[parameters, number])),
        part(
            "activations of one pass",
            product(&[micro, longest(config), shape.layer_values_per_token(), number]),
        ),
    ];
    if has_head {
        let response = product(&[micro, u64::from(config.generation.max_new_tokens)]);
        parts.push(part("logits", product(&[response, shape.vocab, FLOAT32])));
    }
    parts
}

fn part(name: &str, bytes: u64) -> Part {
    Part {
        name: name.into(),
        bytes,
    }
}

/// Longest sequence in tokens.
fn longest(config: &RunConfig) -> u64 {
    (config.prompts.max_length as u64).saturating_add(u64::from(config.generation.max_new_tokens))
}

fn bytes(dtype: DType) -> u64 {
    match dtype {
        DType::Float32 => 4,
        DType::Bfloat16 => 2,
    }
}

fn product(factors: &[u64]) -> u64 {
    factors
        .iter()
        .fold(1, |product, factor| product.saturating_mul(*factor))
}

fn sum(terms: &[u64]) -> u64 {
    terms.iter().fold(0, |sum, term| sum.saturating_add(*term))
}

#[cfg(test)]
mod tests;
