//! verl: the overrides of `verl.trainer.main_ppo`, with the defaults of `verl/trainer/config/ppo_trainer.yaml`.

pub mod table;

use serde_json::json;

use super::adapter::{AdapterFlags, adapter, whole_critic};
use super::dialect::{Dialect, Syntax};
use super::draft::{Draft, WrongValue, updates_per_step};
use super::dynamic;
use super::overlong;
use super::row::{is_null, is_off, plain};
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
        rows: table::ROWS.to_vec(),
        finish: if ahead { finish_one_step_off } else { finish },
    }
}

/// Whether a word is one of verl's programs. DAPO's takes the settings of `main_ppo`.
pub(super) fn starts(word: &str) -> bool {
    let is_named = |name: &str| word.strip_suffix(".py").unwrap_or(word).ends_with(name);
    word.starts_with("verl.trainer.")
        || word.ends_with("main_ppo.py")
        || is_named("main_dapo")
        || word.contains(&format!("{ONE_STEP_OFF}."))
}

fn finish_one_step_off(draft: &mut Draft) -> Result<(), WrongValue> {
    draft.set("overlap", "oneStep", "the recipe one_step_off_policy");
    finish(draft)?;
    if !draft.has("algorithm.truncatedImportanceSampling") {
        let source = "verl corrects for older samples only with rollout_is; leave it out for 2";
        draft.set("algorithm.truncatedImportanceSampling", json!(0.0), source);
    }
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
    batch(draft)?;
    warm_ups(draft)?;
    kl(draft)?;
    engines(draft)?;
    reward(draft)?;
    evaluation(draft)?;
    estimator(draft);
    filter_groups(draft)?;
    adapter(draft, &ADAPTER)?;
    adapter(draft, &MEGATRON_ADAPTER)?;
    reference(draft)?;
    let of_critic = draft.given_below("critic.model.lora");
    let mut ranks = of_critic.iter().filter(|given| given.name.ends_with("rank"));
    if ranks.all(|given| is_off(&given.values)) {
        whole_critic(draft, "verl");
    }
    draft.set_count("steps", "trainer.total_training_steps")?;
    if !draft.has("steps") {
        draft.set_count("episodes", "trainer.total_epochs")?;
    }
    let is_grpo = draft
        .get("algorithm.advantage.estimator")
        .is_some_and(|estimator| estimator == "grpo");
    if is_grpo && !draft.truth("algorithm.norm_adv_by_std_in_grpo")? {
        draft.set(
            "algorithm.advantage.estimator",
            "drGrpo",
            &draft.source("algorithm.norm_adv_by_std_in_grpo"),
        );
    }
    if let Some((values, source)) = draft.values("critic.model.path").filter(|_| draft.has_critic()) {
        set_model(draft, "model.critic", &values, &source)?;
    }
    let older = "actor_rollout_ref.actor.tis_imp_ratio_cap";
    if let Some(cap) = draft.number(older)?.filter(|cap| *cap > 0.0) {
        draft.set(
            "algorithm.truncatedImportanceSampling",
            json!(cap),
            &draft.source(older),
        );
    }
    match draft.text("algorithm.rollout_correction.rollout_is").as_deref() {
        None | Some("null" | "None") => {}
        Some("token") => {
            let name = "algorithm.rollout_correction.rollout_is_threshold";
            let cap = draft.number(name)?.unwrap_or(2.0);
            draft.set("algorithm.truncatedImportanceSampling", json!(cap), &draft.source(name));
        }
        Some(other) => {
            let why = format!("is {other}; only the correction by token is here");
            draft.leave("algorithm.rollout_correction.rollout_is", &why);
        }
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

/// An estimator that is not here leaves none.
fn estimator(draft: &mut Draft) {
    let name = "algorithm.adv_estimator";
    if draft.is_given(name) && !draft.has("algorithm.advantage.estimator") {
        let why = "none is set in its place, which means gae, with a critic: give algorithm.advantage.estimator (rloo and \
                   reinforcePlusPlusBaseline learn from a baseline without a critic)";
        draft.leave(name, why);
    }
}

/// As in recipe/dapo/dapo_ray_trainer.py: batches of `gen_batch_size` prompts are drawn until `train_batch_size` of their groups differ.
fn filter_groups(draft: &mut Draft) -> Result<(), WrongValue> {
    let of = |name: &str| format!("algorithm.filter_groups.{name}");
    if !draft.truth(&of("enable"))? {
        return Ok(());
    }
    let (batches, train) = (
        of("max_num_gen_batches"),
        draft.count("data.train_batch_size")?.unwrap_or(1).max(1),
    );
    let of_a_batch = draft.count("data.gen_batch_size")?.unwrap_or(train);
    let draws = draft.count(&batches)?.filter(|batches| *batches > 0).map(|count| {
        let draws = count.saturating_mul(of_a_batch).div_ceil(train);
        (
            draws,
            format!("{} x {of_a_batch} / {train} prompts", draft.source(&batches)),
        )
    });
    if !dynamic::sample(draft, &of("enable"), draws) {
        return Ok(());
    }
    let end = "a step that has not found enough groups that differ in so many draws takes groups of equal scores; verl ends the run there, or \
               draws on where max_num_gen_batches is 0";
    draft.leave("batch.dynamicSampling.maxDraws", end);
    let metric = of("metric");
    let other = draft
        .text(&metric)
        .filter(|metric| !["score", "seq_reward", "seq_final_reward", "null"].contains(&metric.as_str()));
    if let Some(other) = other {
        let why = format!(
            "is {other}; here groups are compared by score, with every source of roles.reward in it: one of right answers of different \
             lengths differs where a rule looks at the length"
        );
        draft.leave(&metric, &why);
    }
    Ok(())
}

fn has_kl(draft: &Draft) -> bool {
    draft.get("algorithm.kl.coef").is_none_or(|coef| *coef != 0.0)
}

/// `ref.model.path` overrides the policy's (verl/workers/fsdp_workers.py).
fn reference(draft: &mut Draft) -> Result<(), WrongValue> {
    let name = "actor_rollout_ref.ref.model.path";
    let Some((values, source)) = draft.values(name).filter(|(values, _)| !is_null(values)) else {
        return Ok(());
    };
    if draft.has("model.adapter") {
        draft.leave(name, "with an adapter the reference is the policy without it");
    } else if has_kl(draft) {
        set_model(draft, "model.reference", &values, &source)?;
    } else {
        draft.leave(name, "without a KL there is no reference");
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
        let share = all / gpus(draft)?.max(1);
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
    if let Some(steps) = draft.count(name)? {
        let updates = updates_per_step(draft);
        draft.set(
            "optimizer.warmupUpdates",
            steps.saturating_mul(updates),
            &format!("{} x {updates} updates per step", draft.source(name)),
        );
    }
    let name = "trainer.critic_warmup";
    if let Some(first) = draft.count(name)?.filter(|first| *first > 0) {
        draft.set("optimizer.criticWarmupSteps", first - 1, &draft.source(name));
    }
    Ok(())
}

fn gpus(draft: &Draft) -> Result<u64, WrongValue> {
    let nodes = draft.count("trainer.nnodes")?.unwrap_or(1);
    Ok(nodes.saturating_mul(draft.count("trainer.n_gpus_per_node")?.unwrap_or(8)))
}

fn kl(draft: &mut Draft) -> Result<(), WrongValue> {
    let loss = draft.truth("actor_rollout_ref.actor.use_kl_loss")?;
    let reward = draft.truth("algorithm.use_kl_in_reward")?;
    let (placement, coef, kind) = match (loss, reward) {
        (false, false) => {
            draft.set("algorithm.kl.coef", 0.0, "neither use_kl_loss nor use_kl_in_reward");
            return Ok(());
        }
        (true, _) => (
            "loss",
            "actor_rollout_ref.actor.kl_loss_coef",
            "actor_rollout_ref.actor.kl_loss_type",
        ),
        (false, true) => ("reward", "algorithm.kl_ctrl.kl_coef", "algorithm.kl_penalty"),
    };
    if loss && reward {
        draft.leave(
            "algorithm.use_kl_in_reward",
            "the KL acts in one place: use_kl_loss is kept, algorithm.kl.placement: reward is the other",
        );
    }
    let place = if loss {
        "actor_rollout_ref.actor.use_kl_loss"
    } else {
        "algorithm.use_kl_in_reward"
    };
    draft.set("algorithm.kl.placement", placement, &draft.source(place));
    draft.set_number("algorithm.kl.coef", coef)?;
    let estimator = draft.text(kind).unwrap_or_default();
    match estimator.trim_end_matches('+') {
        "kl" | "k1" => draft.set("algorithm.kl.estimator", "k1", &draft.source(kind)),
        "mse" | "k2" => draft.set("algorithm.kl.estimator", "k2", &draft.source(kind)),
        "low_var_kl" | "k3" => draft.set("algorithm.kl.estimator", "k3", &draft.source(kind)),
        "abs" => draft.set("algorithm.kl.estimator", "abs", &draft.source(kind)),
        other => draft.leave(kind, &format!("is {other}; here are kl, abs, mse and low_var_kl")),
    }
    if estimator.ends_with('+') {
        draft.leave(kind, "the gradient is that of the estimate itself, not k2's");
    }
    if placement == "reward" && draft.text("algorithm.kl_ctrl.type").as_deref() == Some("adaptive") {
        let adaptive = "algorithm.kl.controller.adaptive";
        draft.set_number(&format!("{adaptive}.target"), "algorithm.kl_ctrl.target_kl")?;
        draft.set_number(&format!("{adaptive}.horizon"), "algorithm.kl_ctrl.horizon")?;
    }
    Ok(())
}

/// verl's engines share the actor's GPUs, but for the recipe that generates one step ahead; here they have their own, as many.
fn engines(draft: &mut Draft) -> Result<(), WrongValue> {
    let (name, pipeline) = (
        "actor_rollout_ref.rollout.tensor_model_parallel_size",
        "actor_rollout_ref.rollout.pipeline_model_parallel_size",
    );
    let stages = draft.count(pipeline)?.unwrap_or(1).max(1);
    let each = draft.count(name)?.unwrap_or(2).max(1).saturating_mul(stages);
    let mut source = draft.source(name);
    if stages > 1 {
        source = format!("{source} x {}", draft.source(pipeline));
        let why = format!(
            "there is no pipeline: vLLM splits every layer over all {each} GPUs of an engine, which must divide the model's attention heads"
        );
        draft.leave(pipeline, &why);
    }
    let all = match draft.count("rollout.n_gpus_per_node")? {
        Some(own) => own.saturating_mul(draft.count("rollout.nnodes")?.unwrap_or(1)),
        None => gpus(draft)?,
    };
    draft.set(
        "roles.rollout.engine",
        "vllm",
        &draft.source("actor_rollout_ref.rollout.name"),
    );
    draft.set("roles.rollout.gpusPerReplica", each, &source);
    draft.set(
        "roles.rollout.replicas",
        (all / each).max(1),
        &format!("{all} GPUs / {each}"),
    );
    if let Some(engine) = draft
        .text("actor_rollout_ref.rollout.name")
        .filter(|engine| engine != "vllm")
    {
        draft.leave(
            "actor_rollout_ref.rollout.name",
            &format!("{engine} is not here; vllm takes its place (roles.rollout.engine)"),
        );
    }
    // Where the reference stands is nobody's setting in verl: it shares all GPUs.
    for at in ["nodes", "gpusPerNode"] {
        if let Some(count) = draft
            .get(&format!("roles.actor.{at}"))
            .cloned()
            .filter(|_| has_kl(draft))
        {
            draft.set(&format!("roles.reference.{at}"), count, "the actor's");
        }
    }
    draft.leave("verl's shared GPUs", "actor, reference, engines and a reward model share GPUs in verl and have their own here: make roles.*.gpusPerNode and replicas smaller to take as many as before");
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
            reward_placement(draft)?;
        }
        return Ok(());
    }
    // verl's function rewards read the answer here (verl/utils/dataset, the rows of its data sets).
    draft.set("prompts.labelField", "reward_model.ground_truth", "verl's rows");
    Ok(())
}

/// A reward model has GPUs of its own with `enable_resource_pool`; without, it shares all of them.
fn reward_placement(draft: &mut Draft) -> Result<(), WrongValue> {
    let own = draft.truth("reward.reward_model.enable_resource_pool")?;
    for (at, name) in [("nodes", "nnodes"), ("gpusPerNode", "n_gpus_per_node")] {
        let field = format!("roles.reward.placement.{at}");
        let name = format!("reward.reward_model.{name}");
        if own {
            if let Some(count) = draft.count(&name)?.filter(|count| *count > 0) {
                draft.set(&field, count, &draft.source(&name));
            }
        } else if let Some(count) = draft.get(&format!("roles.actor.{at}")).cloned() {
            draft.set(&field, count, "the actor's");
        }
    }
    Ok(())
}

fn evaluation(draft: &mut Draft) -> Result<(), WrongValue> {
    if !draft.has("evaluation") {
        return Ok(());
    }
    let Some(every) = draft.count("trainer.test_freq")?.filter(|every| *every > 0) else {
        draft.unset("evaluation");
        draft.leave(
            "data.val_files",
            "test_freq is off, so there is no evaluation; give evaluation.source and evaluation.everySteps for one",
        );
        return Ok(());
    };
    draft.set("evaluation.everySteps", every, &draft.source("trainer.test_freq"));
    if let Some(most) = draft.count("data.val_max_samples")?.filter(|most| *most > 0) {
        draft.set("evaluation.maxPrompts", most, &draft.source("data.val_max_samples"));
    }
    draft.set_number(
        "evaluation.temperature",
        "actor_rollout_ref.rollout.val_kwargs.temperature",
    )
}
