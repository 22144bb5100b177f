//! What `RLOOTrainer` and `GRPOTrainer` do: a generation batch of groups of samples, drawn by vLLM or not, that serves several updates.

use super::correction;
use super::newer;
use super::processes::processes;
use super::rewards;
use super::{accumulation, common, per_device, warm_up};
use crate::convert::draft::{Draft, WrongValue};
use crate::convert::other_loss;

/// What is RLOO's own.
pub(super) fn finish_rloo(draft: &mut Draft) -> Result<(), WrongValue> {
    draft.set("algorithm.advantage.estimator", "rloo", "RLOOTrainer");
    online(draft)
}

/// What is GRPO's own.
pub(super) fn finish_grpo(draft: &mut Draft) -> Result<(), WrongValue> {
    // A word that is not here is no reason for another estimator.
    if !draft.has("algorithm.advantage.estimator") {
        draft.set("algorithm.advantage.estimator", "grpo", "GRPOTrainer");
    }
    let scale = "scale_rewards";
    if draft.text(scale).is_some_and(|word| word.eq_ignore_ascii_case("batch")) {
        draft.set("algorithm.advantage.deviation", "batch", &draft.source(scale));
    }
    correction::set(draft)?;
    newer::weight_of_kl(draft)?;
    cispo(draft)?;
    for loss in ["loss_type", "importance_sampling_level"] {
        other_loss::leave_bounds(draft, loss);
    }
    if draft.text("loss_type").as_deref() == Some("bnpo") {
        draft.leave(
            "loss_type",
            "bnpo takes the token mean of each micro-batch by itself; here it is over the whole update, as TRL's dapo has it",
        );
    }
    online(draft)
}

/// With `cispo` GRPOTrainer bounds a ratio at `epsilon_high` itself, from above alone, and does not read `delta` (`_compute_loss` in
/// grpo_trainer.py).
fn cispo(draft: &mut Draft) -> Result<(), WrongValue> {
    if draft.get("algorithm.surrogate").is_none_or(|loss| loss != "cispo") {
        return Ok(());
    }
    let (low, high) = ("algorithm.clip.policyLow", "algorithm.clip.policyHigh");
    for field in [low, high, "algorithm.clip.dual"] {
        draft.unset(field);
    }
    let source = format!("{}, no lower bound", draft.source("loss_type"));
    draft.set(low, 1.0, &source);
    if draft.number("delta")?.is_some() {
        draft.unsay("delta");
        draft.leave("delta", "does nothing in TRL with cispo, so the job has no dual clip");
    }
    // `self.epsilon_high = args.epsilon_high if args.epsilon_high is not None else args.epsilon`
    let own = draft.number("epsilon_high")?;
    let name = own.map_or("epsilon", |_| "epsilon_high");
    match draft.number(name)?.unwrap_or(0.2) {
        greatest if greatest >= 1.0 => {
            // 1.28 - 1 is 0.28.
            let above = ((greatest - 1.0) * 1e9).round() / 1e9;
            let source = format!("{} - 1", draft.source(name));
            draft.set(high, above, &source);
        }
        greatest => {
            let why = format!(
                "TRL bounds a ratio at epsilon_high itself with cispo, and {greatest} is below 1, so that it weighs nearly every token alike; \
                 the bound is 5, which TRL recommends: for another one give policyHigh, 1 less"
            );
            draft.leave("algorithm.clip", &why);
        }
    }
    Ok(())
}

/// A generation batch serves `steps_per_generation / gradient_accumulation_steps` updates, `num_iterations` times over.
fn online(draft: &mut Draft) -> Result<(), WrongValue> {
    let (per_device, accumulation, processes) = (per_device(draft)?, accumulation(draft)?, processes(draft)?);
    let given = draft.count("generation_batch_size")?;
    let unit = per_device.saturating_mul(processes).max(1);
    let samples = match given {
        Some(samples) => samples,
        None => unit.saturating_mul(draft.count("steps_per_generation")?.unwrap_or(accumulation)),
    };
    let group = draft.count("num_generations")?.unwrap_or(1).max(1);
    if !samples.is_multiple_of(group) {
        return Err(WrongValue {
            flag: "num_generations".into(),
            message: format!(
                "{group} does not divide the {samples} samples of a step, which TRL refuses too: per_device_train_batch_size x \
                 steps_per_generation x {processes} processes (the launcher's --num_processes), or generation_batch_size, has to be a \
                 multiple of it"
            ),
        });
    }
    let update = unit.saturating_mul(accumulation).max(1);
    let iterations = draft.count("num_iterations")?.unwrap_or(1).max(1);
    // Several generation batches in an update are one step: no weight changes between them.
    let is_part = iterations == 1 && samples < update && samples > 0 && update.is_multiple_of(samples);
    let samples = if is_part { update } else { samples };
    if is_part {
        draft.leave(
            "steps_per_generation",
            "an update takes several generation batches in TRL, which are one step here; what TRL takes a mean or deviation of over a generation \
             batch is over the whole step",
        );
    }
    draft.set(
        "batch.rolloutBatchSize",
        samples / group,
        &format!("{samples} samples / num_generations {group}"),
    );
    draft.set(
        "batch.trainBatchSize",
        update,
        "per_device_train_batch_size x gradient_accumulation_steps x processes",
    );
    draft.set(
        "batch.microTrainBatchSize",
        per_device,
        &draft.source("per_device_train_batch_size"),
    );
    warm_up(draft, 1)?;
    let updates_per_step = (samples / update).max(1).saturating_mul(iterations);
    let updates = draft.count_or_off("max_steps")?;
    if let Some(updates) = updates.filter(|updates| *updates > 0) {
        let source = format!("{} / {updates_per_step} updates per step", draft.source("max_steps"));
        draft.set("steps", updates.div_ceil(updates_per_step), &source);
    }
    if draft.truth("use_vllm")? {
        let each = draft.count("vllm_tensor_parallel_size")?.unwrap_or(1).max(1);
        let colocated = draft.text("vllm_mode").as_deref() == Some("colocate");
        newer::where_vllm_runs(draft);
        draft.set("roles.rollout.engine", "vllm", &draft.source("use_vllm"));
        draft.set(
            "roles.rollout.gpusPerReplica",
            each,
            &draft.source("vllm_tensor_parallel_size"),
        );
        if colocated {
            draft.set(
                "roles.rollout.replicas",
                (processes / each).max(1),
                &draft.source("vllm_mode"),
            );
        }
    }
    rewards::functions(draft)?;
    special_tokens(draft)?;
    newer::lengths(draft);
    common(draft, updates_per_step)
}

/// `add_special_tokens=False` in grpo_trainer.py up to 0.25 and rloo_trainer.py up to 0.26, but for what vLLM makes of a text.
fn special_tokens(draft: &mut Draft) -> Result<(), WrongValue> {
    let why = match draft.truth("use_vllm")? {
        false => {
            "GRPO up to 0.25 and RLOO up to 0.26 give a prompt that is a text no special tokens, unless vLLM draws; here it gets those of \
             its tokenizer, as BOS for Llama, unless it begins with it, as in newer versions"
        }
        true => "in 0.24 vLLM adds BOS to messages whose template has written one; here they have one, as since 0.25",
    };
    draft.leave("TRL's prompts", why);
    Ok(())
}
