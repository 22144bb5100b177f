use super::*;
use crate::manifest::tests::job;
use crate::spec::{AdapterSpec, DType, ModelSource};
use crate::{Environment, PpoJob, resolve};

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
    qk_norm: false,
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
    qk_norm: false,
};

/// Qwen2.5 7B's config.json.
const QWEN_7B: ModelShape = ModelShape {
    hidden: 3584,
    layers: 28,
    heads: 28,
    kv_heads: 4,
    head_dim: 128,
    intermediate: 18_944,
    vocab: 152_064,
    tied: false,
    qkv_bias: true,
    qk_norm: false,
};

/// Qwen3 0.6B's config.json.
const QWEN_3: ModelShape = ModelShape {
    hidden: 1024,
    layers: 28,
    heads: 16,
    kv_heads: 8,
    head_dim: 128,
    intermediate: 3072,
    vocab: 151_936,
    tied: true,
    qkv_bias: false,
    qk_norm: true,
};

fn estimated(blocks: &str, roles: &str, shape: ModelShape) -> Vec<RoleMemory> {
    estimated_of(&job(blocks, roles), shape)
}

fn estimated_of(job: &PpoJob, shape: ModelShape) -> Vec<RoleMemory> {
    let config = resolve(job, &Environment::cluster()).unwrap();
    let shapes = Shapes {
        policy: shape,
        critic: None,
        reward: None,
    };
    estimate(&config, &Geometry::of(job).unwrap(), &shapes)
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
    assert_eq!(QWEN_7B.parameters(), 7_615_616_512);
    assert_eq!(QWEN_3.parameters(), 596_049_920);
}

#[test]
fn eight_gpus_hold_a_policy_of_7b_and_its_critic_in_48_gib_each() {
    let (policy, critic) = (7_615_616_512, QWEN_7B.trunk_parameters());
    assert_eq!(critic, 7_070_619_136);
    let job = job("", &format!("actor: {{gpusPerNode: 8}}, {RULE}"));
    let config = resolve(&job, &Environment::cluster()).unwrap();
    let shapes = Shapes {
        policy: QWEN_7B,
        critic: None,
        reward: None,
    };
    // Bfloat16 weights whole; of two moments and of the master weights' other half an eighth, and of one model's gradients.
    let by_hand = 2 * (policy + critic) + (8 + 2) * (policy + critic) / 8 + 4 * policy / 8;
    assert_eq!(total(&held_by_rank(&config, 8, &shapes)), by_hand);
    assert_eq!(by_hand >> 20, 49_150);
}

#[test]
fn gradients_and_optimizer_state_are_shared_over_the_actor_ranks_and_weights_are_not() {
    let one = estimated("", RULE, LLAMA_8B);
    let eight = estimated("", &format!("actor: {{gpusPerNode: 8}}, {RULE}"), LLAMA_8B);
    for name in [
        "gradients of one update",
        "policy optimizer state",
        "critic optimizer state",
        "policy weights beyond bfloat16",
    ] {
        let (one, eight) = (bytes_of(&one, Role::Actor, name), bytes_of(&eight, Role::Actor, name));
        assert_eq!(one.div_ceil(8), eight, "{name}");
        assert!(one > 0);
    }
    let weights = |memory: &[RoleMemory]| bytes_of(memory, Role::Actor, "policy weights");
    assert_eq!((weights(&one), weights(&eight)), (2 * 8_030_261_248, 2 * 8_030_261_248));
}

#[test]
fn a_checkpoint_has_12_bytes_of_each_parameter_that_is_trained() {
    let shapes = Shapes {
        policy: LLAMA_8B,
        critic: None,
        reward: None,
    };
    let mut job = job("", RULE);
    let config = resolve(&job, &Environment::cluster()).unwrap();
    let both = LLAMA_8B.parameters() + LLAMA_8B.trunk_parameters();
    assert_eq!(checkpoint_bytes(&config, &shapes), 12 * both);
    assert_eq!(result_bytes(&config, &shapes), 2 * LLAMA_8B.parameters());
    job.spec.model.adapter = Some(AdapterSpec::default());
    let config = resolve(&job, &Environment::cluster()).unwrap();
    assert_eq!(checkpoint_bytes(&config, &shapes), 2 * 12 * 41_943_040);
}

