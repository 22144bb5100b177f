//! Memory of one rank of each role, estimated from the model's shape. No file is read here: the worker reads config.json.
//!
//! The estimate follows what is kept, not what an allocator reserves: weights in the model's number format; gradients, Adam's
//! two moments and (for bfloat16) the master weights in float32, shared over the actor's ranks as in ZeRO-2 (Rajbhandari
//! et al. 2020, arXiv 1910.02054, section 5); activations per token after Korthikanti et al. 2022 (arXiv 2205.05198,
//! section 4) with attention that keeps no score matrix; keys and values per token of the cache.

use serde::Serialize;

use crate::geometry::Geometry;
use crate::run_config::RunConfig;
use crate::spec::{DType, Overlap, Role};

const FLOAT32: u64 = 4;

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

    /// Values of keys and values that the cache keeps per token, over all layers.
    fn cache_values_per_token(&self) -> u64 {
        product(&[2, self.layers, self.key_value_width()])
    }

    /// Values that the backward pass needs per token and layer: inputs of the two norms and of every product, the query, keys,
    /// values and output of attention, gate, up and their product.
    fn layer_values_per_token(&self) -> u64 {
        sum(&[
            product(&[4, self.hidden]),
            product(&[2, self.query_width()]),
            product(&[2, self.key_value_width()]),
            product(&[4, self.intermediate]),
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

/// Policy and critic are updated one after the other, so only the greater of their activations and of their gradients counts.
fn actor(config: &RunConfig, geometry: &Geometry, shapes: &Shapes) -> Vec<Part> {
    let policy = &shapes.policy;
    let critic = config.model.critic.as_ref().map(|_| shapes.critic.unwrap_or(*policy));
    let tokens = product(&[config.batch.micro_train_batch_size as u64, longest(config)]);
    let number = bytes(config.model.dtype);

    let mut parts = trained("policy", policy.parameters(), config, geometry);
    let mut largest = policy.parameters();
    if let Some(critic) = &critic {
        parts.extend(trained("critic", critic.trunk_parameters(), config, geometry));
        largest = largest.max(critic.trunk_parameters());
    }
    parts.push(part(
        "gradients of one update",
        product(&[largest, FLOAT32]).div_ceil(geometry.actor_ranks.max(1)),
    ));
    let activations = [Some(*policy), critic].into_iter().flatten().map(|shape| {
        let layer = product(&[tokens, shape.layer_values_per_token(), number]);
        let inputs = product(&[tokens, shape.layers, shape.hidden, number]);
        if config.model.activation_checkpointing {
            inputs.saturating_add(layer)
        } else {
            product(&[shape.layers, layer])
        }
    });
    if config.overlap == Overlap::OneStep {
        // What engines fetch while the weights change.
        parts.push(part("published weights", product(&[policy.parameters(), number])));
    }
    parts.push(part("activations of one pass", activations.max().unwrap_or_default()));
    // Logits of the response's tokens and their gradient.
    let response = product(&[
        config.batch.micro_train_batch_size as u64,
        u64::from(config.generation.max_new_tokens),
    ]);
    parts.push(part(
        "logits and their gradient",
        product(&[2, response, policy.vocab, FLOAT32]),
    ));
    parts
}

fn trained(name: &str, parameters: u64, config: &RunConfig, geometry: &Geometry) -> Vec<Part> {
    let shard =
        |bytes_per_parameter: u64| product(&[parameters, bytes_per_parameter]).div_ceil(geometry.actor_ranks.max(1));
    let mut parts = vec![
        part(
            &format!("{name} weights"),
            product(&[parameters, bytes(config.model.dtype)]),
        ),
        part(&format!("{name} optimizer state"), shard(2 * FLOAT32)),
    ];
    if config.model.dtype == DType::Bfloat16 {
        parts.push(part(&format!("{name} float32 master weights"), shard(FLOAT32)));
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
mod tests {
    use super::*;
    use crate::manifest::tests::job;
    use crate::{Environment, resolve};

    /// Llama 3.1 8B's config.json.
    pub(crate) const LLAMA_8B: ModelShape = ModelShape {
        hidden: 4096,
        layers: 32,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        intermediate: 14_336,
        vocab: 128_256,
        tied: false,
        qkv_bias: false,
    };

    /// Qwen2.5 0.5B's config.json.
    const QWEN_HALF_B: ModelShape = ModelShape {
        hidden: 896,
        layers: 24,
        heads: 14,
        kv_heads: 2,
        head_dim: 64,
        intermediate: 4864,
        vocab: 151_936,
        tied: true,
        qkv_bias: true,
    };

    fn estimated(blocks: &str, roles: &str, shape: ModelShape) -> Vec<RoleMemory> {
        let job = job(blocks, roles);
        let config = resolve(&job, &Environment::cluster()).unwrap();
        estimate(
            &config,
            &Geometry::of(&job).unwrap(),
            &Shapes {
                policy: shape,
                critic: None,
                reward: None,
            },
        )
    }

    fn bytes_of(memory: &[RoleMemory], role: Role, name: &str) -> u64 {
        let role = memory.iter().find(|memory| memory.role == role).unwrap();
        role.parts
            .iter()
            .find(|part| part.name == name)
            .map_or(0, |part| part.bytes)
    }

    const RULE: &str = "reward: {rules: [{json: {}}]}";

    #[test]
    fn parameters_are_those_that_the_published_checkpoints_hold() {
        assert_eq!(LLAMA_8B.parameters(), 8_030_261_248);
        assert_eq!(QWEN_HALF_B.parameters(), 494_032_768);
    }

    #[test]
    fn gradients_and_optimizer_state_are_shared_over_the_actor_ranks_and_weights_are_not() {
        let one = estimated("", RULE, LLAMA_8B);
        let eight = estimated("", &format!("actor: {{gpusPerNode: 8}}, {RULE}"), LLAMA_8B);
        for name in [
            "gradients of one update",
            "policy optimizer state",
            "critic optimizer state",
            "policy float32 master weights",
        ] {
            let (one, eight) = (bytes_of(&one, Role::Actor, name), bytes_of(&eight, Role::Actor, name));
            assert_eq!(one.div_ceil(8), eight, "{name}");
            assert!(one > 0);
        }
        let weights = |memory: &[RoleMemory]| bytes_of(memory, Role::Actor, "policy weights");
        assert_eq!((weights(&one), weights(&eight)), (2 * 8_030_261_248, 2 * 8_030_261_248));
    }

    #[test]
    fn float32_doubles_the_weights_and_needs_no_master_copy() {
        let memory = estimated("algorithm: {kl: {coef: 0.1}}", RULE, QWEN_HALF_B);
        assert_eq!(bytes_of(&memory, Role::Reference, "weights"), 2 * 494_032_768);
        let text = "apiVersion: ppojob.dev/v1alpha1\nkind: PpoJob\nmetadata: {name: a}\nspec:\n  model: {policy: {path: /p}, dtype: \
                    float32}\n  prompts: {source: {path: /d}}\n  roles: {reward: {rules: [{json: {}}]}}";
        let job = crate::parse_manifest(text, "a").unwrap();
        let config = resolve(&job, &Environment::cluster()).unwrap();
        let shapes = Shapes {
            policy: QWEN_HALF_B,
            critic: None,
            reward: None,
        };
        let memory = estimate(&config, &Geometry::of(&job).unwrap(), &shapes);
        assert_eq!(bytes_of(&memory, Role::Reference, "weights"), 4 * 494_032_768);
        assert_eq!(bytes_of(&memory, Role::Actor, "policy float32 master weights"), 0);
    }

    #[test]
    fn checkpointed_activations_are_far_fewer() {
        let job = job("", RULE);
        let mut config = resolve(&job, &Environment::cluster()).unwrap();
        let shapes = Shapes {
            policy: LLAMA_8B,
            critic: None,
            reward: None,
        };
        let geometry = Geometry::of(&job).unwrap();
        let activations = |config: &RunConfig| {
            bytes_of(
                &estimate(config, &geometry, &shapes),
                Role::Actor,
                "activations of one pass",
            )
        };
        let whole = activations(&config);
        config.model.activation_checkpointing = true;
        assert!(activations(&config) * 8 < whole);
    }

    #[test]
    fn the_cache_holds_every_sample_of_full_length_unless_a_size_is_given() {
        let memory = estimated("batch: {rolloutBatchSize: 4, nSamplesPerPrompt: 2}", RULE, LLAMA_8B);
        // [keys and values] x layers x kv heads x head size x bytes, for 8 samples of 1024 + 1024 tokens.
        assert_eq!(
            bytes_of(&memory, Role::Rollout, "key/value cache"),
            8 * 2048 * 2 * 32 * 8 * 128 * 2
        );
        let memory = estimated(
            "",
            &format!("rollout: {{kvCacheMebibytes: 64, gpusPerReplica: 2}}, {RULE}"),
            LLAMA_8B,
        );
        assert_eq!(bytes_of(&memory, Role::Rollout, "key/value cache"), 32 << 20);
    }

    #[test]
    fn only_roles_with_pods_are_counted() {
        let memory = estimated(
            "algorithm: {kl: {coef: 0}, advantage: {estimator: reinforcePlusPlus}}",
            RULE,
            LLAMA_8B,
        );
        assert_eq!(
            memory.iter().map(|memory| memory.role).collect::<Vec<_>>(),
            [Role::Rollout, Role::Actor]
        );
        assert!(memory[1].parts.iter().all(|part| !part.name.contains("critic")));
    }

    #[test]
    fn impossible_shapes_saturate_instead_of_overflowing() {
        let huge = ModelShape {
            hidden: u64::MAX,
            layers: u64::MAX,
            heads: u64::MAX,
            kv_heads: u64::MAX,
            head_dim: u64::MAX,
            intermediate: u64::MAX,
            vocab: u64::MAX,
            tied: false,
            qkv_bias: true,
        };
        assert!(estimated("", RULE, huge).iter().all(|memory| memory.total == u64::MAX));
    }
}
