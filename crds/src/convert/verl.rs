//! verl: the overrides of `verl.trainer.main_ppo`, with the defaults of `verl/trainer/config/ppo_trainer.yaml`.

mod advantage;
mod correction;
mod critic;
mod data_sets;
mod kl;
mod optimizer;
mod pods;
mod precision;
pub mod programs;
pub mod table;

use super::adapter::{AdapterFlags, adapter, whole_critic};
use super::critic::unsay_optimizer;
use super::dialect::{Dialect, Syntax};
use super::draft::{Draft, WrongValue, updates_per_step};
use super::final_answer;
use super::held_out;
use super::known;
use super::other_loss;
use super::overlong;
use super::row::{is_null, is_off, plain};
use super::schedule;
use super::shell::Word;
use super::source::set_model;

/// What the recipe's program is called by.
const ONE_STEP_OFF: &str = "one_step_off_policy";

/// The overrides of `main_ppo`, or of the recipe that generates one step ahead.
pub(super) fn dialect(launcher: &[Word]) -> Dialect {
    let ahead = launcher
        .last()
        .is_some_and(|program| program.text.contains(ONE_STEP_OFF));
    Dialect {
        name: "verl",
        syntax: Syntax::Hydra,
        negates: false,
        rows: table::rows(),
        known: known::VERL,
        finish: if ahead { finish_one_step_off } else { finish },
    }
}

fn finish_one_step_off(draft: &mut Draft) -> Result<(), WrongValue> {
    draft.set("overlap", "oneStep", "the recipe one_step_off_policy");
    finish(draft)?;
    correction::set_ahead(draft);
    Ok(())
}

const ADAPTER: AdapterFlags = AdapterFlags {
    rank: "actor_rollout_ref.model.lora_rank",
    alpha: "actor_rollout_ref.model.lora_alpha",
    targets: "actor_rollout_ref.model.target_modules",
};

const MEGATRON_ADAPTER: AdapterFlags = AdapterFlags {
    rank: "actor_rollout_ref.model.lora.rank",
    alpha: "actor_rollout_ref.model.lora.alpha",
    targets: "actor_rollout_ref.model.lora.target_modules",
};

/// What follows from several overrides.
pub fn finish(draft: &mut Draft) -> Result<(), WrongValue> {
    draft.set("prompts.chatTemplate", true, "verl always does");
    variables(draft);
    lengths(draft)?;
    batch(draft)?;
    warm_ups(draft)?;
    optimizer::tell(draft);
    kl::kl(draft)?;
    pods::engines(draft)?;
    reward(draft)?;
    evaluation(draft)?;
    advantage::estimator(draft)?;
    advantage::filter_groups(draft)?;
    correction::set(draft)?;
    other_loss::leave_bounds(draft, "actor_rollout_ref.actor.policy_loss.loss_mode");
    bounds(draft)?;
    adapter(draft, &ADAPTER)?;
    adapter(draft, &MEGATRON_ADAPTER)?;
    kl::reference(draft)?;
    precision::formats(draft);
    let of_critic = draft.given_below("critic.model.lora");
    let mut ranks = of_critic.iter().filter(|given| given.name.ends_with("rank"));
    if ranks.all(|given| is_off(&given.values)) {
        whole_critic(draft, "verl");
    }
    draft.set_count("steps", "trainer.total_training_steps")?;
    if !draft.has("steps") {
        draft.set_count("episodes", "trainer.total_epochs")?;
    }
    if let Some((values, source)) = draft.values("critic.model.path").filter(|_| draft.has_critic()) {
        set_model(draft, "model.critic", &values, &source)?;
    }
    unsay_optimizer(draft);
    if draft.has_critic() {
        critic::tell(draft)?;
    }
    Ok(())
}

/// `compute_policy_loss_gspo` and `compute_policy_loss_cispo` in core_algos.py do not read `clip_ratio_c`, and verl's example of the latter says by
/// 10 that there is no lower bound, as 1 does.
fn bounds(draft: &mut Draft) -> Result<(), WrongValue> {
    let (dual, bound) = ("algorithm.clip.dual", "actor_rollout_ref.actor.clip_ratio_c");
    let is_gspo = draft.get("algorithm.ratio").is_some_and(|ratio| ratio == "sequence");
    let is_cispo = draft.get("algorithm.surrogate").is_some_and(|loss| loss == "cispo");
    if (is_gspo || is_cispo) && draft.has(dual) {
        let loss = if is_gspo { "gspo" } else { "cispo" };
        draft.unset(dual);
        let source = draft.source(bound);
        let why = format!("does nothing in verl with {loss}, so the job has no dual clip");
        draft.leave(&source, &why);
    }
    let low = "actor_rollout_ref.actor.clip_ratio_low";
    if is_cispo && draft.number(low)?.is_some_and(|low| low > 1.0) {
        let source = format!("{}, no lower bound", draft.source(low));
        draft.set("algorithm.clip.policyLow", 1.0, &source);
    }
    Ok(())
}

/// `apply_chat_template_kwargs.enable_thinking=False` gives the template a variable, here too.
fn variables(draft: &mut Draft) {
    let all = "data.apply_chat_template_kwargs";
    let is_word = |name: &&str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    for argument in draft.given_below(all) {
        let name = argument.name.strip_prefix(all).and_then(|rest| rest.strip_prefix('.'));
        match (name.filter(is_word), argument.values.as_slice()) {
            (_, values) if is_null(values) => {}
            (None, [none]) if none == "{}" => {}
            (Some(name), [value]) if !value.starts_with(['{', '[']) => {
                let field = format!("prompts.chatTemplateVariables.{name}");
                draft.set(&field, plain(value), &argument.shown);
            }
            _ => draft.leave(
                &argument.shown,
                "write its variables into prompts.chatTemplateVariables",
            ),
        }
    }
}

