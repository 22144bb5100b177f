//! What only `PPOTrainer` does: how it cuts a batch into updates, which models it trains, and where its responses end.

use serde_json::json;

use super::newer;
use super::processes::processes;
use super::{accumulation, common, per_device, warm_up};
use crate::convert::draft::{Draft, WrongValue, updates_per_step};

/// Sizes, updates and models of PPO.
pub(super) fn finish(draft: &mut Draft) -> Result<(), WrongValue> {
    models(draft);
    let local = per_device(draft)?.saturating_mul(accumulation(draft)?);
    let batch = local.saturating_mul(processes(draft)?);
    let source = "per_device_train_batch_size x gradient_accumulation_steps x processes";
    draft.set("batch.rolloutBatchSize", batch, source);
    let updates = updates_of_an_epoch(draft)?;
    draft.set("batch.trainBatchSize", batch / updates, source);
    draft.set(
        "batch.microTrainBatchSize",
        (per_device(draft)? / updates).max(1),
        &draft.source("per_device_train_batch_size"),
    );
    if let Some(samples) = draft
        .count("total_episodes")?
        .filter(|_| draft.is_given("total_episodes"))
    {
        draft.set(
            "steps",
            samples.div_ceil(batch.max(1)),
            &format!("{} / {batch} samples", draft.source("total_episodes")),
        );
    }
    newer::learning_rate(draft);
    // `lr_scheduler.step()` once a batch, after its epochs (ppo_trainer.py).
    let updates = updates_per_step(draft);
    warm_up(draft, updates)?;
    draft.set("optimizer.maxGradNorm", 0.0, "PPOTrainer does not clip gradients");
    if draft.is_given("max_grad_norm") {
        draft.leave(
            "max_grad_norm",
            "TRL's PPOTrainer does not clip gradients, only DeepSpeed does for it (gradient_clipping: auto): if yours did, give \
             optimizer.maxGradNorm",
        );
    }
    stop_tokens(draft)?;
    // PPOTrainer starts its value model from the reward model (examples/scripts/ppo/ppo.py).
    draft.critic_from_reward("TRL's value model: the reward model");
    common(draft, 1)
}

/// TRL's scripts train `sft_model_path` and take the tokenizer alone from `model_name_or_path` (examples/scripts/ppo/ppo.py).
fn models(draft: &mut Draft) {
    const DEFAULT: &str = "is EleutherAI/pythia-160m, of the family GPT-NeoX, which is not here";
    if !draft.is_given("sft_model_path") {
        if draft.has("model.policy") {
            let why = format!("is trained here; TRL's scripts train sft_model_path, whose default {DEFAULT}");
            draft.leave("model_name_or_path", &why);
        } else {
            let why = format!("TRL's default of sft_model_path {DEFAULT}: name another model");
            draft.placeholder("model.policy", "model.policy.path", "/models/policy", &why);
        }
    }
    if !draft.is_given("reward_model_path") {
        draft.leave("TRL's default", &format!("reward_model_path {DEFAULT}"));
    }
}

/// PPOTrainer generates with no other end than the stop token that it is given (`generation_config.eos_token_id` in ppo_trainer.py).
fn stop_tokens(draft: &mut Draft) -> Result<(), WrongValue> {
    if let Some(id) = draft.count("stop_token_id")? {
        draft.set("generation.stopTokenIds", json!([id]), &draft.source("stop_token_id"));
        let why = "is the only end of a response in TRL; here the model's own end of sequence ends it too";
        draft.leave("stop_token_id", why);
    } else if !draft.is_given("stop_token") {
        let why = "without --stop_token eos PPOTrainer draws all response_length tokens, past the end of sequence, and learns from them; \
                   here a response ends there";
        draft.leave("TRL's default", why);
    }
    Ok(())
}

/// TRL's PPO takes an optimizer step after every `gradient_accumulation_steps` micro-batches, whatever the mini-batch they are of
/// (`accelerator.accumulate` in ppo_trainer.py). A mini-batch of at least `per_device_train_batch_size` samples is cut into
/// micro-batches of that size, which makes as many in an epoch as are accumulated: one update. A smaller mini-batch is one micro-batch.
/// (In the last batch of the data accelerate steps after each micro-batch.)
fn updates_of_an_epoch(draft: &mut Draft) -> Result<u64, WrongValue> {
    let mini_batches = draft.count("num_mini_batches")?.unwrap_or(1).max(1);
    let (per_device, accumulation) = (per_device(draft)?, accumulation(draft)?);
    let wanted = mini_batches / accumulation;
    let whole = mini_batches.is_multiple_of(accumulation) && per_device.is_multiple_of(wanted.max(1));
    let updates = if whole { wanted.max(1) } else { 1 };
    if updates != mini_batches {
        draft.leave(
            "num_mini_batches",
            &format!(
                "TRL's PPO accumulates gradients across its mini-batches, so that {mini_batches} of them make {updates} update(s) of an \
                 epoch, as here; for {mini_batches} updates, divide batch.trainBatchSize"
            ),
        );
    }
    Ok(updates)
}
