//! OpenRLHF: the flags of `openrlhf/cli/train_ppo_ray.py`, under their names of 0.11 (`--actor.adam.lr`) and of 0.6 to 0.10
//! (`--actor_learning_rate`).

mod correction;
mod critic;
pub mod programs;
pub mod table;

use serde_json::Value;

use self::table::SERVE_IT;
use super::adapter::{AdapterFlags, adapter};
use super::critic::unsay_optimizer;
use super::draft::{Draft, WrongValue};
use super::dynamic;
use super::held_out;
use super::other_loss;
use super::overlong;
use super::row::Read::Numbers;
use super::schedule;

/// Names of 0.6 to 0.10 that hardly a script goes without.
const OLD_NAMES: [&str; 4] = [
    "pretrain",
    "rollout_batch_size",
    "train_batch_size",
    "actor_learning_rate",
];

const ADAPTER: AdapterFlags = AdapterFlags {
    rank: "ds.lora.rank",
    alpha: "ds.lora.alpha",
    targets: "ds.lora.target_modules",
};

/// What follows from several flags.
pub fn finish(draft: &mut Draft) -> Result<(), WrongValue> {
    estimator(draft);
    template(draft)?;
    reward(draft)?;
    lengths(draft)?;
    engines(draft)?;
    evaluation(draft)?;
    adapter(draft, &ADAPTER)?;
    kl(draft)?;
    correction::set(draft)?;
    dynamic_filtering(draft)?;
    other_loss::leave_bounds(draft, "actor.policy_loss_type");
    older_defaults(draft);
    let least = draft.number("actor.min_lr_ratio")?.unwrap_or(0.1);
    schedule::set(draft, "actor.lr_scheduler", Some(least));
    if schedule::warms_up(draft, "actor.lr_scheduler") {
        schedule::warm_up(draft, "actor.lr_warmup_ratio")?;
    }
    critic(draft)?;
    unsay_optimizer(draft);
    if draft.has_critic() {
        critic::tell(draft);
    }
    if draft.text("ckpt.best_metric_key").is_some_and(|key| key == "none") {
        draft.set("checkpoint.keepBest", false, &draft.source("ckpt.best_metric_key"));
    }
    Ok(())
}

/// `flash_reinforce` of 0.11.2 takes the mean of the whole rollout batch from a score, and whitens nothing (experience_maker.py).
fn estimator(draft: &mut Draft) {
    let name = "algo.advantage.estimator";
    if draft.other_word(name).as_deref() == Some("flash_reinforce") {
        let source = draft.source(name);
        draft.unsay(&source);
        draft.set(
            "algorithm.advantage.estimator",
            "reinforcePlusPlus",
            &format!("nearest to {source}"),
        );
        let why = "is flash_reinforce, which is not here: reinforcePlusPlus takes its place; it takes the batch's mean away too, and divides by \
                   its deviation";
        draft.leave(name, why);
    }
}

fn kl(draft: &mut Draft) -> Result<(), WrongValue> {
    // `compute_approx_kl` in models/utils.py, of 0.11.1: only a loss has a gradient.
    let unbiased = "algo.kl.unbiased_gradient";
    if draft.truth(unbiased)? && draft.truth("algo.kl.use_loss")? {
        draft.set("algorithm.kl.estimator", "k2", &draft.source(unbiased));
        let why = "the gradient of every estimator is k2's there, weighed by the policy's ratio; here it is k2's without the weight, the same \
                   in the first update of a step";
        draft.leave(unbiased, why);
    }
    if draft.number("algo.kl.target")?.is_some() {
        let adaptive = "algorithm.kl.controller.adaptive";
        draft.set_number(&format!("{adaptive}.target"), "algo.kl.target")?;
        draft.set_number(&format!("{adaptive}.horizon"), "algo.kl.horizon")?;
    }
    Ok(())
}

