//! TRL: the flags of `PPOConfig`, `RLOOConfig` and `GRPOConfig` of 0.24 to 1.16, with what they take from transformers'
//! `TrainingArguments`, `ModelConfig` and `ScriptArguments`. Sizes count samples of one process there.

mod correction;
mod newer;
mod online;
mod ppo;
mod processes;
pub mod programs;
mod rewards;
pub mod table;

use serde_json::{Map, Value};

use self::online::{finish_grpo, finish_rloo};
use self::processes::{nodes, processes, unknown_processes};
use self::programs::{Trainer, trainer_in};
use self::table::{COMMON, GRPO, ONLINE, PPO, RLOO};
use super::ConvertError;
use super::adapter::{AdapterFlags, adapter, whole_critic};
use super::dialect::{Dialect, Syntax};
use super::draft::{Draft, WrongValue};
use super::known;
use super::row::{self, NO_DROPOUT, Row};
use super::schedule;
use super::shell::Word;
use super::source::{data_set, download};

const ADAPTER: AdapterFlags = AdapterFlags {
    rank: "lora_r",
    alpha: "lora_alpha",
    targets: "lora_target_modules",
};

/// The flags of the trainer that the program's name, else a flag of one trainer alone, tells of.
pub(super) fn dialect(launcher: &[Word], flags: &[Word]) -> Result<Dialect, ConvertError> {
    let program = launcher
        .last()
        .and_then(|word| trainer_in(word.text.rsplit('/').next()?));
    let given = |name: &str| {
        let mut flags = flags.iter().filter_map(|word| word.text.strip_prefix("--"));
        flags.any(|flag| flag.split('=').next().unwrap_or_default().replace('-', "_") == name)
    };
    let by_flag = || {
        let signs = [
            ("num_ppo_epochs", Trainer::Ppo),
            ("reward_model_path", Trainer::Ppo),
            ("sft_model_path", Trainer::Ppo),
            ("vf_coef", Trainer::Ppo),
            ("scale_rewards", Trainer::Grpo),
            ("loss_type", Trainer::Grpo),
            ("normalize_advantages", Trainer::Rloo),
            ("normalize_reward", Trainer::Rloo),
        ];
        signs
            .into_iter()
            .find_map(|(name, trainer)| given(name).then_some(trainer))
    };
    let dialect = |rows: &[&[Row]], finish| Dialect {
        name: "TRL",
        syntax: Syntax::Dashes,
        negates: true,
        rows: rows.concat(),
        known: known::TRL,
        finish,
    };
    match program.or_else(by_flag) {
        Some(Trainer::Ppo) => Ok(dialect(&[COMMON, PPO], ppo::finish)),
        Some(Trainer::Rloo) => Ok(dialect(&[COMMON, ONLINE, RLOO], finish_rloo)),
        Some(Trainer::Grpo) => Ok(dialect(&[COMMON, ONLINE, GRPO], finish_grpo)),
        None => Err(ConvertError::WhichTrainer),
    }
}

/// A checkpoint each `save_steps` updates, of which a step makes so many.
fn checkpoints(draft: &mut Draft, updates_per_step: u64) -> Result<(), WrongValue> {
    let strategy = draft.text("save_strategy").unwrap_or_default();
    if strategy == "no" {
        draft.set("checkpoint.everySteps", 0, &draft.source("save_strategy"));
        return Ok(());
    }
    if strategy != "steps" {
        let why =
            format!("{strategy} is not available: give checkpoint.everySteps (checkpoint.keepBest keeps the best)");
        draft.leave("save_strategy", &why);
    }
    // A share of all steps, in transformers.
    if draft
        .number("save_steps")?
        .is_some_and(|share| share > 0.0 && share < 1.0)
    {
        draft.leave(
            "save_steps",
            "is a share of all steps there: give checkpoint.everySteps",
        );
        return Ok(());
    }
    let save = draft.count_or_off("save_steps")?.unwrap_or(0);
    let every = save.div_ceil(updates_per_step.max(1));
    draft.set("checkpoint.everySteps", every, &draft.source("save_steps"));
    Ok(())
}

/// Steps of the warm-up, each of so many updates; without any the share of `warmup_ratio` (`get_warmup_steps` in transformers'
/// training_args.py).
fn warm_up(draft: &mut Draft, updates: u64) -> Result<(), WrongValue> {
    if !schedule::warms_up(draft, "lr_scheduler_type") {
        return Ok(());
    }
    let name = "warmup_steps";
    match draft.number(name)?.filter(|steps| *steps > 0.0) {
        None => schedule::warm_up(draft, "warmup_ratio")?,
        Some(share) if share < 1.0 => schedule::warm_up(draft, name)?,
        Some(_) => {
            let steps = draft.count(name)?.unwrap_or(0);
            let source = match updates {
                1 => draft.source(name),
                _ => format!("{} x {updates} updates per step", draft.source(name)),
            };
            draft.set("optimizer.warmupUpdates", steps.saturating_mul(updates), &source);
        }
    }
    Ok(())
}

