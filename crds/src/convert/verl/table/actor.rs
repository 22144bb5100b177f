//! verl's settings of the models, and of the actor's update.

use crate::convert::row::Read::{Count, Each, Model, Number, Numbers, One, Truth};
use crate::convert::row::{Row, computed, field, needless, nowhere};

/// Every one of them.
#[rustfmt::skip]
pub const ROWS: &[Row] = &[
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
              ("seq-mean-token-sum-norm", "sequenceMeanTokenSumNorm"), ("token-sum", "tokenSum")]),
    ),
    // What it was before loss_agg_mode, when DAPO's recipe was new.
    field(
        &["actor_rollout_ref.actor.use_token_level_loss"],
        &["algorithm.aggregation"],
        One(&[("true", "tokenMean"), ("false", "sequenceMeanTokenMean")]),
    ),
    nowhere(
        &["actor_rollout_ref.actor.loss_scale_factor"],
        "sequenceMeanTokenSumNorm divides by generation.maxNewTokens",
    ),
    field(&["actor_rollout_ref.actor.entropy_coeff"], &["algorithm.entropyCoef"], Number),
    field(
        &["actor_rollout_ref.actor.policy_loss.loss_mode"],
        &["algorithm.ratio", "algorithm.surrogate"],
        Each(&[("vanilla", &["token", ""]), ("gspo", &["sequence", ""]), ("cispo", &["", "cispo"])]),
    ),
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
    field(&["actor_rollout_ref.actor.optim.eps"], &["optimizer.epsilon"], Number),
    field(
        &["actor_rollout_ref.actor.optim.weight_decay"],
        &["optimizer.weightDecay"],
        Number,
    ).or("0.01").off(&["0", "0.0"]).note("verl's optimizer decays norms and biases, too; here matrices alone"),
    computed(
        &["actor_rollout_ref.actor.optim.lr_warmup_steps"],
        &["optimizer.warmupUpdates"],
        "counts steps in verl, updates here: x updates per step",
    ),
    computed(
        &["actor_rollout_ref.actor.optim.lr_warmup_steps_ratio"],
        &["optimizer.warmupRatio"],
        "counts without lr_warmup_steps; verl rounds down to whole steps, here it is rounded up to updates",
    ),
    field(
        &["actor_rollout_ref.actor.optim.lr_scheduler_type", "actor_rollout_ref.actor.optim.warmup_style",
          "actor_rollout_ref.actor.optim.lr_decay_style"],
        &["optimizer.schedule"],
        One(&[("constant", "constant"), ("cosine", "cosine"), ("linear", "linear")]),
    ),
    field(&["actor_rollout_ref.actor.optim.min_lr_ratio"], &["optimizer.minLearningRateRatio"], Number).or("0.0"),
    nowhere(
        &["actor_rollout_ref.actor.optim.min_lr", "actor_rollout_ref.actor.optim.lr_min"],
        "optimizer.minLearningRateRatio is its share of the learning rate: give min_lr / lr",
    ).off(&["0", "0.0"]),
    needless(&["actor_rollout_ref.actor.optim.total_training_steps"], "the schedule ends with the run"),
    // Megatron's `adam` decays the weights as AdamW does; of FSDP's `Adam`, which does not, `optimizer::tell` says so.
    field(&["actor_rollout_ref.actor.optim.optimizer"], &[], One(&[("adamw", ""), ("adam", "")])),
    computed(
        &["actor_rollout_ref.actor.optim.lr_decay_steps"],
        &[],
        "the learning rate falls to the end of the run: a run of so many steps ends its schedule there",
    ),
    computed(
        &["actor_rollout_ref.actor.optim.num_cycles"],
        &[],
        "cosine is half a wave: the learning rate falls once, to the end of the run",
    ).off(&["0.5"]),
    computed(
        &["actor_rollout_ref.actor.optim.lr_decay_ratio"],
        &[],
        "the learning rate falls to the end of the run, not for a part of it",
    ).off(&["1", "1.0"]),
    computed(
        &["actor_rollout_ref.actor.optim.lr_warmup_init", "actor_rollout_ref.actor.optim.lr_start"],
        &[],
        "a warm-up begins at 0",
    ).off(&["0", "0.0"]),
    nowhere(
        &["actor_rollout_ref.actor.optim.decay_type", "actor_rollout_ref.actor.optim.min_lr_factor"],
        "give the course of the learning rate in optimizer.schedule and optimizer.minLearningRateRatio",
    ),
    nowhere(
        &["actor_rollout_ref.actor.optim.weight_decay_incr_style"],
        "the weight decay stays as it is (optimizer.weightDecay)",
    ).off(&["constant"]),
    needless(
        &["actor_rollout_ref.actor.optim.override_optimizer_config.optimizer_cpu_offload",
          "actor_rollout_ref.actor.optim.override_optimizer_config.optimizer_offload_fraction",
          "actor_rollout_ref.actor.optim.override_optimizer_config.overlap_cpu_optimizer_d2h_h2d",
          "actor_rollout_ref.actor.optim.override_optimizer_config.use_torch_optimizer_for_cpu_offload",
          "actor_rollout_ref.actor.optim.override_optimizer_config.use_precision_aware_optimizer",
          "critic.optim.override_optimizer_config.optimizer_cpu_offload",
          "critic.optim.override_optimizer_config.optimizer_offload_fraction",
          "critic.optim.override_optimizer_config.overlap_cpu_optimizer_d2h_h2d",
          "critic.optim.override_optimizer_config.use_torch_optimizer_for_cpu_offload",
          "critic.optim.override_optimizer_config.use_precision_aware_optimizer"],
        "says only where the optimizer's state lies",
    ),
    nowhere(
        &["actor_rollout_ref.actor.optim.override_optimizer_config*"],
        "the optimizer is AdamW with the fields of optimizer, and nothing else",
    ).off(&["{}"]),
    needless(&["actor_rollout_ref.actor.optim.*"], "the optimizer is AdamW, with a schedule of one period"),
    needless(
        &["actor_rollout_ref.actor.use_dynamic_bsz", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
          "actor_rollout_ref.ref.log_prob_use_dynamic_bsz", "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu",
          "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz",
          "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu"],
        "micro-batches are packed by tokens as it is: up to `batch.microTrainBatchSize` times the greatest length",
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
];