fn dynamic_filtering(draft: &mut Draft) -> Result<(), WrongValue> {
    let (name, range) = ("algo.dynamic_filtering_enable", "algo.dynamic_filtering_range");
    if draft.truth(name)? && dynamic::sample(draft, name, None) {
        let (values, source) = draft.values(range).unwrap_or_default();
        let bounds = Numbers
            .values(&values, 2)
            .map_err(|message| WrongValue { flag: source, message })?;
        let bounds: Vec<f64> = bounds.iter().flatten().filter_map(Value::as_f64).collect();
        let why = match bounds.as_slice() {
            [0.0, 1.0] => "a group is left out where its scores are all equal, in OpenRLHF where their mean is 0 or 1: the same for scores of \
                           0 and 1 alone"
                .to_owned(),
            _ => format!(
                "a group is left out where its scores are all equal, in OpenRLHF where their mean is not between {}",
                values.join(" and ")
            ),
        };
        draft.leave(range, &why);
    }
    Ok(())
}

fn critic(draft: &mut Draft) -> Result<(), WrongValue> {
    // `run_actor = global_steps > freezing_steps` in ppo_trainer.py, the first step being 0 since 0.9.1 and 1 before.
    let freezing = "critic.freezing_steps";
    if let Some(last) = draft.count_or_off(freezing)? {
        draft.set(
            "optimizer.criticWarmupSteps",
            last.saturating_add(1),
            &draft.source(freezing),
        );
        let old = "freezing_actor_steps";
        if draft.has_name(|name| name == old) {
            let why = format!(
                "{last} freezes {} steps since OpenRLHF 0.9.1, which is taken, and {last} up to 0.9.0; with such a version give \
                 optimizer.criticWarmupSteps: {last}",
                last.saturating_add(1)
            );
            draft.leave(old, &why);
        }
    }
    // OpenRLHF starts the critic from the reward model where none is named (train_ppo_ray.py, after parsing).
    if draft.has_critic() && !draft.has("model.critic") {
        draft.critic_from_reward("OpenRLHF's default: the reward model");
    }
    Ok(())
}

/// `add_special_tokens=False` wherever a prompt becomes ids (trainer/ppo_utils/experience_maker.py, later trainer/ray/vllm_engine.py and
/// utils/agent.py): only a template writes BOS there.
fn template(draft: &mut Draft) -> Result<(), WrongValue> {
    let name = "data.apply_chat_template";
    let rendered = draft.truth(name)?;
    if draft.is_given(name) {
        draft.set("prompts.chatTemplate", rendered, &draft.source(name));
    }
    if !rendered {
        let why = "is off, and OpenRLHF adds no special tokens to a text; here it gets those of its tokenizer, as BOS for Llama, unless it \
                   begins with it";
        draft.leave("apply_chat_template", why);
    }
    Ok(())
}

fn is_older(draft: &Draft) -> bool {
    draft.has_name(|name| OLD_NAMES.contains(&name))
}

/// Defaults that changed while flags had their old names, which do not tell the version (train_ppo_ray.py of 0.6.0 to 0.8.2).
fn older_defaults(draft: &mut Draft) {
    if !draft.has_critic() || !is_older(draft) {
        return;
    }
    for (name, flag, field, older) in [
        (
            "critic.value_clip",
            "value_clip",
            "algorithm.clip.value",
            "0.2 up to OpenRLHF 0.8.1, 0.5 since",
        ),
        (
            "algo.advantage.lambd",
            "lambd",
            "algorithm.advantage.lambda",
            "0.95 up to OpenRLHF 0.6.3, 1 since",
        ),
    ] {
        if !draft.is_given(name) {
            let why = format!("its default is {older}, which is taken; with an older version give {field}");
            draft.leave(flag, &why);
        }
    }
}

