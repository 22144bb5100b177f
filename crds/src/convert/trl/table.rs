//! The flags of `PPOConfig`, `RLOOConfig` and `GRPOConfig`, and of the classes of transformers and TRL that they come with.

use crate::convert::row::Read::{Count, CountOrOff, Data, Each, Folder, Model, Number, Numbers, One, Text, Truth};
use crate::convert::row::{NO_DROPOUT, Row, computed, field, needless, nowhere};

/// Flags of every trainer.
#[rustfmt::skip]
pub const COMMON: &[Row] = &[
    nowhere(&["model_revision"], "give it in model.policy.hub.revision"),
    field(
        &["dtype", "torch_dtype"],
        &["model.dtype"],
        One(&[("bfloat16", "bfloat16"), ("float32", "float32"), ("auto", "")]),
    ),
    computed(&["bf16"], &["model.dtype"], "false is float32, unless dtype is given"),
    nowhere(&["fp16"], "weights are bfloat16 or float32 (model.dtype)").off(&["false"]),
    // The second is its name since transformers 5.
    field(
        &["gradient_checkpointing", "activation_checkpointing"],
        &["model.activationCheckpointing"],
        Truth,
    ).or("True"),
    computed(&["use_peft"], &["model.adapter"], ""),
    computed(&["lora_r"], &["model.adapter.rank"], "with use_peft").or("16"),
    computed(&["lora_alpha"], &["model.adapter.alpha"], "with use_peft"),
    computed(
        &["lora_target_modules"],
        &["model.adapter.targets"],
        "with use_peft; PEFT's own default for these models is written out",
    ).or("q_proj v_proj"),
    nowhere(&["lora_dropout"], NO_DROPOUT).off(&["0", "0.0"]),
    nowhere(&["use_rslora"], "the scale is alpha / rank: give model.adapter.alpha x the root of the rank, which is the same").off(&["false"]),
    nowhere(&["use_dora", "lora_modules_to_save", "lora_target_parameters"], "adapters are those of plain LoRA").off(&["false"]),
    nowhere(
        &["load_in_4bit", "load_in_8bit"],
        "there is no quantised training: weights are bfloat16 or float32 (model.dtype)",
    ).off(&["false"]),
    needless(
        &["lora_task_type", "bnb_4bit_quant_type", "bnb_4bit_quant_storage", "use_bnb_nested_quant", "model_adapter_name", "ref_adapter_name"],
        "is PEFT's matter",
    ),
    needless(
        &["trust_remote_code", "attn_implementation", "model_init_kwargs", "disable_dropout",
          "gradient_checkpointing_kwargs", "activation_checkpointing_kwargs", "tf32", "torch_compile*",
          "deepspeed", "fsdp*", "ddp_*",
          "dataloader_*", "dataset_num_proc", "remove_unused_columns", "ds3_gather_for_generation",
          "use_liger_kernel", "use_cache", "no_cuda", "use_cpu", "local_rank", "log_level*", "disable_tqdm",
          "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id", "do_train", "auto_find_batch_size",
          "accelerator_config", "parallelism_config",
          "gradient_checkpointing_use_reentrant", "ignore_bias_buffers", "liger_kernel_config", "bf16_full_eval",
          "fp16_full_eval", "fp16_backend", "fp16_opt_level", "half_precision_backend", "jit_mode_eval",
          "torch_empty_cache_steps", "torchdynamo", "average_tokens_across_devices", "debug", "tpu_*",
          "use_mps_device", "mp_parameters", "ray_scope"],
        "is transformers' or PyTorch's matter",
    ),
    needless(
        &["group_by_length", "train_sampling_strategy", "length_column_name", "label_names", "label_smoothing_factor",
          "past_index", "do_predict",
          "prediction_loss_only", "batch_eval_metrics", "include_for_metrics", "include_inputs_for_metrics",
          "eval_accumulation_steps", "eval_delay", "eval_do_concat_batches", "eval_use_gather_object",
          "use_legacy_prediction_loop"],
        "is for transformers' own loss and metrics, and has nothing to act on here",
    ),
    // Those of transformers that compute AdamW, be it with moments of fewer bits.
    field(
        &["optim"],
        &[],
        One(&[("adamw_torch", ""), ("adamw_torch_fused", ""), ("adamw_hf", ""), ("adamw_apex_fused", ""), ("adamw_anyprecision", ""),
              ("adamw_torch_xla", ""), ("adamw_torch_npu_fused", ""), ("adamw_torch_4bit", ""), ("adamw_torch_8bit", ""),
              ("adamw_bnb_8bit", ""), ("adamw_8bit", ""), ("paged_adamw", ""), ("paged_adamw_32bit", ""), ("paged_adamw_8bit", "")]),
    ),
    nowhere(&["adafactor", "optim_args", "optim_target_modules"], "the optimizer is AdamW").off(&["false"]),
    nowhere(&["neftune_noise_alpha"], "no noise is added to embeddings").off(&["0", "0.0"]),
    field(&["dataset_name"], &["prompts.source"], Data),
    nowhere(&["dataset_config"], "data sets are files here: write this part of the data set into one"),
    nowhere(&["dataset_train_split"], "data sets are files here: write this split of the data set into one"),
    nowhere(&["dataset_streaming", "streaming", "test_split_size"], "data sets are files here: write what is trained on into one"),
    nowhere(&["datasets"], "a mixture is a list of files here, read one after another: write each part out, and name them in prompts.source.paths"),
    nowhere(
        &["dataset_test_split", "eval_strategy", "eval_steps", "per_device_eval_batch_size", "per_gpu_eval_batch_size",
          "do_eval", "eval_on_start"],
        "give held-out prompts in evaluation.source and evaluation.everySteps",
    ).off(&["no", "false"]),
    computed(
        &["per_device_train_batch_size"],
        &["batch.microTrainBatchSize", "batch.trainBatchSize", "batch.rolloutBatchSize"],
        "samples",
    ).or("8"),
    nowhere(&["per_gpu_train_batch_size"], "has another name since: give per_device_train_batch_size"),
    computed(&["gradient_accumulation_steps"], &["batch.trainBatchSize", "batch.rolloutBatchSize"], "").or("1"),
    field(&["adam_beta1"], &["optimizer.beta1"], Number),
    field(&["adam_beta2"], &["optimizer.beta2"], Number).or("0.999"),
    field(&["adam_epsilon"], &["optimizer.epsilon"], Number),
    field(&["weight_decay"], &["optimizer.weightDecay"], Number),
    computed(&["lr_scheduler_type"], &["optimizer.schedule", "optimizer.minLearningRateRatio"], "").or("linear"),
    computed(
        &["lr_scheduler_kwargs"],
        &["optimizer.minLearningRateRatio"],
        "`min_lr_rate`, or `min_lr` / learning_rate, of cosine_with_min_lr",
    ),
    computed(&["warmup_ratio"], &["optimizer.warmupRatio"], "counts without warmup_steps"),
    computed(&["num_train_epochs"], &["episodes"], "a part of an epoch becomes a whole one").or("3"),
    field(&["seed"], &["seed"], Count),
    needless(&["data_seed", "full_determinism"], "a run always gives the same bits on the same machine"),
    field(&["output_dir"], &["checkpoint.path"], Folder),
    computed(&["save_steps"], &["checkpoint.everySteps"], "steps are rollout batches here").or("500"),
    computed(&["save_strategy"], &["checkpoint.everySteps"], "`no` saves at the end only").or("steps"),
    field(&["save_total_limit"], &["checkpoint.keep"], CountOrOff),
    field(&["load_best_model_at_end"], &["checkpoint.keepBest"], Truth)
        .note("keeps the best checkpoint; `model/` is the last step's all the same"),
    needless(
        &["resume_from_checkpoint", "overwrite_output_dir", "save_only_model", "save_safetensors",
          "metric_for_best_model", "greater_is_better", "ignore_data_skip", "save_on_each_node",
          "restore_callback_states_from_checkpoint", "enable_jit_checkpoint"],
        "a run always goes on from its last checkpoint; checkpoints have one format",
    ),
    nowhere(&["push_to_hub", "push_to_hub_*", "hub_*"], "push runs/<name>/model yourself: it is in Hugging Face layout").off(&["false"]),
    needless(
        &["logging_*", "log_completions", "log_completions_hub_repo", "log_multimodal", "log_unique_prompts",
          "num_completions_to_print", "wandb_log_unique_prompts",
          "num_sample_generations", "log_on_each_node", "include_num_input_tokens_seen", "include_tokens_per_second",
          "skip_memory_metrics", "project"],
        "every step is logged, and samples every telemetry.samplesEverySteps",
    ),
    nowhere(
        &["report_to"],
        "metrics go to TensorBoard, Prometheus and metrics.jsonl (docs/monitoring.md), under TRL's names in \
         TensorBoard",
    ),
    computed(&["run_name", "exp_name"], &["metadata.name"], ""),
    computed(&["config"], &[], "a YAML file: its keys are read as flags, of which those of the command line win"),
    nowhere(&["chat_template_path"], "put it into the model's folder"),
    computed(&["num_processes"], &["roles.actor.gpusPerNode"], "of `trl`, which hands it to accelerate"),
    computed(&["num_machines"], &["roles.actor.nodes"], "of `trl`, which hands it to accelerate"),
    computed(
        &["accelerate_config", "config_file"],
        &["roles.actor.gpusPerNode"],
        "the file is not read: give its number of processes as num_processes",
    ),
    nowhere(&["mixed_precision"], "model.dtype is what weights are, and what is computed in").off(&["bf16"]),
    needless(
        &["machine_rank", "main_process_ip", "main_process_port", "gpu_ids", "rdzv_backend", "same_network", "multi_gpu",
          "use_deepspeed", "zero_stage", "zero3_init_flag", "deepspeed_*", "dynamo_*"],
        "is accelerate's matter",
    ),
];