#[test]
fn the_largest_policies_on_the_page_about_memory_are_those_that_four_fifths_of_a_gpu_hold() {
    let shapes = Shapes {
        policy: LLAMA_8B,
        critic: None,
        reward: None,
    };
    let largest = |config: &RunConfig, ranks: u64, gigabytes: u64| {
        let parts = held_by_rank(config, ranks, &shapes);
        let held: u64 = parts.iter().map(|part| part.bytes).sum();
        let parameters = u128::from(LLAMA_8B.parameters()) * u128::from(gigabytes) * 800_000_000 / u128::from(held);
        format!("{}B", parameters / 1_000_000_000)
    };
    let row = |name: &str, blocks: &str, adapter: Option<AdapterSpec>| {
        let mut job = job(blocks, RULE);
        job.spec.model.adapter = adapter;
        let config = resolve(&job, &Environment::cluster()).unwrap();
        let cells = [8, 16, 64].map(|ranks| [80, 141].map(|size| largest(&config, ranks, size)).join(", "));
        format!("| {name} | {} |", cells.join(" | "))
    };
    let page = include_str!("../../../docs/tuning.md");
    let without_critic = "algorithm: {advantage: {estimator: reinforcePlusPlus}}";
    for row in [
        row("all weights, with a critic of the policy's size", "", None),
        row("all weights, without a critic", without_critic, None),
        row(
            "an adapter, whose critic starts from the policy",
            "",
            Some(AdapterSpec::default()),
        ),
    ] {
        assert!(page.contains(&row), "docs/tuning.md lacks the row {row}");
    }
}

#[test]
fn float32_doubles_the_weights_and_needs_no_master_copy() {
    let memory = estimated("algorithm: {kl: {coef: 0.1}}", RULE, QWEN_HALF_B);
    assert_eq!(bytes_of(&memory, Role::Reference, "weights"), 2 * 494_032_768);
    let text = "apiVersion: ppojob.dev/v1alpha1\nkind: PpoJob\nmetadata: {name: a}\nspec:\n  model: {policy: {path: /p}, dtype: \
                float32}\n  prompts: {source: {path: /d.jsonl}}\n  roles: {reward: {rules: [{json: {}}]}}";
    let memory = estimated_of(&crate::parse_manifest(text, "a").unwrap(), QWEN_HALF_B);
    assert_eq!(bytes_of(&memory, Role::Reference, "weights"), 4 * 494_032_768);
    assert_eq!(bytes_of(&memory, Role::Actor, "policy weights beyond bfloat16"), 0);
}

#[test]
fn every_role_holds_its_weights_in_its_own_number_format() {
    let kl = "algorithm: {kl: {coef: 0.1}}";
    let cpus = "actor: {gpusPerNode: 0}, reference: {gpusPerNode: 0";
    let of = |roles: &str, dtype: DType| {
        let mut job = job(kl, &format!("{cpus}{roles}"));
        job.spec.model.dtype = dtype;
        estimated_of(&job, QWEN_HALF_B)
    };
    let reward = "reward: {model: {source: {path: /rm}}, placement: {gpusPerNode: 0}}";
    let model = |dtype: &str| reward.replace("/rm}", &format!("/rm}}, dtype: {dtype}"));
    let plain = of(&format!("}}, rollout: {{gpusPerReplica: 0}}, {reward}"), DType::Float32);
    let mixed = format!(
        ", dtype: bfloat16}}, rollout: {{gpusPerReplica: 0, dtype: bfloat16}}, {}",
        model("bfloat16")
    );
    let mixed = of(&mixed, DType::Float32);
    let half = |role: Role, name: &str| {
        let (whole, half) = (bytes_of(&plain, role, name), bytes_of(&mixed, role, name));
        assert!(whole > 0 && whole == 2 * half, "{role:?}, {name}: {whole} and {half}");
    };
    for name in [
        "policy weights",
        "policy weights that arrive",
        "key/value cache",
        "activations of one batch",
    ] {
        half(Role::Rollout, name);
    }
    for role in [Role::Reference, Role::Reward] {
        half(role, "weights");
        half(role, "activations of one pass");
    }
    let actor = |memory: &[RoleMemory]| memory.iter().find(|memory| memory.role == Role::Actor).unwrap().clone();
    assert_eq!(actor(&mixed), actor(&plain));
    // The largest weight as it comes and as it is packed.
    assert_eq!(bytes_of(&plain, Role::Rollout, "weight that is converted"), 0);
    assert_eq!(
        bytes_of(&mixed, Role::Rollout, "weight that is converted"),
        (4 + 2) * 896 * 151_936
    );
}