fn reward(draft: &mut Draft) -> Result<(), WrongValue> {
    if let Some((values, source)) = draft.values("reward.remote_url") {
        let urls: Vec<String> = values.iter().flat_map(|value| super::row::list(value)).collect();
        if urls.iter().any(|url| !url.starts_with("http")) {
            draft.leave("reward.remote_url", SERVE_IT);
        } else {
            draft.set("roles.reward.remote.urls", urls, &source);
        }
    }
    // `max_new_tokens or max_len` in trainer/ppo_utils/length_penalty.py.
    let longest = match draft.count("rollout.max_new_tokens")? {
        Some(new) => new,
        None => max_len(draft)?.0.unwrap_or(1024),
    };
    overlong::punish(
        draft,
        "reward.overlong_buffer_len",
        "reward.overlong_penalty_factor",
        longest,
    )?;
    // `reward_model = None` in train_ppo_ray.py where there is a remote one; an agent is as one.
    let elsewhere = ["reward.remote_url", "train.agent_func_path"]
        .into_iter()
        .find(|name| draft.text(name).is_some());
    if let Some(elsewhere) = elsewhere.filter(|_| draft.has("roles.reward.model")) {
        draft.unset("roles.reward.model");
        let why = format!("OpenRLHF reads no reward model beside {elsewhere}, nor starts the critic from it");
        draft.leave("reward.model_name_or_path", &why);
    }
    if draft.has("roles.reward.model") {
        let placement = "roles.reward.placement";
        draft.set_count(&format!("{placement}.nodes"), "reward.num_nodes")?;
        draft.set_count(&format!("{placement}.gpusPerNode"), "reward.num_gpus_per_node")?;
    }
    Ok(())
}

/// Tokens of the longest prompt and response together, and where they are from: 2048 by default since 0.9.9, which has no bound of prompts.
fn max_len(draft: &Draft) -> Result<(Option<u64>, String), WrongValue> {
    let name = "data.max_len";
    let bounds_prompts = is_older(draft) && !draft.has_name(|name| name == "max_new_tokens");
    if draft.is_given(name) || draft.is_given("prompt_max_len") || bounds_prompts {
        return Ok((draft.count(name)?, draft.source(name)));
    }
    Ok((Some(2048), "OpenRLHF's default".into()))
}

fn lengths(draft: &mut Draft) -> Result<(), WrongValue> {
    let ((most, source), new) = (max_len(draft)?, draft.count("rollout.max_new_tokens")?);
    draft.set_count("generation.maxNewTokens", "rollout.max_new_tokens")?;
    match (most, new) {
        (Some(most), Some(new)) if most > new => draft.set("prompts.maxLength", most - new, &source),
        (Some(most), None) if most > 1 => {
            draft.set("prompts.maxLength", most / 2, &source);
            draft.set("generation.maxNewTokens", most - most / 2, &source);
            draft.leave(
                "max_len",
                "is shared out in halves; give generation.maxNewTokens and prompts.maxLength as your data needs",
            );
        }
        _ => {}
    }
    Ok(())
}

fn engines(draft: &mut Draft) -> Result<(), WrongValue> {
    let source = draft.source("vllm.num_engines");
    match draft.count("vllm.num_engines")? {
        None => {}
        Some(0) => draft.leave(
            "vllm_num_engines",
            "0 lets OpenRLHF's actor generate; here there is always an engine, the builtin one",
        ),
        Some(engines) => {
            draft.set("roles.rollout.replicas", engines, &source);
            draft.set("roles.rollout.engine", "vllm", &source);
        }
    }
    Ok(())
}

fn evaluation(draft: &mut Draft) -> Result<(), WrongValue> {
    if !draft.has("evaluation") {
        return Ok(());
    }
    draft.set_number("evaluation.temperature", "eval.temperature")?;
    held_out::samples(draft, "eval.n_samples_per_prompt")?;
    match draft.count_or_off("eval.steps")?.filter(|steps| *steps > 0) {
        Some(steps) => draft.set("evaluation.everySteps", steps, &draft.source("eval.steps")),
        None => draft.leave(
            "eval_dataset",
            "OpenRLHF does not evaluate without eval_steps; here it is every evaluation.everySteps: 10",
        ),
    }
    Ok(())
}