/// Flags of `PPOTrainer`.
#[rustfmt::skip]
pub const PPO: &[Row] = &[
    field(
        &["learning_rate"],
        &["optimizer.actorLearningRate", "optimizer.criticLearningRate"],
        Number,
    ).or("5e-5"),
    field(&["model_name_or_path"], &["model.policy"], Model),
    // Behind the one that it wins over.
    field(&["sft_model_path"], &["model.policy"], Model),
    field(&["reward_model_path"], &["roles.reward.model.source"], Model),
    computed(
        &["num_mini_batches"],
        &["batch.trainBatchSize", "batch.microTrainBatchSize"],
        "an epoch is one optimizer update, because gradients accumulate across mini-batches; only more of them than \
         gradient_accumulation_steps make more updates",
    ).or("1"),
    computed(
        &["max_grad_norm"],
        &["optimizer.maxGradNorm"],
        "always 0: PPOTrainer does not clip gradients",
    ),
    computed(
        &["warmup_steps"],
        &["optimizer.warmupUpdates", "optimizer.warmupRatio"],
        "counts steps in TRL's PPO, updates here: x updates per step; below 1 it is a share, as in transformers 5",
    ),
    field(&["num_ppo_epochs"], &["batch.ppoEpochs"], Count).or("4"),
    computed(&["total_episodes"], &["steps"], "counts samples in TRL").or(""),
    needless(&["max_steps"], "is not read by PPOTrainer: total_episodes, else num_train_epochs, says how long it trains"),
    needless(
        &["batch_size", "local_batch_size", "micro_batch_size", "mini_batch_size", "local_mini_batch_size",
          "num_total_batches", "world_size"],
        "is worked out by PPOTrainer, whatever is given",
    ),
    field(&["response_length"], &["generation.maxNewTokens"], Count).or("53"),
    field(&["temperature"], &["generation.temperature"], Number).or("0.7"),
    field(&["stop_token"], &[], One(&[("eos", "")])),
    computed(&["stop_token_id"], &["generation.stopTokenIds"], ""),
    field(&["local_rollout_forward_batch_size"], &["batch.microRolloutBatchSize"], Count).or("64"),
    field(&["missing_eos_penalty"], &["algorithm.score.missingEosPenalty"], Number),
    field(&["whiten_rewards"], &["algorithm.score.whitenRewards"], Truth),
    field(&["kl_coef"], &["algorithm.kl.coef"], Number),
    field(&["kl_estimator"], &["algorithm.kl.estimator"], One(&[("k1", "k1"), ("k3", "k3")])),
    field(&["cliprange"], &["algorithm.clip.policyLow", "algorithm.clip.policyHigh"], Number),
    field(&["cliprange_value"], &["algorithm.clip.value"], Number),
    field(&["vf_coef"], &["algorithm.valueCoef"], Number),
    field(&["gamma"], &["algorithm.advantage.gamma"], Number),
    field(&["lam"], &["algorithm.advantage.lambda"], Number),
];

