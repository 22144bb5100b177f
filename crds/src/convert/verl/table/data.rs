//! verl's settings of prompts.

use crate::convert::row::Read::{Count, Data, Text, Truth};
use crate::convert::row::{Row, computed, field, needless, nowhere};

/// Every one of them.
#[rustfmt::skip]
pub const ROWS: &[Row] = &[
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
        "the reward is not chosen by a column: give rules (mathMatch compares final answers), a model or a server in roles.reward",
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
    nowhere(
        &["rollout.total_rollout_steps", "rollout.total_epochs", "rollout.test_freq", "async_training.*"],
        "of fully_async_main: steps or episodes, and evaluation.everySteps, are steps of batch.rolloutBatchSize prompts here; a sample is at \
         most one policy old (overlap: oneStep), and a response is drawn by one",
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
];
