//! verl's settings of the engines and of the reference.

use crate::convert::row::Read::{Count, CountOrOff, Number, One};
use crate::convert::row::{Row, computed, field, needless, nowhere};

/// Of numbers, by all names that verl reads (`PrecisionType` in verl/utils/torch_dtypes.py).
pub(super) const FORMATS: &[(&str, &str)] = &[
    ("bfloat16", "bfloat16"),
    ("bf16", "bfloat16"),
    ("float32", "float32"),
    ("fp32", "float32"),
];

/// Every one of them.
#[rustfmt::skip]
pub const ROWS: &[Row] = &[
    computed(&["actor_rollout_ref.rollout.name"], &["roles.rollout.engine"], "vllm; another engine is replaced by it"),
    field(&["actor_rollout_ref.rollout.temperature"], &["generation.temperature"], Number),
    field(&["actor_rollout_ref.rollout.top_p"], &["generation.topP"], Number),
    field(&["actor_rollout_ref.rollout.top_k"], &["generation.topK"], CountOrOff),
    field(&["actor_rollout_ref.rollout.n"], &["batch.nSamplesPerPrompt"], Count),
    // Behind data.max_response_length, which it is without this.
    field(&["actor_rollout_ref.rollout.response_length"], &["generation.maxNewTokens"], Count),
    computed(
        &["actor_rollout_ref.rollout.prompt_length"],
        &["prompts.maxLength"],
        "where it is below data.max_prompt_length; a longer prompt is dropped, and counted, where verl cuts it",
    ),
    computed(
        &["actor_rollout_ref.rollout.tensor_model_parallel_size"],
        &["roles.rollout.gpusPerReplica", "roles.rollout.replicas"],
        "replicas = all GPUs / gpusPerReplica",
    ).or("2"),
    computed(
        &["actor_rollout_ref.rollout.pipeline_model_parallel_size"],
        &["roles.rollout.gpusPerReplica"],
        "x tensor_model_parallel_size: there is no pipeline, vLLM splits every layer over all GPUs of an engine",
    ).or("1"),
    nowhere(
        &["actor_rollout_ref.rollout.quantization"],
        "engines draw with the weights that the actor learns, in bfloat16 or float32 (roles.rollout.dtype)",
    ),
    nowhere(
        &["actor_rollout_ref.rollout.over_sample_rate"],
        "every response of a step is waited for, and no more are drawn than it learns from",
    ).off(&["0", "0.0"]),
    field(&["actor_rollout_ref.rollout.repetition_penalty"], &[], One(&[("1.0", ""), ("1", "")])),
    computed(&["rollout.nnodes"], &["roles.rollout.replicas"], "with rollout.n_gpus_per_node"),
    computed(
        &["rollout.n_gpus_per_node"],
        &["roles.rollout.replicas"],
        "the engines' own GPUs, in the recipe one_step_off_policy; the recipe itself is `overlap: oneStep`",
    ),
    computed(
        &["actor_rollout_ref.rollout.nnodes"],
        &["roles.rollout.replicas"],
        "the engines' own GPUs, with trainer.v1.trainer_mode=separate_async",
    ),
    computed(
        &["actor_rollout_ref.rollout.n_gpus_per_node"],
        &["roles.rollout.replicas"],
        "with actor_rollout_ref.rollout.nnodes; else trainer.n_gpus_per_node",
    ),
    field(&["actor_rollout_ref.rollout.max_num_batched_tokens"], &["roles.rollout.maxBatchTokens"], Count),
    field(&["actor_rollout_ref.rollout.max_num_seqs"], &["roles.rollout.maxSequences"], Count),
    nowhere(
        &["actor_rollout_ref.rollout.gpu_memory_utilization"],
        "roles.rollout.kvCacheMebibytes says the cache's size in MiB, over all GPUs of an engine; without it vLLM takes nine tenths of each GPU",
    ),
    field(&["actor_rollout_ref.rollout.dtype"], &["roles.rollout.dtype"], One(FORMATS)),
    // What FSDP and Megatron compute in; the weights behind it are a setting of their own.
    field(
        &["actor_rollout_ref.actor.fsdp_config.dtype", "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype",
          "actor_rollout_ref.actor.megatron.dtype"],
        &["model.dtype"],
        One(FORMATS),
    ),
    field(
        &["actor_rollout_ref.ref.fsdp_config.dtype", "actor_rollout_ref.ref.fsdp_config.mixed_precision.param_dtype",
          "actor_rollout_ref.ref.megatron.dtype"],
        &["roles.reference.dtype"],
        One(FORMATS),
    ).note("with a KL, and no adapter"),
    needless(
        &["actor_rollout_ref.actor.fsdp_config.model_dtype", "actor_rollout_ref.ref.fsdp_config.model_dtype"],
        "master weights are always float32, and a reference has none: fsdp_config.dtype is what is computed in",
    ),
    field(
        &["actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
          "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu"],
        &["batch.microRolloutBatchSize"],
        Count,
    ),
    nowhere(
        &["actor_rollout_ref.rollout.log_prob_micro_batch_size", "actor_rollout_ref.ref.log_prob_micro_batch_size"],
        "batch.microRolloutBatchSize counts the samples of one GPU",
    ),
    computed(
        &["actor_rollout_ref.rollout.val_kwargs.temperature"],
        &["evaluation.temperature"],
        "0 is greedy",
    ).or("0"),
    // Neither the agent loop of 0.9 nor its version over a queue reads it (verl/experimental/agent_loop, trainer/ppo/v1/agent_loop_tq.py).
    needless(&["actor_rollout_ref.rollout.val_kwargs.do_sample"], "val_kwargs.temperature alone says whether validation samples"),
    computed(
        &["actor_rollout_ref.rollout.val_kwargs.n"],
        &["evaluation.nSamplesPerPrompt"],
        "with evaluation; 1 at temperature 0",
    ),
    nowhere(
        &["actor_rollout_ref.rollout.val_kwargs.*"],
        "held-out prompts are answered with what generation says but for the temperature, which evaluation.temperature gives",
    ),
    nowhere(
        &["actor_rollout_ref.rollout.multi_turn.*", "actor_rollout_ref.rollout.agent.*",
          "actor_rollout_ref.rollout.ignore_eos", "data.function_tool_path", "data.continuous_token.*"],
        "a response is one turn, without tools, and ends at the model's end of sequence",
    ).off(&["false"]),
    needless(&["actor_rollout_ref.rollout.*"], "the engines are run by the job"),
    computed(&["actor_rollout_ref.ref.model.path"], &["model.reference"], "with a KL, and no adapter"),
    computed(
        &["actor_rollout_ref.actor.tis_imp_ratio_cap"],
        &["algorithm.truncatedImportanceSampling"],
        "of 0.5; -1 is off",
    ),
    needless(
        &["actor_rollout_ref.actor.*", "actor_rollout_ref.ref.*", "model_engine", "actor@*", "ref@*", "critic@*"],
        "is FSDP's, Megatron's or PyTorch's matter",
    ),
];
