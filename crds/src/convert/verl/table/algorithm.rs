//! verl's settings of the KL, of advantages and of the critic.

use crate::convert::critic::SHARED;
use crate::convert::row::Read::{Number, One};
use crate::convert::row::{Row, computed, field, needless, nowhere};

/// Every one of them.
#[rustfmt::skip]
pub const ROWS: &[Row] = &[
    // KL: either term
    computed(&["actor_rollout_ref.actor.use_kl_loss"], &["algorithm.kl.placement"], "loss").or("False"),
    computed(&["actor_rollout_ref.actor.kl_loss_coef"], &["algorithm.kl.coef"], "with use_kl_loss; 0 is no KL there").or("0.001"),
    computed(
        &["actor_rollout_ref.actor.kl_loss_type"],
        &["algorithm.kl.estimator"],
        "with use_kl_loss; with a `+`, as k3+, it is k2, whose gradient verl takes",
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
        &["algorithm.truncatedImportanceSampling", "algorithm.rolloutCorrection.level"],
        "token or sequence",
    ).or("null"),
    computed(
        &["algorithm.rollout_correction.rollout_is_threshold"],
        &["algorithm.truncatedImportanceSampling", "algorithm.rolloutCorrection.high"],
        "with rollout_is; `low_high` leaves out what is outside",
    ).or("2.0"),
    computed(
        &["algorithm.rollout_correction.rollout_rs"],
        &["algorithm.rolloutCorrection.level"],
        "token_k1, seq_sum_k1 or seq_mean_k1, in older versions token, sequence or geometric, with outside: mask; what is left out stays in \
         what losses are divided by",
    ),
    computed(
        &["algorithm.rollout_correction.rollout_rs_threshold"],
        &["algorithm.rolloutCorrection.low", "algorithm.rolloutCorrection.high"],
        "with rollout_rs; k1's bounds are those of the ratio's inverse",
    ),
    computed(
        &["algorithm.rollout_correction.rollout_rs_threshold_lower"],
        &["algorithm.rolloutCorrection.low"],
        "with rollout_rs, in older versions",
    ),
    nowhere(
        &["algorithm.rollout_correction.*", "algorithm.use_pf_ppo"],
        "a ratio of a token or a response is bounded (algorithm.rolloutCorrection), and samples are neither weighted nor left out otherwise",
    ).off(&["false"]),
    needless(&["algorithm.pf_ppo.*"], "counts only with use_pf_ppo"),
    computed(
        &["algorithm.filter_groups.enable"],
        &["batch.dynamicSampling"],
        "with an estimator that compares a group",
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
    computed(&["critic.ppo_epochs"], &["batch.ppoEpochs"], SHARED),
    computed(&["critic.ppo_mini_batch_size"], &["batch.trainBatchSize"], SHARED),
    computed(&["critic.loss_agg_mode"], &["algorithm.aggregation"], SHARED),
    computed(&["critic.grad_clip", "critic.optim.clip_grad"], &["optimizer.maxGradNorm"], SHARED),
    computed(&["critic.optim.betas"], &["optimizer.beta1", "optimizer.beta2"], SHARED),
    computed(&["critic.optim.eps"], &["optimizer.epsilon"], SHARED),
    computed(&["critic.optim.weight_decay"], &["optimizer.weightDecay"], SHARED),
    computed(
        &["critic.optim.lr_scheduler_type", "critic.optim.warmup_style", "critic.optim.lr_decay_style"],
        &["optimizer.schedule"],
        SHARED,
    ),
    computed(&["critic.optim.min_lr_ratio"], &["optimizer.minLearningRateRatio"], SHARED),
    computed(&["critic.optim.lr_warmup_steps"], &["optimizer.warmupUpdates"], SHARED),
    computed(&["critic.optim.lr_warmup_steps_ratio"], &["optimizer.warmupRatio"], SHARED),
    field(&["critic.optim.optimizer"], &[], One(&[("adamw", ""), ("adam", "")])),
    needless(&["critic.optim.total_training_steps"], "the schedule ends with the run"),
    nowhere(&["critic.optim.*"], "actor and critic share these settings; the actor's are taken").off(&["{}"]),
    needless(&["critic.*"], "the critic shares the actor's micro-batches and GPUs"),
];