#[test]
fn a_gpus_engine_gathers_weights_in_its_own_format_and_a_reader_hashes_its_own() {
    let reward = "reward: {model: {source: {path: /rm}, dtype: float32}}";
    let roles = format!("rollout: {{dtype: float32}}, reference: {{dtype: float32}}, {reward}");
    let memory = estimated("algorithm: {kl: {coef: 0.1}}", &roles, QWEN_HALF_B);
    let host = |role: Role, name: &str| {
        let role = memory.iter().find(|memory| memory.role == role).unwrap();
        let parts = &role.host.as_ref().unwrap().parts;
        parts.iter().find(|part| part.name == name).map(|part| part.bytes)
    };
    let largest = 896 * 151_936;
    assert_eq!(host(Role::Rollout, "policy weights that arrive"), Some(4 * 494_032_768));
    assert_eq!(host(Role::Rollout, "weight that is converted"), Some(2 * largest));
    for role in [Role::Reference, Role::Reward] {
        assert_eq!(host(role, "weight that is hashed"), Some(4 * largest), "{role:?}");
    }
    assert_eq!(host(Role::Actor, "weights sent to engines"), Some(2 * largest));
}

#[test]
fn an_adapter_leaves_one_copy_of_the_weights_and_optimizer_state_of_its_own_size() {
    let mut job = job(
        "algorithm: {kl: {coef: 0.1}}",
        &format!("actor: {{gpusPerNode: 8}}, {RULE}"),
    );
    job.spec.model.adapter = Some(AdapterSpec::default());
    let memory = estimated_of(&job, LLAMA_8B);
    assert!(memory.iter().all(|memory| memory.role != Role::Reference));
    let actor = |name: &str| bytes_of(&memory, Role::Actor, name);
    // What PEFT's print_trainable_parameters says of rank 16 on all projections of Llama 3.1 8B.
    let adapter = 41_943_040;
    assert_eq!(LLAMA_8B.adapter_parameters(&AdapterSpec::default()), adapter);
    assert_eq!(actor("policy weights"), 2 * 8_030_261_248);
    assert_eq!(
        (actor("policy adapter"), actor("critic adapter")),
        (4 * adapter, 4 * adapter)
    );
    assert_eq!(actor("policy optimizer state"), adapter);
    assert_eq!(actor("gradients of one update"), adapter / 2);
    assert_eq!(
        (actor("critic weights"), actor("policy weights beyond bfloat16")),
        (0, 0)
    );
    // A critic from another folder has weights of its own.
    job.spec.model.critic = Some(ModelSource {
        path: Some("/critic".into()),
        ..ModelSource::default()
    });
    let memory = estimated_of(&job, LLAMA_8B);
    assert_eq!(
        bytes_of(&memory, Role::Actor, "critic weights"),
        2 * LLAMA_8B.trunk_parameters()
    );
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
fn norms_of_queries_and_keys_keep_what_they_were_given() {
    let without = ModelShape {
        qk_norm: false,
        ..QWEN_3
    };
    let activations = |shape: ModelShape| {
        let batch = "batch: {rolloutBatchSize: 8, nSamplesPerPrompt: 1, trainBatchSize: 8, microTrainBatchSize: 1, microRolloutBatchSize: 1}";
        bytes_of(&estimated(batch, RULE, shape), Role::Actor, "activations of one pass")
    };
    // 16 query heads and 8 key heads of 128 numbers in each of 28 layers, for 2048 tokens.
    assert_eq!(activations(QWEN_3) - activations(without), 28 * 2048 * 24 * 128 * 2);
}

/// What an actor that checkpoints activations takes for the backward pass of a layer over one sequence of 32768 tokens, and for logits.
fn long_backward(shape: ModelShape, gpus: u32) -> [u64; 2] {
    let blocks = "generation: {maxNewTokens: 31744}\n  batch: {rolloutBatchSize: 8, nSamplesPerPrompt: 1, trainBatchSize: 8, \
                  microTrainBatchSize: 1, microRolloutBatchSize: 1}";
    let mut job = job(blocks, &format!("actor: {{gpusPerNode: {gpus}}}, {RULE}"));
    job.spec.model.activation_checkpointing = true;
    let memory = estimated_of(&job, shape);
    ["backward pass of a layer", "logits and their gradient"].map(|name| bytes_of(&memory, Role::Actor, name))
}

#[test]
fn attention_on_a_gpu_adds_up_the_gradient_of_long_sequences_once_for_each_block_that_shares_a_head() {
    let tokens: u64 = 32_768;
    // 132 multiprocessors over 16 heads: 9 sums in float32. The gradient that comes and that of the queries, and of keys and values what
    // they have and what the heads gave; gate and up are gone.
    let sums = 9 * (tokens + 128) * 16 * 128 * 4;
    let gradients = tokens * 2 * (2 * 16 * 128 + 2 * 8 * 128 + 2 * 16 * 128);
    let gone = tokens * 2 * 2 * 3072;
    assert_eq!(long_backward(QWEN_3, 1), [sums + gradients - gone, 0]);
    // On a CPU there are no such sums, and few logits at once.
    assert_eq!(long_backward(QWEN_3, 0), [4 * tokens * 3072 * 2, 0]);
    // The feed-forward layer of a large model takes more than its attention.
    assert_eq!(long_backward(QWEN_7B, 1), [4 * tokens * 18_944 * 2, 0]);
}

#[test]
fn logits_on_a_cpu_go_by_in_small_slices_where_they_are_many() {
    let logits = |gpus: u32, response: u32| {
        let blocks = format!(
            "generation: {{maxNewTokens: {response}}}\n  batch: {{rolloutBatchSize: 8, nSamplesPerPrompt: 1, trainBatchSize: 8, \
             microTrainBatchSize: 1, microRolloutBatchSize: 1}}"
        );
        let roles = format!("actor: {{gpusPerNode: {gpus}}}, reference: {{gpusPerNode: {gpus}}}, {RULE}");
        let memory = estimated(&blocks, &roles, QWEN_HALF_B);
        let actor = bytes_of(&memory, Role::Actor, "logits and their gradient");
        [actor, bytes_of(&memory, Role::Reference, "logits")]
    };
    let row = 151_936 * 4;
    assert_eq!(logits(1, 1024), [2 * 1024 * row, 1024 * row]);
    assert_eq!(logits(0, 1024), [MOST_LOGITS_ON_CPU; 2]);
    assert_eq!(logits(0, 96), logits(1, 96), "few are kept on both");
}

#[test]
fn ranks_that_share_an_update_have_the_gradient_of_the_output_projection_whole_before_they_sum_it() {
    let head = |actor: &str| {
        let blocks = "checkpoint: {pvc: checkpoints}\n  batch: {microTrainBatchSize: 1, microRolloutBatchSize: 1}";
        let memory = estimated(blocks, &format!("actor: {{{actor}}}, {RULE}"), LLAMA_8B);
        bytes_of(&memory, Role::Actor, "output head's gradient")
    };
    let numbers = 128_256 * 4096;
    assert_eq!(head("gpusPerNode: 1"), 0);
    assert_eq!(head("gpusPerNode: 8"), 4 * numbers);
    // A CPU adds up in the model's numbers.
    assert_eq!(head("nodes: 2, gpusPerNode: 0"), 2 * numbers);
}

#[test]
fn what_is_published_beside_an_update_is_a_copy_of_what_is_trained() {
    let published = |adapter: Option<AdapterSpec>| {
        let mut job = job("overlap: oneStep", RULE);
        job.spec.model.adapter = adapter;
        bytes_of(&estimated_of(&job, LLAMA_8B), Role::Actor, "published weights")
    };
    assert_eq!(published(None), 2 * 8_030_261_248);
    assert_eq!(published(Some(AdapterSpec::default())), 4 * 41_943_040);
}

fn host_bytes(memory: &[RoleMemory], role: Role, name: &str) -> Option<u64> {
    let role = memory.iter().find(|memory| memory.role == role)?;
    let parts = &role.host.as_ref()?.parts;
    parts.iter().find(|part| part.name == name).map(|part| part.bytes)
}

#[test]
fn every_process_of_a_pod_with_gpus_takes_memory_of_its_node() {
    let roles = format!(
        "actor: {{gpusPerNode: 8}}, reference: {{gpusPerNode: 4}}, rollout: {{gpusPerReplica: 2, engine: vllm}}, {RULE}"
    );
    let memory = estimated("", &roles, LLAMA_8B);
    let processes = [
        (Role::Actor, "8 processes with CUDA", 8),
        (Role::Reference, "process with CUDA", 1),
        (Role::Rollout, "vLLM's processes, at least", 2),
    ];
    for (role, name, count) in processes {
        assert_eq!(host_bytes(&memory, role, name), Some(count * (3 << 30)), "{name}");
    }
    // Each rank has a piece of it here at a time, whatever the model's size.
    let written = host_bytes(&memory, Role::Actor, "checkpoint being written");
    assert_eq!(written, Some(8 * (33 << 20)));
    for role in &memory {
        let host = role.host.as_ref().unwrap();
        assert_eq!(host.total, total(&host.parts));
    }
}

#[test]
fn new_weights_of_a_builtin_engine_on_a_gpu_gather_in_the_memory_of_its_node() {
    let memory = estimated("", &format!("rollout: {{gpusPerReplica: 1}}, {RULE}"), QWEN_HALF_B);
    let arrive = host_bytes(&memory, Role::Rollout, "policy weights that arrive");
    assert_eq!(arrive, Some(2 * 494_032_768));
    let sent = |replicas: u32, shape: ModelShape| {
        let memory = estimated("", &format!("rollout: {{replicas: {replicas}}}, {RULE}"), shape);
        host_bytes(&memory, Role::Actor, "weights sent to engines")
    };
    // One at a time to one engine; to several the embedding and the output projection, which are one tensor in some models.
    let embedding = 2 * 128_256 * 4096;
    assert_eq!(sent(1, LLAMA_8B), Some(embedding));
    assert_eq!(sent(2, LLAMA_8B), Some(2 * embedding));
    assert_eq!(sent(2, QWEN_HALF_B), Some(2 * 151_936 * 896));
}

#[test]
fn a_critics_small_pass_is_kept_beside_the_policys_and_counts() {
    let activations = |micro: u32, shape: ModelShape, name: &str| {
        let batch = format!(
            "batch: {{rolloutBatchSize: 8, nSamplesPerPrompt: 1, trainBatchSize: 8, microTrainBatchSize: {micro}, microRolloutBatchSize: 1}}"
        );
        let roles = format!("actor: {{gpusPerNode: 1}}, {RULE}");
        bytes_of(&estimated(&batch, &roles, shape), Role::Actor, name)
    };
    let (one, two) = ("activations of one pass", "activations of two passes");
    let small = ModelShape {
        hidden: 128,
        layers: 1,
        heads: 2,
        intermediate: 256,
        ..QWEN_HALF_B
    };
    let half = activations(4, small, one);
    assert!(half > 0 && half < MOST_KEPT / 2);
    // Twice the samples, twice the models.
    assert_eq!(activations(8, small, two), 4 * half);
    // A large one is not.
    assert_eq!(activations(8, LLAMA_8B, one), 2 * activations(4, LLAMA_8B, one));
}

#[test]
fn the_actor_scores_samples_in_pieces_of_a_size_of_their_own() {
    let activations = |train: u32, rollout: u32, batch: u32, name: &str| {
        let batch = format!(
            "batch: {{rolloutBatchSize: 64, nSamplesPerPrompt: 1, trainBatchSize: {batch}, microTrainBatchSize: {train}, \
             microRolloutBatchSize: {rollout}}}"
        );
        bytes_of(&estimated(&batch, RULE, LLAMA_8B), Role::Actor, name)
    };
    let one = "activations of one pass";
    // An update's pass keeps all layers, so a piece of as many samples is nothing beside it.
    assert_eq!(activations(1, 1, 64, one), activations(1, 2, 64, one));
    let scoring = "activations while scoring";
    assert_eq!(activations(1, 64, 64, scoring), 2 * activations(1, 32, 64, scoring));
    // Where a pass is kept, the pieces of the other samples come beside it; where it is of all samples, there are none.
    let each = activations(8, 16, 8, scoring) - activations(8, 8, 8, scoring);
    assert_eq!(activations(8, 8, 8, scoring), activations(8, 8, 64, one) + each);
    assert_eq!(activations(64, 32, 64, one), 8 * activations(8, 8, 64, one));
}

#[test]
fn a_reward_model_takes_a_budget_of_tokens_at_once_whatever_the_pieces_of_the_others() {
    let activations = |rollout: u32, response: u32, prompts: u32| {
        let blocks = format!(
            "generation: {{maxNewTokens: {response}}}\n  batch: {{rolloutBatchSize: {prompts}, trainBatchSize: {prompts}, \
             microTrainBatchSize: 1, microRolloutBatchSize: {rollout}}}"
        );
        let roles = "reward: {model: {source: {path: /models/rm}}}";
        let memory = estimated(&blocks, roles, QWEN_HALF_B);
        bytes_of(&memory, Role::Reward, "activations of one pass")
    };
    // Sequences of 2048 tokens: 8 at once.
    let budget = activations(1, 1024, 64);
    assert!(budget > 0);
    assert_eq!(activations(64, 1024, 64), budget);
    assert_eq!(4 * activations(1, 1024, 2), budget);
    // One of 32768 comes alone.
    assert_eq!(activations(1, 31_744, 64), 2 * budget);
}

#[test]
fn a_reference_takes_pieces_up_to_a_budget_of_tokens_at_once() {
    let activations = |rollout: u32| {
        let batch = format!(
            "batch: {{rolloutBatchSize: 64, nSamplesPerPrompt: 1, trainBatchSize: 64, microRolloutBatchSize: {rollout}}}"
        );
        bytes_of(
            &estimated(&batch, RULE, LLAMA_8B),
            Role::Reference,
            "activations of one pass",
        )
    };
    // Sequences of 2048 tokens.
    assert_eq!(activations(8), 2 * activations(4));
    assert_eq!(activations(32), activations(8));
}

#[test]
fn an_engine_on_a_cpu_holds_the_weights_that_arrive_beside_those_that_it_draws_with() {
    let weights = |rollout: &str| {
        let memory = estimated("", &format!("rollout: {{{rollout}}}, {RULE}"), QWEN_HALF_B);
        ["policy weights", "policy weights that arrive"].map(|name| bytes_of(&memory, Role::Rollout, name))
    };
    let whole = 2 * 494_032_768;
    assert_eq!(weights("gpusPerReplica: 0"), [whole, whole]);
    assert_eq!(weights("gpusPerReplica: 1"), [whole, 0]);
    assert_eq!(
        weights("gpusPerReplica: 2"),
        [whole, 0],
        "the builtin engine computes on one"
    );
    assert_eq!(weights("gpusPerReplica: 0, engine: vllm"), [whole, 0]);
    assert_eq!(weights("gpusPerReplica: 2, engine: vllm"), [whole.div_ceil(2), 0]);
}

#[test]
fn the_cache_holds_every_sample_of_full_length_unless_a_size_is_given() {
    let memory = estimated("batch: {rolloutBatchSize: 4, nSamplesPerPrompt: 2}", RULE, LLAMA_8B);
    // [keys and values] x layers x kv heads x head size x bytes, for 8 samples of 1024 + 1024 tokens.
    assert_eq!(
        bytes_of(&memory, Role::Rollout, "key/value cache"),
        8 * 2048 * 2 * 32 * 8 * 128 * 2
    );
    // Each of two engines may have to draw them all.
    let two = estimated(
        "batch: {rolloutBatchSize: 4, nSamplesPerPrompt: 2}",
        &format!("rollout: {{replicas: 2}}, {RULE}"),
        LLAMA_8B,
    );
    assert_eq!(
        bytes_of(&two, Role::Rollout, "key/value cache"),
        bytes_of(&memory, Role::Rollout, "key/value cache")
    );
    let memory = estimated(
        "",
        &format!("rollout: {{engine: vllm, kvCacheMebibytes: 64, gpusPerReplica: 2}}, {RULE}"),
        LLAMA_8B,
    );
    assert_eq!(bytes_of(&memory, Role::Rollout, "key/value cache"), 32 << 20);
}

#[test]
fn a_sequence_takes_whole_blocks_of_the_cache_which_flash_attention_has_larger() {
    let tokens = |rollout: &str| {
        let blocks = "prompts: {source: {path: /data/p.jsonl}, maxLength: 200}\n  generation: {maxNewTokens: 100}\n  \
                      batch: {rolloutBatchSize: 4, nSamplesPerPrompt: 1}";
        let text = format!(
            "apiVersion: ppojob.dev/v1alpha1\nkind: PpoJob\nmetadata: {{name: a}}\nspec:\n  model: {{policy: {{path: /p}}}}\n  \
             roles: {{rollout: {{{rollout}}}, {RULE}}}\n  {blocks}\n"
        );
        let memory = estimated_of(&crate::parse_manifest(&text, "a").unwrap(), LLAMA_8B);
        bytes_of(&memory, Role::Rollout, "key/value cache") / (4 * 2 * 32 * 8 * 128 * 2)
    };
    // 300 tokens in blocks of 256 or 16.
    assert_eq!(tokens("gpusPerReplica: 1"), 512);
    assert_eq!(tokens("gpusPerReplica: 0"), 304);
    // In float32 nothing is read by flash attention. Each number has twice the bytes.
    assert_eq!(tokens("gpusPerReplica: 1, dtype: float32"), 2 * 304);
}

#[test]
fn vllm_takes_at_least_the_cache_that_the_samples_need_on_gpus_and_on_a_cpu_what_it_is_told() {
    let cache = |rollout: &str| {
        let memory = estimated("", &format!("rollout: {{{rollout}}}, {RULE}"), QWEN_HALF_B);
        ["key/value cache", "key/value cache, at least"].map(|name| bytes_of(&memory, Role::Rollout, name))
    };
    let [needed, _] = cache("gpusPerReplica: 1");
    assert!(needed > 0);
    assert_eq!(cache("engine: vllm, gpusPerReplica: 1"), [0, needed]);
    assert_eq!(cache("engine: vllm, gpusPerReplica: 0"), [4096 << 20, 0]);
    assert_eq!(
        cache("engine: vllm, gpusPerReplica: 0, kvCacheMebibytes: 64"),
        [64 << 20, 0]
    );
    assert_eq!(cache("engine: vllm, kvCacheMebibytes: 64"), [64 << 20, 0]);
}

#[test]
fn vllm_keeps_copies_of_keys_where_it_has_more_gpus_than_heads_of_them() {
    let of = |gpus: u32, name: &str| {
        let memory = estimated(
            "",
            &format!("rollout: {{engine: vllm, gpusPerReplica: {gpus}}}, {RULE}"),
            LLAMA_8B,
        );
        bytes_of(&memory, Role::Rollout, name)
    };
    let cache = "key/value cache, at least";
    // 8 heads: a GPU has its share of them, and one of them at least.
    assert_eq!(of(1, cache), 8 * of(8, cache));
    assert!(of(8, cache) > 0);
    assert_eq!(of(16, cache), of(8, cache));
    assert_eq!(of(32, cache), of(8, cache));
    let weights = "policy weights";
    assert_eq!(of(1, weights).div_ceil(16), of(16, weights));
}

#[test]
fn gpus_that_share_a_layer_have_its_input_and_output_whole() {
    let batch = |gpus: u32| {
        let roles = format!("rollout: {{engine: vllm, gpusPerReplica: {gpus}, maxBatchTokens: 1024}}, {RULE}");
        let memory = estimated("", &roles, LLAMA_8B);
        bytes_of(&memory, Role::Rollout, "activations of one batch")
    };
    let (whole, split) = (4 * 4096, 2 * (4096 + 1024) + 3 * 14_336);
    assert_eq!(batch(1), 1024 * (whole + split) * 2);
    assert_eq!(batch(8), 1024 * (whole + split / 8) * 2);
}

/// Bytes that attention's backward pass works with on a CPU, on as many threads as have something to do: one for each head of keys of each
/// sequence (`Unit::backward_floats` in `native/training_attention.cpp` of the worker).
fn attention_scratch_on_cpus(shape: ModelShape, sequences: u64, length: u64) -> u64 {
    let whole = |count: u64| count.next_multiple_of(16);
    let (dim, wide, keys) = (shape.head_dim, whole(shape.head_dim), whole(length));
    let floats = 2 * dim * keys + 3 * length * wide + 48 * (3 * wide + 2 * keys);
    sequences * shape.kv_heads * floats * FLOAT32
}

#[test]
fn attention_on_cpus_takes_less_than_the_feed_forward_layer_however_many_threads_there_are() {
    let llama_2 = ModelShape {
        kv_heads: 32,
        intermediate: 11_008,
        ..LLAMA_8B
    };
    for shape in [LLAMA_8B, llama_2, QWEN_HALF_B, QWEN_7B, QWEN_3] {
        for length in [2048, 8192, 32_768] {
            let (sequences, number) = (8, 2);
            let tokens = sequences * length;
            // The gradient that comes and those of queries, keys and values; gate and up are gone.
            let values = 2 * (shape.heads + shape.kv_heads) * shape.head_dim;
            let attention = tokens * values * number + attention_scratch_on_cpus(shape, sequences, length);
            let gone = tokens * 2 * shape.intermediate * number;
            let counted = shape.mlp_backward_bytes(tokens, DType::Bfloat16);
            assert!(attention < counted + gone, "{shape:?}, {length}");
        }
    }
}

#[test]
fn the_process_of_a_pod_without_gpus_is_counted_beside_what_it_holds() {
    let process = |gpus: u32| {
        let memory = estimated("", &format!("actor: {{gpusPerNode: {gpus}}}, {RULE}"), QWEN_HALF_B);
        let of = |role: Role| bytes_of(&memory, role, "process and libraries");
        (of(Role::Actor), of(Role::Rollout))
    };
    assert_eq!((process(0), process(1)), ((256 << 20, 0), (0, 0)));
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
        qk_norm: true,
    };
    for memory in estimated("", RULE, huge) {
        assert_eq!(memory.total, u64::MAX);
        assert!(memory.host.is_some_and(|host| host.total == u64::MAX));
    }
}