fn common(draft: &mut Draft, updates_per_step: u64) -> Result<(), WrongValue> {
    columns(draft);
    if draft.truth("use_peft")? {
        adapter(draft, &ADAPTER)?;
        // Only PPOTrainer has a value model, and gives `peft_config` to the policy alone.
        whole_critic(draft, "TRL");
        if !draft.is_given("lora_dropout") {
            draft.leave("TRL's default", &format!("lora_dropout is 0.05; {NO_DROPOUT}"));
        }
    }
    let (nodes, processes) = (nodes(draft)?, processes(draft)?);
    let source = "the launcher's processes";
    draft.set("roles.actor.nodes", nodes, source);
    draft.set("roles.actor.gpusPerNode", (processes / nodes.max(1)).max(1), source);
    unknown_processes(draft);
    if !draft.has("steps") {
        let epochs = draft.number("num_train_epochs")?.unwrap_or(3.0).max(0.0).ceil() as u64;
        draft.set("episodes", epochs.max(1), &draft.source("num_train_epochs"));
    }
    checkpoints(draft, updates_per_step)?;
    precision(draft)?;
    let least = least(draft)?;
    schedule::set(draft, "lr_scheduler_type", least);
    Ok(())
}

/// What `cosine_with_min_lr` ends at, as a share of the learning rate (`get_cosine_with_min_lr_schedule_with_warmup` in transformers'
/// optimization.py).
fn least(draft: &mut Draft) -> Result<Option<f64>, WrongValue> {
    let name = "lr_scheduler_kwargs";
    let given = draft
        .text(name)
        .filter(|text| !row::is_null(std::slice::from_ref(text)) && text != "{}");
    let Some(text) = given else { return Ok(None) };
    let given: Map<String, Value> = serde_json::from_str(&text).unwrap_or_default();
    let number = |key: &str| given.get(key).and_then(Value::as_f64);
    // RLOO's and GRPO's default, which is ours too.
    let rate = draft.number("learning_rate")?.unwrap_or(1e-6);
    let of_rate = number("min_lr").filter(|_| rate > 0.0).map(|least| least / rate);
    let least = number("min_lr_rate").or(of_rate);
    let has_end = draft.text("lr_scheduler_type").as_deref() == Some("cosine_with_min_lr");
    let is_all = given
        .keys()
        .all(|key| ["min_lr_rate", "min_lr"].contains(&key.as_str()));
    if least.is_none() || !has_end || !is_all {
        let why = "only min_lr_rate and min_lr of cosine_with_min_lr are read: give optimizer.schedule and optimizer.minLearningRateRatio";
        draft.leave(name, why);
    }
    Ok(least)
}

/// A data set of the hub, with the columns that TRL's scripts read of it.
fn columns(draft: &mut Draft) {
    let (values, _) = draft.values("dataset_name").unwrap_or_default();
    let Some(name) = data_set(&values) else { return };
    let config = draft.text("dataset_config");
    let split = draft.text("dataset_train_split").unwrap_or_else(|| "train".into());
    let how = format!(
        "{}. TRL reads its column `prompt`, as prompts.promptField does; where the reward looks at another column, an answer, name it in \
         prompts.labelField",
        download(name, config.as_deref(), &split)
    );
    draft.unsay("spec.prompts.source.path");
    draft.missing("prompts.source.path", &how);
}

/// `bf16` computes in bfloat16 whatever the weights are read as. Without it they are float32, unless `dtype` says otherwise.
fn precision(draft: &mut Draft) -> Result<(), WrongValue> {
    if draft.is_given("bf16") {
        let on = draft.truth("bf16")?;
        if on || !draft.has("model.dtype") {
            let dtype = if on { "bfloat16" } else { "float32" };
            draft.set("model.dtype", dtype, &draft.source("bf16"));
        }
    }
    Ok(())
}

fn per_device(draft: &Draft) -> Result<u64, WrongValue> {
    Ok(draft.count("per_device_train_batch_size")?.unwrap_or(8).max(1))
}

fn accumulation(draft: &Draft) -> Result<u64, WrongValue> {
    Ok(draft.count("gradient_accumulation_steps")?.unwrap_or(1).max(1))
}
