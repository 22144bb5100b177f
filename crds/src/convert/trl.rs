//! TRL: the flags of `PPOConfig`, `RLOOConfig` and `GRPOConfig` of 0.24 to 1.16, with what they take from transformers'
//! `TrainingArguments`, `ModelConfig` and `ScriptArguments`. Sizes count samples of one process there.

mod newer;
pub mod programs;
mod rewards;
pub mod table;

use serde_json::json;

use self::programs::{Trainer, trainer_in};
use self::table::{COMMON, GRPO, ONLINE, PPO, RLOO};
use super::ConvertError;
use super::adapter::{AdapterFlags, adapter, whole_critic};
use super::dialect::{Dialect, Syntax};
use super::draft::{Draft, WrongValue, updates_per_step};
use super::known;
use super::other_loss;
use super::row::{NO_DROPOUT, Row};
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
        Some(Trainer::Ppo) => Ok(dialect(&[COMMON, PPO], finish_ppo)),
        Some(Trainer::Rloo) => Ok(dialect(&[COMMON, ONLINE, RLOO], finish_rloo)),
        Some(Trainer::Grpo) => Ok(dialect(&[COMMON, ONLINE, GRPO], finish_grpo)),
        None => Err(ConvertError::WhichTrainer),
    }
}

fn finish_ppo(draft: &mut Draft) -> Result<(), WrongValue> {
    models(draft);
    let local = per_device(draft)?.saturating_mul(accumulation(draft)?);
    let batch = local.saturating_mul(processes(draft)?);
    let source = "per_device_train_batch_size x gradient_accumulation_steps x processes";
    draft.set("batch.rolloutBatchSize", batch, source);
    let updates = ppo_updates_of_an_epoch(draft)?;
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
fn ppo_updates_of_an_epoch(draft: &mut Draft) -> Result<u64, WrongValue> {
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

fn finish_rloo(draft: &mut Draft) -> Result<(), WrongValue> {
    draft.set("algorithm.advantage.estimator", "rloo", "RLOOTrainer");
    online(draft)
}

fn finish_grpo(draft: &mut Draft) -> Result<(), WrongValue> {
    // `--scale_rewards batch` is not to be had here, and no reason for another estimator.
    if !draft.has("algorithm.advantage.estimator") {
        draft.set("algorithm.advantage.estimator", "grpo", "GRPOTrainer");
    }
    if draft.truth("use_vllm")? && draft.truth("vllm_importance_sampling_correction")? {
        let cap = draft.number("vllm_importance_sampling_cap")?.unwrap_or(2.0);
        draft.set(
            "algorithm.truncatedImportanceSampling",
            json!(cap),
            &draft.source("vllm_importance_sampling_cap"),
        );
        newer::correction(draft);
    }
    newer::weight_of_kl(draft)?;
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
    let iterations = draft.count("num_iterations")?.unwrap_or(1).max(1);
    let updates_per_step = (samples / update).max(1).saturating_mul(iterations);
    let updates = draft.count_or_off("max_steps")?;
    if let Some(updates) = updates.filter(|updates| *updates > 0) {
        let source = format!("{} / {updates_per_step} updates per step", draft.source("max_steps"));
        draft.set("steps", updates.div_ceil(updates_per_step), &source);
    }
    if draft.truth("use_vllm")? {
        let each = draft.count("vllm_tensor_parallel_size")?.unwrap_or(1).max(1);
        let colocated = draft.text("vllm_mode").as_deref() == Some("colocate");
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

/// Steps of the warm-up, each of so many updates; without any the share of `warmup_ratio` (`get_warmup_steps` in transformers'
/// training_args.py).
fn warm_up(draft: &mut Draft, updates: u64) -> Result<(), WrongValue> {
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
    let save = draft
        .count_or_off("save_steps")?
        .unwrap_or(0)
        .div_ceil(updates_per_step.max(1));
    let never = draft.text("save_strategy").as_deref() == Some("no");
    draft.set(
        "checkpoint.everySteps",
        if never { 0 } else { save },
        &draft.source(if never { "save_strategy" } else { "save_steps" }),
    );
    precision(draft)?;
    // What `cosine_with_min_lr` ends at is in lr_scheduler_kwargs, which are not read.
    schedule::set(draft, "lr_scheduler_type", None);
    Ok(())
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

/// Says that the number of processes is not known, where a launcher has more than one by its file or by itself.
fn unknown_processes(draft: &mut Draft) {
    let flags = ["--num_processes", "--nproc_per_node"];
    let is_said = draft.is_given("num_processes") || flags.iter().any(|flag| launcher_value(draft, flag).is_some());
    let launches = |word: &String| ["accelerate", "torchrun", "trl"].contains(&word.as_str());
    if is_said || !draft.launcher.iter().any(launches) {
        return;
    }
    let file = draft
        .text("accelerate_config")
        .or_else(|| launcher_text(draft, "--config_file"));
    let why = match file {
        Some(file) => format!("{file}, which may say how many processes there are, is not read (TRL's own say 8)"),
        None => "the launcher's command says no number of processes".into(),
    };
    let message =
        format!("{why}, so one is taken: add --num_processes N before the script, or behind `trl`, and convert again");
    draft.leave("processes", &message);
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

/// accelerate counts all processes, torchrun those of a node.
fn processes(draft: &Draft) -> Result<u64, WrongValue> {
    let given = draft.count("num_processes")?;
    if let Some(all) = given.or_else(|| launcher_value(draft, "--num_processes")) {
        return Ok(all.max(1));
    }
    let of_a_node = launcher_value(draft, "--nproc_per_node").unwrap_or(1);
    Ok(of_a_node.saturating_mul(nodes(draft)?).max(1))
}

fn nodes(draft: &Draft) -> Result<u64, WrongValue> {
    let of_launcher = || {
        let flags = ["--num_machines", "--nnodes"];
        flags.iter().find_map(|flag| launcher_value(draft, flag))
    };
    let nodes = draft.count("num_machines")?.or_else(of_launcher);
    Ok(nodes.unwrap_or(1).max(1))
}

fn launcher_value(draft: &Draft, flag: &str) -> Option<u64> {
    launcher_text(draft, flag)?.parse().ok()
}

fn launcher_text(draft: &Draft, flag: &str) -> Option<String> {
    let words = &draft.launcher;
    let at = words.iter().position(|word| {
        word.split('=')
            .next()
            .is_some_and(|name| name.replace('-', "_") == flag.replace('-', "_"))
    })?;
    words[at]
        .split_once('=')
        .map_or_else(|| words.get(at + 1).cloned(), |(_, value)| Some(value.to_owned()))
}