/// Engines draw from no longer prompts than `rollout.prompt_length` (verl/experimental/agent_loop), which is `data.max_prompt_length` by
/// default.
fn lengths(draft: &mut Draft) -> Result<(), WrongValue> {
    let (cut, longest) = ("actor_rollout_ref.rollout.prompt_length", "data.max_prompt_length");
    let Some(tokens) = draft.count(cut)?.filter(|tokens| *tokens > 0) else {
        return Ok(());
    };
    if draft.count(longest)?.is_some_and(|longest| tokens < longest) {
        draft.set("prompts.maxLength", tokens, &draft.source(cut));
        draft.leave(cut, "a longer prompt is dropped, and counted; verl cuts it");
    }
    Ok(())
}

fn batch(draft: &mut Draft) -> Result<(), WrongValue> {
    let mini = "actor_rollout_ref.actor.ppo_mini_batch_size";
    let group = draft.count("actor_rollout_ref.rollout.n")?.unwrap_or(1);
    if let Some(prompts) = draft.count(mini)? {
        let source = format!("{} x {group} samples", draft.source(mini));
        draft.set("batch.trainBatchSize", prompts.saturating_mul(group), &source);
    }
    let micro = "actor_rollout_ref.actor.ppo_micro_batch_size";
    if let Some(all) = draft.count(micro)?.filter(|_| !draft.has("batch.microTrainBatchSize")) {
        let share = all / pods::shared(draft)?.max(1);
        draft.set(
            "batch.microTrainBatchSize",
            share.max(1),
            &format!("{} over all GPUs", draft.source(micro)),
        );
    }
    Ok(())
}

/// verl's scheduler steps once a step, after all of its updates (`update_lr_scheduler` in workers/engine_workers.py), and the
/// policy rests while `critic_warmup > global_steps`, the first step being 1 (trainer/ppo/ray_trainer.py).
fn warm_ups(draft: &mut Draft) -> Result<(), WrongValue> {
    let name = "actor_rollout_ref.actor.optim.lr_warmup_steps";
    let steps = draft.count_or_off(name)?.filter(|steps| *steps > 0);
    if let Some(steps) = steps {
        let updates = updates_per_step(draft);
        draft.set(
            "optimizer.warmupUpdates",
            steps.saturating_mul(updates),
            &format!("{} x {updates} updates per step", draft.source(name)),
        );
    }
    // As in verl, where there are steps the share does not count (workers/engine/fsdp/transformer_impl.py).
    if steps.is_none() {
        schedule::warm_up(draft, "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio")?;
    }
    let name = "trainer.critic_warmup";
    if let Some(first) = draft.count(name)?.filter(|first| *first > 0) {
        draft.set("optimizer.criticWarmupSteps", first - 1, &draft.source(name));
    }
    Ok(())
}

fn reward(draft: &mut Draft) -> Result<(), WrongValue> {
    let buffer = |name: &str| format!("reward.reward_kwargs.overlong_buffer_cfg.{name}");
    if draft.truth(&buffer("enable"))? {
        let longest = draft.count("data.max_response_length")?.unwrap_or(512);
        overlong::punish(draft, &buffer("len"), &buffer("penalty_factor"), longest)?;
    }
    if draft.truth("reward.reward_model.enable")? {
        if let Some((values, source)) = draft.values("reward.reward_model.model_path") {
            set_model(draft, "roles.reward.model.source", &values, &source)?;
            pods::reward_model(draft)?;
        }
        return Ok(());
    }
    // verl's function rewards read the answer here (verl/utils/dataset, the rows of its data sets).
    draft.set("prompts.labelField", "reward_model.ground_truth", "verl's rows");
    data_sets::compare(draft);
    Ok(())
}

/// Names the test set of a row: function rewards read it (verl/experimental/reward_loop/reward_manager), and validation reports by it
/// (`_val_metrics_update` in trainer/ppo/ray_trainer.py).
const TEST_SET: &str = "data_source";

fn evaluation(draft: &mut Draft) -> Result<(), WrongValue> {
    if !draft.has("evaluation") {
        return Ok(());
    }
    let Some(every) = draft.count_or_off("trainer.test_freq")?.filter(|every| *every > 0) else {
        draft.unset("evaluation");
        draft.leave(
            "data.val_files",
            "test_freq is off, so there is no evaluation; give evaluation.source and evaluation.everySteps for one",
        );
        return Ok(());
    };
    draft.set("evaluation.everySteps", every, &draft.source("trainer.test_freq"));
    final_answer::pass_score(draft);
    let most = draft.count_or_off("data.val_max_samples")?;
    if let Some(most) = most.filter(|most| *most > 0) {
        draft.set("evaluation.maxPrompts", most, &draft.source("data.val_max_samples"));
    }
    // Where another key chooses the reward, or a model gives it, a row may have none.
    let other_key = draft.text("data.reward_fn_key").is_some_and(|key| key != TEST_SET);
    if draft.has("prompts.labelField") && !other_key {
        draft.set("evaluation.setField", TEST_SET, "verl's rows");
    }
    draft.set_number(
        "evaluation.temperature",
        "actor_rollout_ref.rollout.val_kwargs.temperature",
    )?;
    held_out::samples(draft, "actor_rollout_ref.rollout.val_kwargs.n")
}
