//! verl's settings of rewards: below `reward` since 0.8, below `reward_model` before.

use super::rollout::FORMATS;
use crate::convert::row::Read::One;
use crate::convert::row::{Row, computed, field, needless, nowhere};

/// Every one of them.
#[rustfmt::skip]
pub const ROWS: &[Row] = &[
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
    field(
        &["reward.reward_model.rollout.dtype", "reward_model.rollout.dtype"],
        &["roles.reward.model.dtype"],
        One(FORMATS),
    ).note("with reward.reward_model.enable"),
    // As in verl/experimental/reward_loop/reward_manager/dapo.py, and in its recipe before.
    computed(
        &["reward.reward_kwargs.overlong_buffer_cfg.enable",
          "reward_model.reward_kwargs.overlong_buffer_cfg.enable", "reward_model.overlong_buffer.enable",
          "custom_reward_function.overlong_buffer.enable"],
        &["roles.reward.rules"],
        "a length rule: 0 for a response that is short enough, falling to minus the factor at the longest",
    ).or("False"),
    computed(
        &["reward.reward_kwargs.overlong_buffer_cfg.len", "reward_model.reward_kwargs.overlong_buffer_cfg.len",
          "reward_model.overlong_buffer.len", "custom_reward_function.overlong_buffer.len"],
        &["roles.reward.rules"],
        "tokens over which that rule falls, up to data.max_response_length",
    ),
    computed(
        &["reward.reward_kwargs.overlong_buffer_cfg.penalty_factor",
          "reward_model.reward_kwargs.overlong_buffer_cfg.penalty_factor",
          "reward_model.overlong_buffer.penalty_factor", "custom_reward_function.overlong_buffer.penalty_factor"],
        &["roles.reward.rules"],
        "the weight of that rule, below 0",
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
];
