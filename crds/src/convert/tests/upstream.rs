//! Every setting that the frameworks have in the versions of `docs/migration.md` has a row. The lists are names alone, from the
//! packages of these versions.

use super::*;
use crate::convert::row::Row;

const VERL: &str = include_str!("upstream/verl-0.9.0.txt");
const OPENRLHF: &str = include_str!("upstream/openrlhf-0.11.0.txt");
const TRL: &str = include_str!("upstream/trl-0.24.0.txt");

fn lines(list: &'static str) -> impl Iterator<Item = &'static str> {
    list.lines().filter(|line| !line.starts_with('#'))
}

fn has_row(rows: &[Row], name: &str) -> bool {
    rows.iter().any(|row| row.is(name))
}

#[test]
fn every_setting_of_verl_has_a_row() {
    let without: Vec<_> = lines(VERL).filter(|name| !has_row(verl::table::ROWS, name)).collect();
    assert!(without.is_empty(), "{without:?}");
}

#[test]
fn every_flag_of_openrlhf_has_a_row() {
    let without: Vec<_> = lines(OPENRLHF)
        .filter(|name| !has_row(openrlhf::table::ROWS, name))
        .collect();
    assert!(without.is_empty(), "{without:?}");
}

#[test]
fn every_flag_of_trls_trainers_has_a_row() {
    use trl::table::{COMMON, GRPO, ONLINE, PPO, RLOO};
    for (trainer, rows) in [
        ("ppo", [COMMON, PPO].concat()),
        ("rloo", [COMMON, ONLINE, RLOO].concat()),
        ("grpo", [COMMON, ONLINE, GRPO].concat()),
    ] {
        let own = lines(TRL).filter(|line| line.split(' ').skip(1).any(|owner| owner == trainer));
        let names = own.filter_map(|line| line.split(' ').next());
        let negated = |name: &str| name.strip_prefix("no_").is_some_and(|name| has_row(&rows, name));
        let without: Vec<_> = names.filter(|name| !has_row(&rows, name) && !negated(name)).collect();
        assert!(without.is_empty(), "{trainer}: {without:?}");
    }
}

#[test]
fn transformers_switches_off_what_is_true_by_default() {
    let trl = "trl grpo --model_name_or_path /m --dataset_name /d.jsonl --reward_model_name_or_path /rm --use_vllm";
    let spec = converted(Framework::Trl, trl).job.spec;
    assert!(spec.model.activation_checkpointing && spec.prompts.shuffle);
    assert_eq!(spec.algorithm.truncated_importance_sampling, Some(2.0));
    let off = format!(
        "{trl} --no_gradient_checkpointing --no-shuffle-dataset --no_vllm_importance_sampling_correction --no_cuda"
    );
    let spec = converted(Framework::Trl, &off).job.spec;
    assert!(!spec.model.activation_checkpointing && !spec.prompts.shuffle);
    assert_eq!(spec.algorithm.truncated_importance_sampling, None);
    let error = convert(Framework::Trl, &format!("{trl} --no_such_flag"), &nothing).unwrap_err();
    assert!(error.to_string().starts_with("no_such_flag is no setting"), "{error}");
    let openrlhf = convert(Framework::Openrlhf, "--pretrain a/b --no_packing_samples", &nothing);
    assert!(
        openrlhf
            .unwrap_err()
            .to_string()
            .contains("no_packing_samples is no setting")
    );
}

#[test]
fn trls_ppo_trains_as_long_as_its_episodes_say_whatever_max_steps_is() {
    let command = "ppo.py --sft_model_path /m --reward_model_path /rm --dataset_name /d.jsonl --total_episodes 64 \
                   --per_device_train_batch_size 8 --max_steps 3";
    let conversion = converted(Framework::Trl, command);
    assert_eq!(conversion.job.spec.steps, Some(8));
    let needless = |note: &Note| note.kind == NoteKind::Needless && note.subject == "max_steps";
    assert!(conversion.notes.iter().any(needless), "{:?}", conversion.notes);
}

#[test]
fn verl_with_megatron_keeps_its_schedule() {
    let flags = "python3 -m verl.trainer.main_ppo model_engine=megatron actor_rollout_ref.model.path=/m \
                 actor_rollout_ref.actor.optim.lr_decay_style=cosine actor_rollout_ref.actor.optim.min_lr=1e-7";
    let conversion = converted(Framework::Verl, flags);
    assert_eq!(conversion.job.spec.optimizer.schedule, crate::spec::Schedule::Cosine);
    let said = |end: &str| conversion.notes.iter().any(|note| note.subject.ends_with(end));
    assert!(said("min_lr") && said("model_engine"), "{:?}", conversion.notes);
}
