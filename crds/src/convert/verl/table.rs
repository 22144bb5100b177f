//! The settings of `verl/trainer/config/ppo_trainer.yaml`, with its defaults where ours are others.

use crate::convert::row::Read::{Count, CountOrNever, Data, Model, Number, Numbers, One, Text, Truth};
use crate::convert::row::{Row, computed, field, needless, nowhere};

/// Every override.
#[rustfmt::skip]
pub const ROWS: &[Row] = &[
    // prompts
    field(&["data.train_files"], &["prompts.source"], Data),
    field(&["data.prompt_key"], &["prompts.promptField"], Text),
    field(&["data.max_prompt_length"], &["prompts.maxLength"], Count).or("512"),
    field(&["data.max_response_length"], &["generation.maxNewTokens"], Count).or("512"),
    field(&["data.train_batch_size"], &["batch.rolloutBatchSize"], Count).or("1024"),
    field(&["data.shuffle"], &["prompts.shuffle"], Truth),
    field(&["data.seed"], &["seed"], Count),
    nowhere(&["data.train_max_samples"], "cut the file to so many rows").off(&["-1"]),
    needless(
        &["data.filter_overlong_prompts", "data.filter_overlong_prompts_workers"],
        "longer prompts are always dropped, and counted",
    ),
    nowhere(
        &["data.truncation"],
        "a longer prompt is dropped, and counted; verl cuts it unless filter_overlong_prompts drops it",
    ).off(&["error"]),
    nowhere(
        &["data.reward_fn_key"],
        "the reward is not chosen by a column: give rules, a model or a server in roles.reward",
    ),
    computed(
        &["data.apply_chat_template_kwargs*"],
        &["prompts.chatTemplateVariables"],
        "a variable of the template each, `data.apply_chat_template_kwargs.enable_thinking=False` say",
    ),
    nowhere(
        &["data.tokenizer", "data.custom_cls.*", "data.tool_config_path"],
        "prompts are rendered by the model's own chat template, as its files have it",
    ),
    nowhere(
        &["data.sampler.*", "data.datagen.*"],
        "a step takes the file's next prompts, shuffled by the run's seed (prompts.shuffle)",
    ),
    nowhere(
        &["data.image_key", "data.video_key", "data.audio_key", "data.image_patch_size", "data.mm_processor_kwargs*"],
        "models are text only",
    ),
    computed(
        &["data.gen_batch_size"],
        &["batch.dynamicSampling.maxDraws"],
        "with filter_groups; a draw is always of data.train_batch_size prompts",
    ),
    needless(
        &["data.val_batch_size", "data.validation_shuffle", "data.return_*", "data.use_shm",
          "data.dataloader_num_workers", "data.trust_remote_code"],
        "prompts are read by the actor itself",
    ),
    // models
    field(&["actor_rollout_ref.model.path"], &["model.policy"], Model),
    field(
        &["actor_rollout_ref.model.enable_gradient_checkpointing"],
        &["model.activationCheckpointing"],
        Truth,
    ).or("True"),
    computed(&["actor_rollout_ref.model.lora_rank"], &["model.adapter.rank"], "0 trains all weights"),
    computed(&["actor_rollout_ref.model.lora_alpha"], &["model.adapter.alpha"], "with a rank").or("16"),
    computed(
        &["actor_rollout_ref.model.target_modules"],
        &["model.adapter.targets"],
        "with a rank; `all-linear` is the default here too",
    ),
    nowhere(&["actor_rollout_ref.model.exclude_modules"], "name those that are left in model.adapter.targets"),
    computed(
        &["actor_rollout_ref.model.lora.rank"],
        &["model.adapter.rank"],
        "Megatron's; 0 trains all weights. Its fused projections share A, here each has its own",
    ),
    computed(&["actor_rollout_ref.model.lora.alpha"], &["model.adapter.alpha"], "with a rank").or("32"),
    computed(
        &["actor_rollout_ref.model.lora.target_modules"],
        &["model.adapter.targets"],
        "with a rank; Megatron's names, as linear_qkv for q_proj, k_proj and v_proj",
    ),
    nowhere(
        &["actor_rollout_ref.model.lora.type", "actor_rollout_ref.model.lora.dropout",
          "actor_rollout_ref.model.lora.exclude_modules"],
        "adapters are those of plain LoRA, without dropout, on model.adapter.targets",
    ).off(&["lora", "canonical_lora", "0", "0.0", "[]"]),
    nowhere(
        &["actor_rollout_ref.model.lora_adapter_path", "actor_rollout_ref.model.lora.adapter_path"],
        "an adapter starts anew: merge that one into the model's folder (PEFT's merge_and_unload)",
    ),
    nowhere(
        &["critic.model.lora_rank", "critic.model.lora_alpha", "critic.model.target_modules", "critic.model.lora.*"],
        "actor and critic share model.adapter; the actor's is taken",
    ).off(&["0"]),
    nowhere(
        &["actor_rollout_ref.model.custom_chat_template", "actor_rollout_ref.model.tokenizer_path",
          "actor_rollout_ref.model.override_config.*", "actor_rollout_ref.model.hf_config_path"],
        "put it into the model's folder (tokenizer_config.json, config.json)",
    ),
    needless(&["actor_rollout_ref.model.*"], "is PyTorch's matter"),
    needless(&["actor_rollout_ref.hybrid_engine", "actor_rollout_ref.nccl_timeout"], "each role has its own pods"),
    computed(&["critic.model.path"], &["model.critic"], "only with gae"),
    // the actor's update
    computed(
        &["actor_rollout_ref.actor.ppo_mini_batch_size"],
        &["batch.trainBatchSize"],
        "counts prompts in verl, samples here: x rollout.n",
    ).or("256"),
    field(&["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"], &["batch.microTrainBatchSize"], Count),
    computed(
        &["actor_rollout_ref.actor.ppo_micro_batch_size"],
        &["batch.microTrainBatchSize"],
        "over all GPUs in verl, for each of them here",
    ),
    field(&["actor_rollout_ref.actor.ppo_epochs"], &["batch.ppoEpochs"], Count),
    nowhere(
        &["actor_rollout_ref.actor.clip_ratio"],
        "verl clips by clip_ratio_low and clip_ratio_high, which are 0.2 where they are not given: give those",
    ),
    field(&["actor_rollout_ref.actor.clip_ratio_low"], &["algorithm.clip.policyLow"], Number),
    field(&["actor_rollout_ref.actor.clip_ratio_high"], &["algorithm.clip.policyHigh"], Number),
    field(&["actor_rollout_ref.actor.clip_ratio_c"], &["algorithm.clip.dual"], Number),
    field(
        &["actor_rollout_ref.actor.loss_agg_mode"],
        &["algorithm.aggregation"],
        One(&[("token-mean", "tokenMean"), ("seq-mean-token-mean", "sequenceMeanTokenMean"),
              ("seq-mean-token-sum", "sequenceMeanTokenSum"),
              ("seq-mean-token-sum-norm", "sequenceMeanTokenSumNorm")]),
    ),
    nowhere(
        &["actor_rollout_ref.actor.loss_scale_factor"],
        "sequenceMeanTokenSumNorm divides by generation.maxNewTokens",
    ),
    field(&["actor_rollout_ref.actor.entropy_coeff"], &["algorithm.entropyCoef"], Number),
    field(&["actor_rollout_ref.actor.policy_loss.loss_mode"], &[], One(&[("vanilla", "")])),
    needless(
        &["actor_rollout_ref.actor.policy_loss.*", "actor_rollout_ref.actor.tau_pos",
          "actor_rollout_ref.actor.tau_neg"],
        "counts only in another loss mode",
    ),
    field(
        &["actor_rollout_ref.actor.grad_clip", "actor_rollout_ref.actor.optim.clip_grad"],
        &["optimizer.maxGradNorm"],
        Number,
    ),
    field(&["actor_rollout_ref.actor.optim.lr"], &["optimizer.actorLearningRate"], Number),
    field(&["actor_rollout_ref.actor.optim.betas"], &["optimizer.beta1", "optimizer.beta2"], Numbers).or("0.9 0.999"),
    field(&["actor_rollout_ref.actor.optim.weight_decay"], &["optimizer.weightDecay"], Number).or("0.01"),
    computed(
        &["actor_rollout_ref.actor.optim.lr_warmup_steps"],
        &["optimizer.warmupUpdates"],
        "counts steps in verl, updates here: x updates per step",
    ),
    nowhere(
        &["actor_rollout_ref.actor.optim.lr_warmup_steps_ratio"],
        "optimizer.warmupUpdates counts updates: set it to this share of steps x updates per step, which ppo-worker \
         plan prints",
    ).off(&["0", "0.0"]),
    field(
        &["actor_rollout_ref.actor.optim.lr_scheduler_type", "actor_rollout_ref.actor.optim.warmup_style",
          "actor_rollout_ref.actor.optim.lr_decay_style"],
        &["optimizer.schedule"],
        One(&[("constant", "constant"), ("cosine", "cosine"), ("linear", "linear")]),
    ),
    field(&["actor_rollout_ref.actor.optim.min_lr_ratio"], &["optimizer.minLearningRateRatio"], Number).or("0.0"),
    nowhere(
        &["actor_rollout_ref.actor.optim.min_lr"],
        "optimizer.minLearningRateRatio is its share of the learning rate: give min_lr / lr",
    ).off(&["0", "0.0"]),
    needless(&["actor_rollout_ref.actor.optim.total_training_steps"], "the schedule ends with the run"),
    field(&["actor_rollout_ref.actor.optim.optimizer"], &[], One(&[("adamw", "")])),
    needless(&["actor_rollout_ref.actor.optim.*"], "the optimizer is AdamW, with a schedule of one period"),
    needless(
        &["actor_rollout_ref.actor.use_dynamic_bsz", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
          "actor_rollout_ref.ref.log_prob_use_dynamic_bsz", "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu",
          "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz",
          "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu"],
        "micro-batches are counted in samples; their size changes memory and speed only",
    ),
    needless(
        &["actor_rollout_ref.actor.shuffle", "actor_rollout_ref.actor.data_loader_seed"],
        "samples are shuffled in each epoch, by the run's seed",
    ),
    nowhere(
        &["actor_rollout_ref.actor.ulysses_sequence_parallel_size",
          "actor_rollout_ref.ref.ulysses_sequence_parallel_size", "critic.ulysses_sequence_parallel_size",
          "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size",
          "actor_rollout_ref.ref.fsdp_config.ulysses_sequence_parallel_size",
          "actor_rollout_ref.actor.megatron.tensor_model_parallel_size",
          "actor_rollout_ref.actor.megatron.pipeline_model_parallel_size",
          "actor_rollout_ref.actor.megatron.context_parallel_size"],
        "every GPU of the actor is a data-parallel rank, so accumulation = trainBatchSize / (microTrainBatchSize x \
         all GPUs)",
    ).off(&["1"]),
    // KL: either term
    computed(&["actor_rollout_ref.actor.use_kl_loss"], &["algorithm.kl.placement"], "loss").or("False"),
    computed(&["actor_rollout_ref.actor.kl_loss_coef"], &["algorithm.kl.coef"], "with use_kl_loss; 0 is no KL there").or("0.001"),
    computed(
        &["actor_rollout_ref.actor.kl_loss_type"],
        &["algorithm.kl.estimator"],
        "with use_kl_loss",
    ).or("low_var_kl"),
    computed(
        &["algorithm.use_kl_in_reward"],
        &["algorithm.kl.placement"],
        "reward; without this and use_kl_loss there is no KL and no reference",
    ).or("False"),
    computed(
        &["algorithm.kl_penalty"],
        &["algorithm.kl.estimator"],
        "with use_kl_in_reward: kl, mse, low_var_kl, abs",
    ).or("kl"),
    computed(&["algorithm.kl_ctrl.kl_coef"], &["algorithm.kl.coef"], "with use_kl_in_reward; 0 is no KL there").or("0.001"),
    computed(&["algorithm.kl_ctrl.type"], &["algorithm.kl.controller"], "with use_kl_in_reward").or("fixed"),
    computed(
        &["algorithm.kl_ctrl.target_kl"],
        &["algorithm.kl.controller.adaptive.target"],
        "with type adaptive",
    ).or("0.1"),
    computed(
        &["algorithm.kl_ctrl.horizon"],
        &["algorithm.kl.controller.adaptive.horizon"],
        "with type adaptive",
    ).or("10000"),
    // advantages
    field(
        &["algorithm.adv_estimator"],
        &["algorithm.advantage.estimator"],
        One(&[("gae", "gae"), ("grpo", "grpo"), ("grpo_vectorized", "grpo"), ("rloo", "rloo"),
              ("rloo_vectorized", "rloo"), ("reinforce_plus_plus", "reinforcePlusPlus"),
              ("reinforce_plus_plus_baseline", "reinforcePlusPlusBaseline")]),
    ),
    computed(
        &["algorithm.norm_adv_by_std_in_grpo"],
        &["algorithm.advantage.estimator"],
        "False makes grpo drGrpo",
    ).or("True"),
    field(&["algorithm.gamma"], &["algorithm.advantage.gamma"], Number),
    field(&["algorithm.lam"], &["algorithm.advantage.lambda"], Number),
    computed(
        &["algorithm.rollout_correction.rollout_is"],
        &["algorithm.truncatedImportanceSampling"],
        "token only",
    ).or("null"),
    computed(
        &["algorithm.rollout_correction.rollout_is_threshold"],
        &["algorithm.truncatedImportanceSampling"],
        "with rollout_is; the upper bound of `low_high`",
    ).or("2.0"),
    nowhere(
        &["algorithm.rollout_correction.*", "algorithm.use_pf_ppo"],
        "samples are neither rejected nor weighted; algorithm.truncatedImportanceSampling is the one correction",
    ).off(&["false"]),
    needless(&["algorithm.pf_ppo.*"], "counts only with use_pf_ppo"),
    computed(
        &["algorithm.filter_groups.enable"],
        &["batch.dynamicSampling"],
        "with an estimator that compares a group, and not in the recipe one_step_off_policy",
    ).or("False"),
    computed(
        &["algorithm.filter_groups.metric"],
        &["batch.dynamicSampling"],
        "groups are always compared by score, with all that is added up to it",
    ),
    computed(
        &["algorithm.filter_groups.max_num_gen_batches"],
        &["batch.dynamicSampling.maxDraws"],
        "x data.gen_batch_size / data.train_batch_size, at least 2; 0, no bound, is 10. verl ends the run there, here the step takes \
         groups of equal scores",
    ),
    needless(&["algorithm.filter_groups.*"], "a step draws again when the scores of its last draw are there"),
    nowhere(&["algorithm.gdpo_reward_keys"], "rewards are added up before advantages are made of them"),
    nowhere(&["distillation.enabled"], "there is no teacher: the policy learns from rewards alone").off(&["false"]),
    needless(&["distillation.*"], "counts only with distillation.enabled"),
    // critic
    field(&["critic.optim.lr"], &["optimizer.criticLearningRate"], Number).or("1e-5"),
    field(&["critic.cliprange_value"], &["algorithm.clip.value"], Number),
    computed(
        &["trainer.critic_warmup"],
        &["optimizer.criticWarmupSteps"],
        "N freezes N - 1 steps: verl counts them from 1 and trains the policy in step N",
    ),
    nowhere(
        &["critic.ppo_epochs", "critic.ppo_mini_batch_size", "critic.grad_clip", "critic.loss_agg_mode",
          "critic.optim.*"],
        "actor and critic share these settings; the actor's are taken",
    ),
    needless(&["critic.*"], "the critic shares the actor's micro-batches and GPUs"),
    // rollout
    computed(&["actor_rollout_ref.rollout.name"], &["roles.rollout.engine"], "vllm; another engine is replaced by it"),
    field(&["actor_rollout_ref.rollout.temperature"], &["generation.temperature"], Number),
    field(&["actor_rollout_ref.rollout.top_p"], &["generation.topP"], Number),
    field(&["actor_rollout_ref.rollout.top_k"], &["generation.topK"], Count),
    field(&["actor_rollout_ref.rollout.n"], &["batch.nSamplesPerPrompt"], Count),
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
        "engines draw with the weights that the actor learns, in model.dtype",
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
    field(
        &["actor_rollout_ref.rollout.dtype"],
        &["model.dtype"],
        One(&[("bfloat16", "bfloat16"), ("float32", "float32")]),
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
    nowhere(
        &["actor_rollout_ref.rollout.val_kwargs.*"],
        "one response to each held-out prompt is measured, from all tokens",
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
    // reward: below `reward` since 0.8, below `reward_model` before
    computed(&["reward.reward_model.enable", "reward_model.enable"], &["roles.reward.model"], "").or("False"),
    computed(
        &["reward.reward_model.model_path", "reward_model.model.path"],
        &["roles.reward.model.source"],
        "with reward.reward_model.enable",
    ),
    computed(
        &["reward.reward_model.enable_resource_pool", "reward_model.enable_resource_pool"],
        &["roles.reward.placement"],
        "without it a reward model has as many GPUs as the actor",
    ).or("False"),
    computed(
        &["reward.reward_model.nnodes", "reward_model.nnodes"],
        &["roles.reward.placement.nodes"],
        "with enable_resource_pool",
    ),
    computed(
        &["reward.reward_model.n_gpus_per_node", "reward_model.n_gpus_per_node"],
        &["roles.reward.placement.gpusPerNode"],
        "with enable_resource_pool",
    ).or("8"),
    // As in verl/experimental/reward_loop/reward_manager/dapo.py, and in its recipe before.
    computed(
        &["reward.reward_kwargs.overlong_buffer_cfg.enable",
          "reward_model.reward_kwargs.overlong_buffer_cfg.enable", "reward_model.overlong_buffer.enable"],
        &["roles.reward.rules"],
        "a length rule: 1 for a short response where verl has 0, falling as steeply",
    ).or("False"),
    computed(
        &["reward.reward_kwargs.overlong_buffer_cfg.len", "reward_model.reward_kwargs.overlong_buffer_cfg.len",
          "reward_model.overlong_buffer.len"],
        &["roles.reward.rules"],
        "tokens over which that rule falls, up to data.max_response_length",
    ),
    computed(
        &["reward.reward_kwargs.overlong_buffer_cfg.penalty_factor",
          "reward_model.reward_kwargs.overlong_buffer_cfg.penalty_factor",
          "reward_model.overlong_buffer.penalty_factor"],
        &["roles.reward.rules"],
        "the weight of that rule",
    ).or("1.0"),
    needless(
        &["reward.reward_kwargs.overlong_buffer_cfg.log", "reward.reward_kwargs.max_resp_len",
          "reward_model.reward_kwargs.overlong_buffer_cfg.log", "reward_model.overlong_buffer.log",
          "reward_model.reward_kwargs.max_resp_len"],
        "the rule ends at data.max_response_length",
    ),
    needless(
        &["reward.reward_model.*", "reward.num_workers"],
        "a reward model is read as it is and takes 16384 tokens at once",
    ),
    nowhere(
        &["reward_model.reward_kwargs.*", "custom_reward_function.*", "reward_manager.*", "reward_model.reward_manager",
          "reward_model.sandbox_fusion.*", "reward_model.reward_loop*", "reward.*", "sandbox_fusion.*"],
        "it is Python: serve it over HTTP and give its address in roles.reward.remote.urls (docs/model-and-reward.md)",
    ),
    needless(&["reward_model.*"], "a reward model is read as it is and takes 16384 tokens at once"),
    // pods, checkpoints, evaluation, logs
    field(&["trainer.nnodes"], &["roles.actor.nodes"], Count),
    field(&["trainer.n_gpus_per_node"], &["roles.actor.gpusPerNode"], Count).or("8"),
    computed(&["trainer.total_epochs"], &["episodes"], "").or("30"),
    computed(&["trainer.total_training_steps"], &["steps"], "counts before total_epochs"),
    field(&["trainer.save_freq"], &["checkpoint.everySteps"], CountOrNever).or("-1"),
    field(&["trainer.max_actor_ckpt_to_keep"], &["checkpoint.keep"], Count),
    field(&["trainer.default_local_dir"], &["checkpoint.path"], Text),
    field(&["data.val_files"], &["evaluation.source"], Data),
    computed(&["trainer.test_freq"], &["evaluation.everySteps"], "below 1 there is no evaluation").or("-1"),
    computed(&["data.val_max_samples"], &["evaluation.maxPrompts"], "with evaluation"),
    field(&["trainer.log_val_generations"], &["telemetry.samples"], Count),
    computed(&["trainer.experiment_name"], &["metadata.name"], ""),
    nowhere(
        &["trainer.v1.trainer_mode"],
        "a step is generated before it is learnt from; `overlap: oneStep` generates the next one meanwhile",
    ).off(&["sync"]),
    nowhere(&["trainer.val_only"], "ppo-worker has no run that only evaluates").off(&["false"]),
    nowhere(
        &["trainer.logger"],
        "metrics go to TensorBoard, Prometheus and metrics.jsonl (docs/monitoring.md), under verl's names in \
         TensorBoard",
    ),
    needless(
        &["trainer.*"],
        "is Ray's matter, or always so: a run evaluates first, goes on from its last checkpoint and writes samples",
    ),
    needless(
        &["ray_kwargs.*", "ray_init.*", "global_profiler.*", "transfer_queue.*", "hydra.*"],
        "is Ray's, hydra's or a profiler's matter",
    ),
    needless(&["skip.*"], "responses are generated anew in every step"),
    nowhere(
        &["config-path", "config-name", "data@*", "model@*", "rollout@*", "reward@*", "algorithm@*"],
        "the file is not read: give what it changes as overrides",
    ),
];