/// Flags of `RLOOTrainer` and `GRPOTrainer`.
#[rustfmt::skip]
pub const ONLINE: &[Row] = &[
    field(&["learning_rate"], &["optimizer.actorLearningRate"], Number),
    field(&["max_grad_norm"], &["optimizer.maxGradNorm"], Number),
    computed(
        &["warmup_steps"],
        &["optimizer.warmupUpdates", "optimizer.warmupRatio"],
        "below 1 it is a share, as in transformers 5",
    ),
    field(&["model_name_or_path"], &["model.policy"], Model),
    field(&["reward_model_name_or_path"], &["roles.reward.model.source"], Model),
    computed(
        &["reward_funcs"],
        &["roles.reward.rules"],
        "accuracy_reward, reasoning_accuracy_reward and open-r1's accuracy are mathMatch, on the column `solution`; others are Python: serve them over HTTP \
         and give the address in roles.reward.remote.urls (docs/model-and-reward.md)",
    ),
    computed(
        &["reward_weights"],
        &["roles.reward.model.weight", "roles.reward.rules"],
        "of the reward model, then of the functions; default 1 for each",
    ),
    computed(&["steps_per_generation"], &["batch.rolloutBatchSize"], "gradient_accumulation_steps, unless given"),
    computed(
        &["generation_batch_size"],
        &["batch.rolloutBatchSize"],
        "samples in TRL, prompts here: / num_generations",
    ),
    field(&["num_iterations"], &["batch.ppoEpochs"], Count),
    computed(&["max_steps"], &["steps"], "counts updates in TRL"),
    field(
        &["max_prompt_length"],
        &["prompts.maxLength"],
        Count,
    ).or("512").note("a longer prompt is dropped, and counted; TRL keeps its last tokens"),
    field(&["max_completion_length"], &["generation.maxNewTokens"], Count).or("256"),
    // open-r1's own, in its recipes.
    field(&["dataset_prompt_column"], &["prompts.promptField"], Text),
    nowhere(&["system_prompt"], "write it into the rows as the first message, or into the model's chat template"),
    nowhere(&["chat_template"], "put it into the model's folder"),
    nowhere(&["benchmarks", "callbacks"], "give held-out prompts in evaluation.source and evaluation.everySteps"),
    needless(
        &["wandb_entity", "wandb_project", "wandb_run_group"],
        "metrics go to TensorBoard, Prometheus and metrics.jsonl (docs/monitoring.md)",
    ),
    field(&["shuffle_dataset"], &["prompts.shuffle"], Truth),
    field(&["temperature"], &["generation.temperature"], Number),
    field(&["top_p"], &["generation.topP"], Number),
    field(&["top_k"], &["generation.topK"], CountOrOff),
    field(&["min_p"], &["generation.minP"], Number),
    field(&["repetition_penalty"], &[], One(&[("1.0", ""), ("1", "")])),
    nowhere(
        &["generation_kwargs", "vllm_structured_outputs_regex", "vllm_guided_decoding_regex"],
        "responses are sampled by the fields of generation and nothing else",
    ),
    needless(
        &["use_transformers_paged", "cache_implementation", "vllm_server_*", "vllm_model_impl",
          "vllm_enable_sleep_mode", "vllm_group_port", "vllm_max_model_length", "use_transformers_continuous_batching",
          "transformers_continuous_batching_config"],
        "the engines are run by the job",
    ),
    nowhere(
        &["chat_template_kwargs"],
        "write its variables into prompts.chatTemplateVariables, with prompts.chatTemplate: true",
    ).off(&["{}"]),
    nowhere(
        &["num_generations_eval"],
        "give held-out prompts in evaluation.source, and this number in evaluation.nSamplesPerPrompt",
    ).off(&["1"]),
    needless(&["pad_to_multiple_of"], "sequences are always packed"),
    needless(&["router_aux_loss_coef"], "has nothing to act on: models are dense"),
    computed(&["use_vllm"], &["roles.rollout.engine"], "vllm"),
    computed(
        &["vllm_mode"],
        &["roles.rollout.replicas"],
        "colocate, the default since 1.0, makes all GPUs / tensor_parallel_size engines",
    ).or("server"),
    computed(&["vllm_tensor_parallel_size"], &["roles.rollout.gpusPerReplica"], "with use_vllm").or("1"),
    nowhere(
        &["vllm_gpu_memory_utilization"],
        "roles.rollout.kvCacheMebibytes says the cache's size in MiB, over all GPUs of an engine; without it vLLM takes nine tenths of each GPU",
    ),
    field(&["epsilon", "cliprange"], &["algorithm.clip.policyLow", "algorithm.clip.policyHigh"], Number),
    field(&["epsilon_high"], &["algorithm.clip.policyHigh"], Number),
    field(&["mask_truncated_completions"], &["algorithm.maskTruncated"], Truth),
    nowhere(&["sync_ref_model"], "the reference stays as it was at step 0").off(&["false"]),
    needless(&["ref_model_mixup_alpha", "ref_model_sync_steps"], "has nothing to act on: the reference stays"),
];

