//! Every setting that the frameworks have in the versions of `docs/migration.md` has a row. The lists are names alone, from the
//! packages of these versions.

use super::*;
use crate::convert::row::Row;

const VERL: &str = include_str!("../known/verl-0.9.0.txt");
const OPENRLHF: &str = include_str!("../known/openrlhf-0.11.0.txt");
const TRL: &str = include_str!("../known/trl-0.24.0.txt");

fn lines(list: &'static str) -> impl Iterator<Item = &'static str> {
    list.lines().filter(|line| !line.starts_with('#'))
}

fn has_row(rows: &[Row], name: &str) -> bool {
    rows.iter().any(|row| row.is(name))
}

#[test]
fn every_setting_of_verl_has_a_row() {
    let rows = verl::table::rows();
    let without: Vec<_> = lines(VERL).filter(|name| !has_row(&rows, name)).collect();
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
fn every_flag_that_trl_has_had_since_has_a_row() {
    use trl::table::{COMMON, GRPO, ONLINE, RLOO};
    // Of 1.9 and not of 0.24: both trainers', then GRPOTrainer's.
    let both = "chat_template_kwargs log_multimodal log_unique_prompts num_generations_eval pad_to_multiple_of \
                router_aux_loss_coef transformers_continuous_batching_config use_transformers_continuous_batching \
                vllm_group_port vllm_max_model_length vllm_structured_outputs_regex bnb_4bit_quant_storage";
    let own = "cast_lm_head_to_fp32 entropy_coef entropy_coef_delta entropy_coef_max entropy_coef_min entropy_target \
               log_completions_hub_repo max_tool_calling_iterations multi_objective_aggregation off_policy_mask_threshold \
               sapo_temperature_neg sapo_temperature_pos use_adaptive_entropy use_bias_correction_kl vespo_k_neg vespo_k_pos \
               vespo_lambda_neg vespo_lambda_pos vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min \
               vllm_importance_sampling_mode";
    for (rows, names) in [
        ([COMMON, ONLINE, RLOO].concat(), both.to_owned()),
        ([COMMON, ONLINE, GRPO].concat(), format!("{both} {own}")),
    ] {
        let without: Vec<_> = names.split(' ').filter(|name| !has_row(&rows, name)).collect();
        assert!(without.is_empty(), "{without:?}");
    }
    let trl = "trl grpo --model_name_or_path /m --dataset_name /d.jsonl --reward_model_name_or_path /rm --use_vllm \
               --vllm_importance_sampling_clip_max 3 --entropy_coef 0.01";
    let algorithm = converted(Framework::Trl, trl).job.spec.algorithm;
    assert_eq!(algorithm.rollout_correction.unwrap().high, 3.0);
    assert_eq!(algorithm.entropy_coef, Some(0.01));
}

#[test]
fn trl_without_bf16_computes_in_float32() {
    use crate::spec::DType;
    let of = |flags: &str| {
        let trl = "trl grpo --model_name_or_path /m --dataset_name /d.jsonl --reward_model_name_or_path /rm";
        converted(Framework::Trl, &format!("{trl} {flags}"))
            .job
            .spec
            .model
            .dtype
    };
    assert_eq!([of("--bf16"), of("--bf16 true"), of("")], [DType::Bfloat16; 3]);
    assert_eq!(of("--bf16 true --dtype float32"), DType::Bfloat16);
    assert_eq!([of("--bf16 false"), of("--dtype float32")], [DType::Float32; 2]);
    assert_eq!(of("--bf16 False --dtype bfloat16"), DType::Bfloat16);
}

#[test]
fn a_bound_of_prompts_that_newer_versions_of_trl_do_not_have_is_told_of() {
    let said = |flags: &str| {
        let trl = "trl grpo --model_name_or_path /m --dataset_name /d.jsonl --reward_model_name_or_path /rm";
        let conversion = converted(Framework::Trl, &format!("{trl} {flags}"));
        let bound = |note: &Note| note.message.starts_with("max_prompt_length is 512 up to 0.27");
        (
            conversion.job.spec.prompts.max_length,
            conversion.notes.iter().any(bound),
        )
    };
    assert_eq!(said(""), (512, true));
    assert_eq!(said("--max_prompt_length 2048"), (2048, false));
}

#[test]
fn what_trl_puts_in_front_of_a_prompt_is_told_where_it_is_another() {
    let said = |command: &str| {
        let flags = "--model_name_or_path /m --dataset_name /d.jsonl --reward_model_name_or_path /rm";
        let notes = converted(Framework::Trl, &format!("{command} {flags}")).notes;
        let about = |note: &&Note| note.subject == "TRL's prompts";
        notes.iter().find(about).map(|note| note.message.clone())
    };
    assert!(said("trl grpo").unwrap().contains("no special tokens"));
    assert!(said("rloo.py").unwrap().contains("no special tokens"));
    assert!(said("trl grpo --use_vllm").unwrap().contains("adds BOS to messages"));
    let ppo = "ppo.py --sft_model_path /m --reward_model_path /rm --dataset_name /d.jsonl";
    let notes = converted(Framework::Trl, ppo).notes;
    assert!(!notes.iter().any(|note| note.subject == "TRL's prompts"), "{notes:?}");
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

#[test]
fn defaults_that_newer_versions_of_trl_have_changed_are_told_of() {
    let said = |command: &str, words: &str| {
        let notes = converted(Framework::Trl, command).notes;
        notes.iter().any(|note| note.message.starts_with(words))
    };
    let grpo = "trl grpo --model_name_or_path /m --dataset_name /d.jsonl --reward_model_name_or_path /rm";
    let ppo = "ppo.py --sft_model_path /m --reward_model_path /rm --dataset_name /d.jsonl";
    let (with_kl, with_vllm) = (format!("{grpo} --beta 0.1"), format!("{grpo} --use_vllm"));
    for (command, flags, words) in [
        (grpo, "--max_completion_length 512", "max_completion_length is 256"),
        (ppo, "--learning_rate 3e-6", "learning_rate is 5e-5"),
        (
            with_kl.as_str(),
            "--use_bias_correction_kl false",
            "use_bias_correction_kl is true",
        ),
        (
            with_vllm.as_str(),
            "--vllm_importance_sampling_mode token_truncate --vllm_importance_sampling_cap 2",
            "vLLM's correction truncates",
        ),
    ] {
        assert!(said(command, words), "{command}");
        assert!(!said(&format!("{command} {flags}"), words), "{command} {flags}");
    }
    assert!(!said(grpo, "use_bias_correction_kl") && !said(grpo, "vLLM's correction"));
}

#[test]
fn names_that_transformers_5_and_verl_0_9_1_have_since_are_known() {
    let grpo = "trl grpo --model_name_or_path /m --dataset_name /d.jsonl --reward_model_name_or_path /rm --enable_jit_checkpoint true \
                --train_sampling_strategy random --trackio_bucket_id x --activation_checkpointing false";
    assert!(!converted(Framework::Trl, grpo).job.spec.model.activation_checkpointing);
    let verl = "actor_rollout_ref.model.path=/m trainer.checkpoint_callback_class=a.B critic.fsdp.turbo_config.distributed.tensor_parallel_size=2 \
                critic.profiler.relocate_results=True critic.veomni.qat_implementation=none actor_rollout_ref.rollout.router_config_path=/r";
    let notes = converted(Framework::Verl, verl).notes;
    let is_left =
        |note: &Note| note.subject.ends_with("checkpoint_callback_class") && note.kind == NoteKind::NotTranslated;
    assert!(notes.iter().any(is_left), "{notes:?}");
}
