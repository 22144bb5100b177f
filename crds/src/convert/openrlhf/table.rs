//! The flags of `openrlhf/cli/train_ppo_ray.py`: 0.11's names first (`--actor.adam.lr`), then those of 0.6 to 0.10.

use crate::convert::critic::SHARED;
use crate::convert::row::Read::{Count, CountOrNever, Data, Folder, Is, Model, Number, Numbers, One, Text, Truth};
use crate::convert::row::{NO_DROPOUT, Row, computed, field, needless, nowhere};

/// Where a reward function in Python goes.
pub const SERVE_IT: &str =
    "it is Python: serve it over HTTP and give its address in roles.reward.remote.urls (docs/model-and-reward.md)";

/// Every flag.
#[rustfmt::skip]
pub const ROWS: &[Row] = &[
    // models
    field(&["actor.model_name_or_path", "pretrain"], &["model.policy"], Model),
    field(&["critic.model_name_or_path", "critic_pretrain"], &["model.critic"], Model),
    field(&["reward.model_name_or_path", "reward_pretrain"], &["roles.reward.model.source"], Model),
    computed(
        &["reward.remote_url", "remote_rm_url"],
        &["roles.reward.remote.urls"],
        "addresses, separated by commas; a Python file has to be served",
    ),
    nowhere(&["train.agent_func_path", "agent_func_path"], SERVE_IT),
    field(&["ds.param_dtype", "param_dtype"], &["model.dtype"], One(&[("bf16", "bfloat16")])),
    field(&["bf16"], &["model.dtype"], Is("bfloat16")),
    field(
        &["actor.gradient_checkpointing_enable", "gradient_checkpointing"],
        &["model.activationCheckpointing"],
        Truth,
    ),
    nowhere(
        &["ds.load_in_4bit", "load_in_4bit"],
        "there is no quantised training: weights are bfloat16 or float32 (model.dtype)",
    ).off(&["false"]),
    computed(&["ds.lora.rank", "lora_rank"], &["model.adapter.rank"], "0 trains all weights"),
    computed(&["ds.lora.alpha", "lora_alpha"], &["model.adapter.alpha"], "with a rank").or("16"),
    computed(
        &["ds.lora.target_modules", "target_modules"],
        &["model.adapter.targets"],
        "with a rank; `all-linear` is the default here too",
    ),
    nowhere(&["ds.lora.dropout", "lora_dropout"], NO_DROPOUT).off(&["0", "0.0"]),
    // prompts
    field(&["data.prompt_dataset", "prompt_data"], &["prompts.source"], Data),
    nowhere(&["data.prompt_probs", "prompt_data_probs"], "files are read one after another: mix the data sets into one file by these shares"),
    nowhere(&["data.prompt_split", "prompt_split"], "data sets are files here: write this split into one"),
    field(&["data.input_key", "input_key"], &["prompts.promptField"], Text).or("input"),
    field(&["data.label_key", "label_key"], &["prompts.labelField"], Text),
    computed(
        &["data.apply_chat_template", "apply_chat_template"],
        &["prompts.chatTemplate"],
        "without it OpenRLHF adds no special tokens to a prompt; here a text gets those of its tokenizer",
    ),
    nowhere(
        &["data.input_template", "input_template"],
        "write the prompts out with the template, or use the model's own (prompts.chatTemplate)",
    ),
    nowhere(&["data.max_samples", "max_samples"], "cut the file to so many rows: head -n"),
    computed(
        &["data.max_len", "max_len"],
        &["prompts.maxLength", "generation.maxNewTokens"],
        "prompts.maxLength is what max_new_tokens leaves of it; without max_new_tokens each gets half, where OpenRLHF \
         gives a response what its prompt leaves; 2048 by default since 0.9.9",
    ),
    field(&["prompt_max_len"], &["prompts.maxLength"], Count).note("a longer prompt is dropped, and counted; OpenRLHF cuts it"),
    nowhere(
        &["data.image_key", "data.max_images_per_prompt", "actor.freeze_visual_encoder", "image_key",
          "max_images_per_prompt", "freeze_visual_encoder"],
        "models are text only",
    ).off(&["false", "0"]),
    nowhere(
        &["pretrain_data", "pretrain_data_probs", "pretrain_split", "ptx_coef"],
        "there is no pre-training loss beside PPO's",
    ),
    // generation
    computed(&["rollout.max_new_tokens", "max_new_tokens", "generate_max_len"], &["generation.maxNewTokens"], ""),
    field(&["rollout.temperature", "temperature"], &["generation.temperature"], Number),
    field(&["rollout.top_p", "top_p"], &["generation.topP"], Number),
    // batch
    field(&["rollout.batch_size", "rollout_batch_size"], &["batch.rolloutBatchSize"], Count).or("1024"),
    field(&["rollout.n_samples_per_prompt", "n_samples_per_prompt"], &["batch.nSamplesPerPrompt"], Count),
    field(&["rollout.micro_batch_size", "micro_rollout_batch_size"], &["batch.microRolloutBatchSize"], Count),
    field(&["train.batch_size", "train_batch_size"], &["batch.trainBatchSize"], Count).or("128"),
    field(&["train.micro_batch_size", "micro_train_batch_size"], &["batch.microTrainBatchSize"], Count),
    field(&["train.max_epochs", "max_epochs"], &["batch.ppoEpochs"], Count),
    field(&["train.num_episodes", "num_episodes"], &["episodes"], Count),
    needless(
        &["train.dynamic_batch_enable", "use_dynamic_batch", "rollout.max_tokens_per_gpu",
          "rollout_max_tokens_per_gpu", "train.max_tokens_per_gpu", "train_max_tokens_per_gpu"],
        "micro-batches are packed by tokens as it is: up to `batch.microTrainBatchSize` times the greatest length",
    ),
    needless(
        &["rollout.vllm_generate_batch_size", "vllm_generate_batch_size"],
        "engines take a step's samples as they have room",
    ),
    computed(
        &["algo.dynamic_filtering_enable", "dynamic_filtering"],
        &["batch.dynamicSampling"],
        "with an estimator that compares a group: a step draws at most maxDraws times and then takes groups of \
         equal scores, where OpenRLHF draws on to the end of the prompts",
    ),
    computed(
        &["algo.dynamic_filtering_range", "dynamic_filtering_reward_range"],
        &["batch.dynamicSampling"],
        "a group is left out where its scores are all equal, in OpenRLHF where their mean is not within this range: the same for scores of \
         0 and 1 and the range 0 1",
    ).or("0 1"),
    field(&["train.async_enable", "async_train"], &["overlap"], Is("oneStep")),
    needless(
        &["train.async_queue_size", "async_queue_size"],
        "one step is generated ahead, whatever the queue: no sample is more than one version old",
    ),
    nowhere(
        &["train.partial_rollout_enable", "partial_rollout"],
        "a response is drawn by one version: new weights wait until the engines are done with a step",
    ).off(&["false"]),
    // algorithm
    field(
        &["algo.advantage.estimator", "advantage_estimator"],
        &["algorithm.advantage.estimator"],
        One(&[("gae", "gae"), ("reinforce", "reinforcePlusPlus"), ("rloo", "rloo"),
              ("reinforce_baseline", "reinforcePlusPlusBaseline"), ("group_norm", "grpo"), ("dr_grpo", "drGrpo")]),
    ),
    field(
        &["actor.loss_agg_mode"],
        &["algorithm.aggregation"],
        One(&[("token-mean", "tokenMean"), ("seq-mean-token-mean", "sequenceMeanTokenMean")]),
    ),
    field(&["algo.advantage.gamma", "gamma"], &["algorithm.advantage.gamma"], Number),
    field(&["algo.advantage.lambd", "lambd"], &["algorithm.advantage.lambda"], Number),
    nowhere(
        &["algo.advantage.no_std_norm", "no_advantage_std_norm"],
        "algorithm.advantage.whiten: false leaves out the mean as well; for group_norm, estimator drGrpo leaves out \
         the deviation alone",
    ).off(&["false"]),
    field(&["algo.kl.init_coef", "init_kl_coef"], &["algorithm.kl.coef"], Number),
    field(
        &["algo.kl.estimator", "kl_estimator"],
        &["algorithm.kl.estimator"],
        One(&[("k1", "k1"), ("k2", "k2"), ("k3", "k3")]),
    ).or("k1"),
    field(&["use_kl_estimator_k3"], &["algorithm.kl.estimator"], Is("k3")),
    field(&["algo.kl.use_loss", "use_kl_loss"], &["algorithm.kl.placement"], Is("loss")),
    computed(
        &["algo.kl.unbiased_gradient"],
        &["algorithm.kl.estimator"],
        "k2 with use_loss, whose gradient it is but for the weight of a ratio; without use_loss it does nothing",
    ),
    computed(&["algo.kl.target", "kl_target"], &["algorithm.kl.controller.adaptive.target"], ""),
    computed(
        &["algo.kl.horizon", "kl_horizon"],
        &["algorithm.kl.controller.adaptive.horizon"],
        "counts only with a target",
    ).or("10000"),
    field(&["actor.eps_clip", "eps_clip"], &["algorithm.clip.policyLow", "algorithm.clip.policyHigh"], Number),
    field(
        &["actor.eps_clip_low_high", "eps_clip_low_high"],
        &["algorithm.clip.policyLow", "algorithm.clip.policyHigh"],
        Numbers,
    ),
    field(&["actor.dual_clip", "dual_clip"], &["algorithm.clip.dual"], Number),
    field(&["critic.value_clip", "value_clip"], &["algorithm.clip.value"], Number),
    field(&["actor.entropy_coef", "entropy_loss_coef"], &["algorithm.entropyCoef"], Number),
    field(
        &["actor.policy_loss_type", "policy_loss_type"],
        &["algorithm.ratio"],
        One(&[("ppo", "token"), ("gspo", "sequence")]),
    ),
    nowhere(&["actor.aux_loss_coef", "aux_loss_coef"], "models are dense: there is no balancing loss of experts").off(&["0", "0.0"]),
    nowhere(
        &["reward.normalize_enable", "normalize_reward"],
        "a reward model's scores are taken as they are; scale them with algorithm.score.scale",
    ).off(&["false"]),
    field(
        &["reward.clip_range", "reward_clip_range"],
        &["algorithm.score.clip.min", "algorithm.score.clip.max"],
        Numbers,
    ),
    computed(
        &["reward.overlong_buffer_len", "overlong_buffer_len"],
        &["roles.reward.rules"],
        "a length rule: 0 for a response that is short enough, falling to minus the factor at the longest",
    ),
    computed(
        &["reward.overlong_penalty_factor", "overlong_penalty_factor"],
        &["roles.reward.rules"],
        "the weight of that rule, below 0",
    ).or("1"),
    nowhere(
        &["reward.stop_properly_penalty_coef", "stop_properly_penalty_coef"],
        "related: algorithm.score.missingEosPenalty subtracts a number from the score of a response that did not \
         finish",
    ),
    computed(
        &["algo.advantage.is_correction_enable", "enable_vllm_is_correction"],
        &["algorithm.rolloutCorrection"],
        "its type and threshold, once it is on",
    ),
    computed(
        &["algo.advantage.is_correction_threshold", "vllm_is_truncated_threshold"],
        &["algorithm.rolloutCorrection.low", "algorithm.rolloutCorrection.high"],
        "one number is the upper one, as up to 0.9.0 and with a level; without a lower one truncated ratios are \
         algorithm.truncatedImportanceSampling",
    ).or("0.5 5.0"),
    computed(
        &["algo.advantage.is_correction_level"],
        &["algorithm.rolloutCorrection.level"],
        "of 0.11.2; seq is geometric",
    ),
    computed(
        &["algo.advantage.is_correction_mode"],
        &["algorithm.rolloutCorrection.outside"],
        "with a level; clip is truncate",
    ),
    computed(
        &["algo.advantage.is_correction_gating"],
        &["algorithm.truncatedImportanceSampling"],
        "with a level; by `binary_kl` or `tv` there is no gate, and a ratio is truncated at 2",
    ),
    computed(
        &["algo.advantage.is_correction_type", "vllm_is_correction_type"],
        &["algorithm.rolloutCorrection.level", "algorithm.rolloutCorrection.outside"],
        "tis truncates tokens' ratios, icepop leaves tokens out, seq-mask-tis responses by their geometric mean",
    ).or("tis"),
    computed(
        &["use_icepop"],
        &["algorithm.rolloutCorrection.outside"],
        "mask, once the correction is on",
    ),
    // optimizer
    field(&["actor.adam.lr", "actor_learning_rate"], &["optimizer.actorLearningRate"], Number),
    field(&["critic.adam.lr", "critic_learning_rate"], &["optimizer.criticLearningRate"], Number),
    field(&["actor.adam.betas", "adam_betas"], &["optimizer.beta1", "optimizer.beta2"], Numbers),
    field(&["actor.adam.eps"], &["optimizer.epsilon"], Number),
    field(&["actor.adam.weight_decay", "l2"], &["optimizer.weightDecay"], Number),
    field(&["actor.max_norm", "max_norm"], &["optimizer.maxGradNorm"], Number),
    computed(
        &["actor.lr_scheduler", "lr_scheduler"],
        &["optimizer.schedule", "optimizer.minLearningRateRatio"],
        "",
    ).or("cosine_with_min_lr"),
    computed(&["actor.min_lr_ratio"], &["optimizer.minLearningRateRatio"], "").or("0.1"),
    computed(&["actor.lr_warmup_ratio", "lr_warmup_ratio"], &["optimizer.warmupRatio"], "").or("0.03"),
    computed(&["critic.adam.betas"], &["optimizer.beta1", "optimizer.beta2"], SHARED),
    computed(&["critic.adam.eps"], &["optimizer.epsilon"], SHARED),
    computed(&["critic.adam.weight_decay"], &["optimizer.weightDecay"], SHARED),
    computed(&["critic.max_norm"], &["optimizer.maxGradNorm"], SHARED),
    computed(&["critic.lr_scheduler"], &["optimizer.schedule"], SHARED),
    computed(&["critic.min_lr_ratio"], &["optimizer.minLearningRateRatio"], SHARED),
    computed(&["critic.lr_warmup_ratio"], &["optimizer.warmupRatio"], SHARED),
    field(&["actor.optim"], &[], One(&[("adam", "")])),
    field(&["critic.optim"], &[], One(&[("adam", "")])),
    needless(&["actor.muon.*", "critic.muon.*"], "the optimizer is AdamW"),
    computed(
        &["critic.freezing_steps", "freezing_actor_steps"],
        &["optimizer.criticWarmupSteps"],
        "N freezes N + 1 steps since 0.9.1, which counts them from 0, and N up to 0.9.0",
    ),
    field(&["train.seed", "seed"], &["seed"], Count),
    needless(
        &["train.full_determinism_enable", "full_determinism"],
        "a run always gives the same bits on the same machine",
    ),
    nowhere(&["train.enable_ema", "enable_ema"], "no moving average of the weights is kept").off(&["false"]),
    needless(&["train.ema_beta", "ema_beta"], "has nothing to act on without a moving average"),
    // pods and GPUs
    field(&["actor.num_nodes", "actor_num_nodes"], &["roles.actor.nodes"], Count),
    field(&["actor.num_gpus_per_node", "actor_num_gpus_per_node"], &["roles.actor.gpusPerNode"], Count).or("8"),
    field(&["ref.num_nodes", "ref_num_nodes"], &["roles.reference.nodes"], Count),
    field(&["ref.num_gpus_per_node", "ref_num_gpus_per_node"], &["roles.reference.gpusPerNode"], Count).or("8"),
    computed(&["reward.num_nodes", "reward_num_nodes"], &["roles.reward.placement.nodes"], "only with a reward model"),
    computed(
        &["reward.num_gpus_per_node", "reward_num_gpus_per_node"],
        &["roles.reward.placement.gpusPerNode"],
        "only with a reward model",
    ).or("8"),
    needless(
        &["critic.num_nodes", "critic.num_gpus_per_node", "critic_num_nodes", "critic_num_gpus_per_node"],
        "the critic lives in the actor's pods, on the actor's GPUs",
    ),
    computed(&["vllm.num_engines", "vllm_num_engines"], &["roles.rollout.replicas", "roles.rollout.engine"], ""),
    field(&["vllm.tensor_parallel_size", "vllm_tensor_parallel_size"], &["roles.rollout.gpusPerReplica"], Count),
    nowhere(
        &["vllm.gpu_memory_utilization", "vllm_gpu_memory_utilization"],
        "roles.rollout.kvCacheMebibytes says the cache's size in MiB, over all GPUs of an engine; without it vLLM takes nine tenths of each GPU",
    ),
    nowhere(
        &["train.colocate_all", "train.colocate_actor_ref", "train.colocate_critic_reward", "colocate_all_models",
          "colocate_actor_ref", "colocate_critic_reward"],
        "each role has GPUs of its own, so more of them are asked for: make roles.*.gpusPerNode smaller to take as \
         many as before",
    ).off(&["false"]),
    nowhere(
        &["ds.ring_attn_size", "ring_attn_size", "ds.tensor_parallel_size", "ds_tensor_parallel_size"],
        "every GPU of the actor is a data-parallel rank, so accumulation = trainBatchSize / (microTrainBatchSize x \
         all GPUs)",
    ).off(&["1"]),
    needless(&["ds.ring_attn_head_stride", "ring_head_stride"], "has nothing to act on without ring attention"),
    needless(
        &["ref.offload", "reward.offload", "ref_reward_offload", "ds.adam_offload", "adam_offload"],
        "nothing is moved to the CPU",
    ),
    needless(&["ds.packing_samples", "packing_samples"], "sequences are always packed"),
    needless(
        &["ds.zero_stage", "zero_stage", "ds.zpg", "zpg", "ds.deepcompile", "deepcompile", "ds.grad_accum_dtype",
          "grad_accum_dtype", "ds.overlap_comm", "overlap_comm", "ds.use_liger_kernel", "use_liger_kernel",
          "ds.attn_implementation", "attn_implementation", "flash_attn", "ds.experts_implementation",
          "ds.value_head_prefix", "value_head_prefix", "actor.gradient_checkpointing_reentrant",
          "gradient_checkpointing_use_reentrant", "actor_init_on_gpu", "local_rank", "perf", "ds.enable_sleep",
          "deepspeed_enable_sleep", "torch_compile"],
        "is DeepSpeed's or PyTorch's matter",
    ),
    needless(
        &["vllm.sync_backend", "vllm_sync_backend", "vllm.sync_with_ray", "vllm_sync_with_ray",
          "vllm.enable_prefix_caching", "enable_prefix_caching", "vllm.enforce_eager", "enforce_eager",
          "vllm.enable_sleep", "vllm_enable_sleep"],
        "the engines are run by the job",
    ),
    needless(
        &["data.disable_fast_tokenizer", "disable_fast_tokenizer", "data.dataloader_num_workers",
          "dataloader_num_workers"],
        "prompts are read by the actor itself",
    ),
    nowhere(&["use_ms"], "models come from a path, a claim or the Hugging Face hub").off(&["false"]),
    // checkpoints, evaluation, logs
    field(&["ckpt.path", "ckpt_path"], &["checkpoint.path"], Folder),
    field(&["ckpt.save_steps", "save_steps"], &["checkpoint.everySteps"], CountOrNever).or("-1"),
    field(&["ckpt.max_num", "max_ckpt_num"], &["checkpoint.keep"], Count),
    computed(
        &["ckpt.best_metric_key", "best_metric_key"],
        &["checkpoint.keepBest"],
        "`none` keeps no best one; which metric is best is fixed: held-out score, else mean score",
    ),
    needless(&["ckpt.load_enable", "load_checkpoint"], "a run always goes on from its last checkpoint"),
    needless(
        &["ckpt.output_dir", "save_path", "ckpt.save_hf", "save_hf_ckpt", "ckpt.disable_ds", "disable_ds_ckpt",
          "ckpt.max_mem", "max_ckpt_mem", "ds.use_universal_ckpt", "use_ds_universal_ckpt", "universal_ckpt"],
        "the trained model is saved in Hugging Face layout in the run's folder; checkpoints have one format",
    ),
    nowhere(
        &["critic.save_value_network", "save_value_network"],
        "the critic is in the checkpoints, not in a folder of its own",
    ).off(&["false"]),
    field(&["eval.dataset", "eval_dataset"], &["evaluation.source"], Data),
    computed(&["eval.steps", "eval_steps"], &["evaluation.everySteps"], "only with an evaluation data set"),
    computed(
        &["eval.temperature", "eval_temperature"],
        &["evaluation.temperature"],
        "only with an evaluation data set",
    ).or("0.6"),
    computed(
        &["eval.n_samples_per_prompt", "eval_n_samples_per_prompt"],
        &["evaluation.nSamplesPerPrompt"],
        "only with an evaluation data set; 1 at temperature 0",
    ).or("4"),
    nowhere(&["eval.split", "eval_split"], "data sets are files here: write this split into one"),
    needless(&["logger.logging_steps", "logging_steps"], "every step is logged"),
    needless(
        &["logger.tensorboard_dir", "use_tensorboard"],
        "TensorBoard events are always written, into the run's folder",
    ),
    nowhere(
        &["logger.wandb.key", "use_wandb"],
        "metrics go to TensorBoard, Prometheus and metrics.jsonl (docs/monitoring.md)",
    ).off(&["false"]),
    computed(&["logger.wandb.run_name", "wandb_run_name"], &["metadata.name"], ""),
    needless(
        &["logger.wandb.*", "wandb_org", "wandb_group", "wandb_project"],
        "metrics go to TensorBoard, Prometheus and metrics.jsonl (docs/monitoring.md)",
    ),
];