/// Flags of `RLOOTrainer` alone.
#[rustfmt::skip]
pub const RLOO: &[Row] = &[
    field(&["num_generations", "rloo_k"], &["batch.nSamplesPerPrompt"], Count).or("2"),
    field(&["beta", "kl_coef"], &["algorithm.kl.coef"], Number),
    field(&["normalize_advantages", "normalize_reward"], &["algorithm.advantage.whiten"], Truth),
    field(&["reward_clip_range"], &["algorithm.score.clip.min", "algorithm.score.clip.max"], Numbers),
    nowhere(
        &["total_episodes", "num_mini_batches", "num_ppo_epochs", "response_length"],
        "belongs to the old RLOOTrainer: give max_steps, steps_per_generation, num_iterations, max_completion_length",
    ),
    nowhere(
        &["token_level_kl", "local_rollout_forward_batch_size", "stop_token", "stop_token_id", "missing_eos_penalty"],
        "was removed from RLOOTrainer",
    ),
];

/// Flags of `GRPOTrainer` alone.
#[rustfmt::skip]
pub const GRPO: &[Row] = &[
    field(&["num_generations"], &["batch.nSamplesPerPrompt"], Count).or("8"),
    field(&["beta"], &["algorithm.kl.coef"], Number).or("0.0"),
    field(
        &["delta"],
        &["algorithm.clip.dual"],
        Number,
    ).note("TRL bounds the ratio from above for a negative advantage at delta, dual clip bounds the loss at dual x |A|: the same bound"),
    field(
        &["scale_rewards"],
        &["algorithm.advantage.estimator"],
        One(&[("group", "grpo"), ("true", "grpo"), ("batch", "grpo"), ("none", "drGrpo"), ("false", "drGrpo")]),
    ).or("group"),
    field(
        &["loss_type"],
        &["algorithm.aggregation", "algorithm.surrogate"],
        Each(&[("dapo", &["tokenMean", ""]), ("bnpo", &["tokenMean", ""]), ("grpo", &["sequenceMeanTokenMean", ""]),
               ("dr_grpo", &["sequenceMeanTokenSumNorm", ""]), ("cispo", &["tokenMean", "cispo"])]),
    ).or("dapo"),
    field(&["importance_sampling_level"], &["algorithm.ratio"], One(&[("token", "token"), ("sequence", "sequence")])),
    nowhere(&["top_entropy_quantile"], "every token is learnt from").off(&["1.0", "1"]),
    needless(&["use_liger_loss"], "is a kernel's matter"),
    computed(
        &["vllm_importance_sampling_correction"],
        &["algorithm.truncatedImportanceSampling", "algorithm.rolloutCorrection"],
        "with use_vllm",
    ).or("True"),
    computed(
        &["vllm_importance_sampling_clip_max", "vllm_importance_sampling_cap"],
        &["algorithm.truncatedImportanceSampling", "algorithm.rolloutCorrection.high"],
        "with use_vllm; 3 with a mode or clip_max; None, no bound, is 1000",
    ).or("2.0"),
    computed(&["vllm_importance_sampling_clip_min"], &["algorithm.rolloutCorrection.low"], "with use_vllm"),
    computed(
        &["vllm_importance_sampling_mode"],
        &["algorithm.rolloutCorrection.level", "algorithm.rolloutCorrection.outside"],
        "with use_vllm; without it, and without the bounds' newer names, token_truncate as up to 0.25",
    ),
    nowhere(&["off_policy_mask_threshold"], "no sequence is left out for how far the policy has moved from it"),
    nowhere(&["use_bias_correction_kl"], "the estimate of the KL is not weighted by the ratio").off(&["false"]),
    field(&["multi_objective_aggregation"], &[], One(&[("sum_then_normalize", "")])),
    field(
        &["entropy_coef"],
        &["algorithm.entropyCoef"],
        Number,
    ).note("TRL takes the mean over tokens, whatever loss_type; here the entropy is averaged as algorithm.aggregation says"),
    nowhere(
        &["use_adaptive_entropy"],
        "the entropy's coefficient stays as it is (algorithm.entropyCoef)",
    ).off(&["false"]),
    needless(
        &["entropy_coef_delta", "entropy_coef_max", "entropy_coef_min", "entropy_target"],
        "counts only with use_adaptive_entropy",
    ),
    needless(&["sapo_temperature_*", "vespo_*"], "counts only with another loss_type"),
    nowhere(&["max_tool_calling_iterations"], "a response is one turn, without tools"),
    needless(&["cast_lm_head_to_fp32"], "log-probabilities are float32 always"),
];
