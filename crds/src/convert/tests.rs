use super::*;
use crate::{parse_manifest, spec_schema};

mod adapters;
mod checkpoints;
mod clusters;
mod config_files;
mod corrections;
mod critics;
mod dynamic;
mod engines;
mod families;
mod held_out;
mod known_names;
mod losses;
mod optimizers;
mod prompts;
mod rewards;
mod scripts;
mod sizes;
mod steps;
mod trl_models;
mod upstream;

fn nothing(_: &str) -> Option<String> {
    None
}

fn converted(framework: Framework, script: &str) -> Conversion {
    let conversion = convert(framework, script, &nothing).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(
        parse_manifest(&conversion.manifest, "printed").unwrap(),
        conversion.job,
        "{}",
        conversion.manifest
    );
    clusters::is_told(&conversion);
    conversion
}

#[test]
fn every_field_of_the_tables_is_one_of_the_manual() {
    let verl = verl::table::rows();
    let tables = [
        openrlhf::table::ROWS,
        verl.as_slice(),
        trl::table::COMMON,
        trl::table::PPO,
        trl::table::ONLINE,
        trl::table::RLOO,
        trl::table::GRPO,
    ];
    for row in tables.concat() {
        let (row::To::Fields(fields, _) | row::To::Computed(fields)) = row.to else {
            assert!(
                !row.note.is_empty(),
                "{:?} is not translated and does not say why",
                row.names
            );
            continue;
        };
        for field in fields.iter().filter(|field| **field != "metadata.name") {
            let known = field
                .split('.')
                .try_fold(spec_schema(), |schema, name| schema.get("properties")?.get(name));
            assert!(known.is_some(), "{:?}: {field}", row.names);
        }
    }
}

#[test]
fn no_list_of_the_page_is_empty() {
    let page = migration_page();
    for after in page.split("These need nothing here:\n\n").skip(1) {
        assert!(after.starts_with("* "), "{after:.60}");
    }
}

#[test]
fn no_setting_is_in_a_table_twice() {
    for rows in [
        openrlhf::table::ROWS.to_vec(),
        verl::table::rows(),
        [trl::table::COMMON, trl::table::PPO].concat(),
        [trl::table::COMMON, trl::table::ONLINE, trl::table::RLOO].concat(),
        [trl::table::COMMON, trl::table::ONLINE, trl::table::GRPO].concat(),
    ] {
        for (index, row) in rows.iter().enumerate() {
            for name in row.names {
                // A name after the pattern that covers it would never be looked at.
                let first = rows.iter().position(|row| row.is(name.trim_end_matches('*')));
                assert!(first.is_none_or(|first| first == index), "{name}");
            }
        }
    }
}

const SEED_EXAMPLE: &str = r#"
ray job submit --address="http://127.0.0.1:8265" --runtime-env-json='{"working_dir": "/openrlhf"}' \
   -- python3 -m openrlhf.cli.train_ppo_ray \
   --ref_num_nodes 1 --ref_num_gpus_per_node 8 \
   --actor_num_nodes 1 --actor_num_gpus_per_node 8 \
   --vllm_num_engines 2 --vllm_tensor_parallel_size 4 \
   --pretrain /models/qwen2.5-7b-sft \
   --remote_rm_url http://math-verifier:5000/get_reward \
   --prompt_data /data/math/train.jsonl --input_key prompt --label_key answer --apply_chat_template \
   --micro_train_batch_size 1 --train_batch_size 32 \
   --micro_rollout_batch_size 2 --rollout_batch_size 32 --n_samples_per_prompt 4 \
   --max_epochs 1 --num_episodes 1 \
   --prompt_max_len 1024 --generate_max_len 1300 --temperature 0.5 \
   --advantage_estimator rloo --init_kl_coef 0.01 --kl_estimator k1 \
   --actor_learning_rate 5e-7 --zero_stage 3 --bf16 --flash_attn --packing_samples --gradient_checkpointing \
   --use_wandb {wandb_token}
"#;

#[test]
fn the_seed_example_plans_to_its_numbers() {
    let Conversion { job, .. } = converted(Framework::Openrlhf, SEED_EXAMPLE);
    let geometry = Geometry::of(&job).unwrap();
    assert_eq!(geometry.samples_per_step, 128);
    assert_eq!((geometry.prompts_per_engine, geometry.samples_per_engine), (16, 64));
    assert_eq!(geometry.accumulation_steps, 4);
    assert_eq!(geometry.gpus, 24);
    let spec = &job.spec;
    assert_eq!(spec.algorithm.profile, crate::spec::Profile::Openrlhf);
    assert_eq!(spec.batch.micro_rollout_batch_size, Some(2));
    assert_eq!((spec.prompts.max_length, spec.generation.max_new_tokens), (1024, 1300));
    assert_eq!(
        spec.roles.reward.remote.as_ref().unwrap().urls,
        ["http://math-verifier:5000/get_reward"]
    );
    assert!(spec.model.critic.is_none());
}

#[test]
fn a_secret_among_the_flags_is_not_repeated() {
    let conversion = converted(Framework::Openrlhf, &SEED_EXAMPLE.replace("{wandb_token}", "s3cret"));
    assert!(!conversion.manifest.contains("s3cret"), "{}", conversion.manifest);
    assert!(conversion.notes.iter().any(|note| note.subject == "use_wandb"));
}

#[test]
fn old_and_new_names_of_openrlhf_mean_the_same() {
    let old = "--pretrain a/b --reward_pretrain c/d --critic_learning_rate 1e-5 --kl_target 6 --eps_clip_low_high 0.2 0.28 \
               --max_len 2048 --max_new_tokens 1024 --colocate_all_models --enable_vllm_is_correction --lr_scheduler constant";
    let new = "--actor.model_name_or_path a/b --reward.model_name_or_path c/d --critic.adam.lr 1e-5 --algo.kl.target 6 \
               --actor.eps_clip_low_high 0.2 0.28 --data.max_len 2048 --rollout.max_new_tokens 1024 --train.colocate_all \
               --algo.advantage.is_correction_enable --actor.lr_scheduler constant";
    let (old, new) = (converted(Framework::Openrlhf, old), converted(Framework::Openrlhf, new));
    assert_eq!(old.job, new.job);
    let spec = &old.job.spec;
    assert_eq!(spec.model.critic.as_ref().unwrap().hub.as_ref().unwrap().id, "c/d");
    assert_eq!(
        (spec.prompts.max_length, spec.algorithm.clip.policy_high),
        (1024, Some(0.28))
    );
    let correction = spec.algorithm.rollout_correction.unwrap();
    assert_eq!((correction.low, correction.high), (0.5, 5.0));
    let adaptive = spec
        .algorithm
        .kl
        .controller
        .as_ref()
        .unwrap()
        .adaptive
        .as_ref()
        .unwrap();
    assert_eq!((adaptive.target, adaptive.horizon), (6.0, 10_000.0));
}

const VERL_GRPO: &str = r#"
set -x
train="['/data/gsm8k/train.parquet']"
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    data.train_files="$train" \
    data.val_files=$HOME/gsm8k/test.parquet \
    data.train_batch_size=1024 data.max_prompt_length=512 data.max_response_length=1024 \
    data.filter_overlong_prompts=True data.truncation='error' \
    actor_rollout_ref.model.path=Qwen/Qwen3-8B \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32 \
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.001 \
    actor_rollout_ref.actor.kl_loss_type=low_var_kl actor_rollout_ref.actor.entropy_coeff=0 \
    actor_rollout_ref.model.enable_gradient_checkpointing=True \
    actor_rollout_ref.actor.fsdp_config.param_offload=False \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=30 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 actor_rollout_ref.rollout.n=5 \
    +actor_rollout_ref.rollout.engine_kwargs.vllm.disable_mm_preprocessor_cache=True \
    algorithm.use_kl_in_reward=False trainer.critic_warmup=0 trainer.logger='["console","wandb"]' \
    trainer.project_name='verl_grpo_example_gsm8k' trainer.experiment_name='qwen3_8b_function_rm' \
    trainer.n_gpus_per_node=8 trainer.nnodes=1 trainer.save_freq=20 trainer.test_freq=5 trainer.total_epochs=15 $@
"#;

#[test]
fn verls_batches_count_prompts_and_become_samples() {
    let home = |name: &str| (name == "HOME").then(|| "/root".to_owned());
    let conversion = convert(Framework::Verl, VERL_GRPO, &home).unwrap();
    clusters::is_told(&conversion);
    let Conversion { job, manifest, notes } = conversion;
    assert_eq!(parse_manifest(&manifest, "printed").unwrap(), job);
    let spec = &job.spec;
    assert_eq!(
        (spec.batch.rollout_batch_size, spec.batch.n_samples_per_prompt),
        (1024, 5)
    );
    assert_eq!(
        (spec.batch.train_batch_size, spec.batch.micro_train_batch_size),
        (Some(1280), Some(32))
    );
    let geometry = Geometry::of(&job).unwrap();
    assert_eq!((geometry.updates_per_epoch, geometry.accumulation_steps), (4, 5));
    assert_eq!(
        (spec.roles.rollout.replicas, spec.roles.rollout.gpus_per_replica),
        (4, 2)
    );
    assert_eq!(spec.algorithm.kl.placement, Some(crate::spec::KlPlacement::Loss));
    assert_eq!(spec.algorithm.kl.estimator, Some(crate::spec::KlEstimator::K3));
    assert_eq!((spec.optimizer.beta2, spec.optimizer.weight_decay), (0.999, 0.01));
    assert_eq!(spec.prompts.label_field.as_deref(), Some("reward_model.ground_truth"));
    assert_eq!(
        spec.evaluation.as_ref().unwrap().source.path.as_deref(),
        Some("/root/gsm8k/test.parquet")
    );
    assert_eq!(job.metadata.name.as_deref(), Some("qwen3-8b-function-rm"));
    // 640 samples of a rank: 30 does not divide them.
    assert_eq!(spec.batch.micro_rollout_batch_size, Some(20));
    let said = |subject: &str| notes.iter().any(|note| note.subject.contains(subject));
    assert!(
        said("batch.microRolloutBatchSize") && said("gpu_memory_utilization") && said("data_source"),
        "{notes:?}"
    );
}

#[test]
fn trls_grpo_divides_by_the_deviation_as_it_does_there() {
    let flags = "trl grpo --model_name_or_path /m --dataset_name /d.jsonl --reward_model_name_or_path /rm";
    let conversion = converted(Framework::Trl, flags);
    assert_eq!(conversion.job.spec.algorithm.profile, crate::spec::Profile::Trl);
    let deviation = |note: &Note| note.message.contains("deviation");
    assert!(!conversion.notes.iter().any(deviation), "{:?}", conversion.notes);
}

#[test]
fn a_word_that_is_not_to_be_had_here_does_not_change_the_estimator() {
    let flags = "trl grpo --model_name_or_path /m --dataset_name /d.jsonl --reward_model_name_or_path /rm --num_generations 8 \
                 --per_device_train_batch_size 8 --scale_rewards median";
    let conversion = converted(Framework::Trl, flags);
    assert_eq!(
        conversion.job.spec.algorithm.advantage.estimator,
        crate::spec::Estimator::Grpo
    );
    assert!(
        conversion
            .notes
            .iter()
            .any(|note| note.message.starts_with("median is not available"))
    );
}

#[test]
fn trls_scaling_by_the_batch_is_grpo_by_the_deviation_of_the_step() {
    use crate::spec::{Deviation, Estimator};
    let of = |flags: &str| {
        let trl = "trl grpo --model_name_or_path /m --dataset_name /d.jsonl --reward_model_name_or_path /rm";
        let advantage = converted(Framework::Trl, &format!("{trl} {flags}"))
            .job
            .spec
            .algorithm
            .advantage;
        (advantage.estimator, advantage.deviation)
    };
    assert_eq!(of("--scale_rewards batch"), (Estimator::Grpo, Deviation::Batch));
    assert_eq!(of("--scale_rewards group"), (Estimator::Grpo, Deviation::Group));
    assert_eq!(of(""), (Estimator::Grpo, Deviation::Group));
    assert_eq!(of("--scale_rewards none"), (Estimator::DrGrpo, Deviation::Group));
}

#[test]
fn null_is_as_if_the_setting_had_not_been_given() {
    let mut draft = "".to_owned();
    for setting in [
        "data.seed",
        "trainer.default_local_dir",
        "trainer.max_actor_ckpt_to_keep",
    ] {
        draft += &format!(" {setting}=null");
    }
    let flags = format!(
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=gae actor_rollout_ref.model.path=~/models/q critic.model.path=/m \
         data.train_files=/d.parquet reward_model.model.path=/rm reward_model.enable=True{draft}"
    );
    let conversion = converted(Framework::Verl, &flags);
    let spec = conversion.job.spec;
    assert_eq!((spec.checkpoint.path, spec.checkpoint.keep), (None, 3));
    assert_eq!(spec.model.policy.path.as_deref(), Some("/models/q"));
    let missing = |note: &Note| note.kind == NoteKind::Missing && note.subject == "spec.model.policy.path";
    assert!(conversion.notes.iter().any(missing), "{:?}", conversion.notes);
}

#[test]
fn an_unknown_flag_is_answered_with_the_nearest() {
    let message = |framework, flags| convert(framework, flags, &nothing).unwrap_err().to_string();
    assert_eq!(
        message(Framework::Openrlhf, "--pretrain a/b --trian_batch_size 4 --eps_clp 0.2"),
        "trian_batch_size is no setting of OpenRLHF; the nearest is train_batch_size\n\
         eps_clp is no setting of OpenRLHF; the nearest is eps_clip"
    );
    let verl = message(Framework::Verl, "data.train_batch_sizes=4");
    assert!(verl.contains("the nearest is data.train_batch_size"), "{verl}");
    assert!(message(Framework::Trl, "ppo.py --klcoef 1").contains("the nearest is kl_coef"));
    assert_eq!(
        message(Framework::Openrlhf, "--pretrain a/b --learning_rate_for_everything 1"),
        "learning_rate_for_everything is no setting of OpenRLHF; docs/migration.md lists those that are known"
    );
}

#[test]
fn what_cannot_run_is_refused_with_the_flag_it_is_from() {
    let message = |framework, flags| convert(framework, flags, &nothing).unwrap_err().to_string();
    let openrlhf = message(
        Framework::Openrlhf,
        "--pretrain a/b --rollout_batch_size 40 --train_batch_size 32",
    );
    assert!(
        openrlhf.contains("spec.batch.trainBatchSize: 32 does not divide")
            && openrlhf.contains("is from --train_batch_size 32"),
        "{openrlhf}"
    );
    assert!(message(Framework::Openrlhf, "--gamma much").contains("--gamma much: wants a number, has \"much\""));
    assert!(message(Framework::Openrlhf, "--pretrain $MODEL/x").starts_with("$MODEL in `--pretrain $MODEL/x`"));
    assert!(message(Framework::Openrlhf, "ls -l").contains("no OpenRLHF command"));
    assert!(message(Framework::Trl, "train.py --learning_rate 1").contains("put the script's name"));
    assert!(
        message(Framework::Openrlhf, "--rollout_batch_size 99999999999").contains("--rollout_batch_size 99999999999")
    );
}

#[test]
fn a_model_below_a_home_folder_has_a_placeholder_of_its_name() {
    for path in ["~/models/q", "~/models/q/"] {
        let conversion = converted(Framework::Verl, &format!("actor_rollout_ref.model.path={path}"));
        assert_eq!(conversion.job.spec.model.policy.path.as_deref(), Some("/models/q"));
        let missing = |note: &Note| note.kind == NoteKind::Missing && note.subject == "spec.model.policy.path";
        assert!(conversion.notes.iter().any(missing), "{:?}", conversion.notes);
    }
}

#[test]
fn a_number_is_read_as_python_writes_it_and_is_finite() {
    let message = |flags: &str| convert(Framework::Verl, flags, &nothing).unwrap_err().to_string();
    for number in ["nan", "inf"] {
        let flags = format!("algorithm.use_kl_in_reward=True algorithm.kl_ctrl.kl_coef={number}");
        let words = format!("algorithm.kl_ctrl.kl_coef={number}: wants a number, has {number:?}");
        assert_eq!(message(&flags), words);
    }
    let conversion = converted(
        Framework::Trl,
        "trl grpo --num_processes 8 --max_steps 1000 --warmup_steps 1_0.0",
    );
    assert_eq!(conversion.job.spec.optimizer.warmup_updates, 10);
}

/// A name that a row's name stands for: of a pattern one that no row has by itself.
fn taken(name: &str, lists: &[&'static str]) -> String {
    let Some(start) = name.strip_suffix('*').filter(|start| !start.ends_with('@')) else {
        return name.replace('*', "some");
    };
    let is_own = |known: &str| {
        let verl = verl::table::rows();
        let rows = [
            openrlhf::table::ROWS,
            verl.as_slice(),
            trl::table::COMMON,
            trl::table::GRPO,
        ]
        .concat();
        let first = rows.iter().find(|row| row.is(known));
        first.is_none_or(|row| !row.names.contains(&name))
    };
    let mut listed = known::names(lists).filter(|known| known.starts_with(start) && !is_own(known));
    let known = listed.next().unwrap_or(start).replace('*', "some");
    if known.ends_with('.') {
        format!("{known}some")
    } else {
        known
    }
}

#[test]
fn every_flag_that_no_field_says_leaves_a_word_also_beside_others_of_its_row() {
    for (framework, rows, known, start) in [
        (
            Framework::Openrlhf,
            openrlhf::table::ROWS.to_vec(),
            known::OPENRLHF,
            "python3 -m openrlhf.cli.train_ppo_ray",
        ),
        (
            Framework::Verl,
            verl::table::rows(),
            known::VERL,
            "python3 -m verl.trainer.main_ppo",
        ),
        (
            Framework::Trl,
            [trl::table::COMMON, trl::table::GRPO].concat(),
            known::TRL,
            "grpo.py",
        ),
    ] {
        for row in rows
            .iter()
            .filter(|row| matches!(row.to, row::To::Nowhere | row::To::Needless))
        {
            let names: Vec<String> = row.names.iter().take(2).map(|name| taken(name, known)).collect();
            let last = if row.off.contains(&"0") { "7" } else { "0" };
            let flag = |name: &String, value: &str| match framework {
                Framework::Verl => format!("{name}={value}"),
                _ => format!("--{name} {value}"),
            };
            let value = |index| if index + 1 == names.len() { last } else { "7" };
            let flags = names.iter().enumerate().map(|(index, name)| flag(name, value(index)));
            let flags: Vec<String> = flags.collect();
            let conversion = converted(framework, &format!("{start} {}", flags.join(" ")));
            for name in &names {
                let said = conversion.notes.iter().any(|note| note.subject == *name);
                assert!(said, "{name} of {flags:?}: {:?}", conversion.notes);
            }
        }
    }
}

#[test]
fn a_script_with_old_names_is_told_of_defaults_that_changed_meanwhile() {
    let said = |flags: &str| {
        let conversion = converted(Framework::Openrlhf, &format!("{flags} --prompt_data /d.jsonl"));
        ["value_clip", "lambd"].map(|flag| conversion.notes.iter().any(|note| note.subject == flag))
    };
    assert_eq!(said("--pretrain a/b"), [true, true]);
    assert_eq!(said("--pretrain a/b --value_clip 0.2"), [false, true]);
    assert_eq!(
        said("--pretrain a/b --advantage_estimator rloo --n_samples_per_prompt 2"),
        [false, false]
    );
    assert_eq!(said("--actor.model_name_or_path a/b"), [false, false]);
}

#[test]
fn a_flag_that_is_switched_off_needs_no_word() {
    let flags = |flag: &str| format!("--pretrain a/b --remote_rm_url http://x/y --prompt_data /d.jsonl {flag}");
    let off = converted(Framework::Openrlhf, &flags("--load_in_4bit false --lora_rank 0"));
    assert!(
        !off.manifest.contains("4bit") && !off.manifest.contains("lora"),
        "{}",
        off.manifest
    );
    let on = converted(Framework::Openrlhf, &flags("--load_in_4bit"));
    assert!(
        on.manifest.contains("load_in_4bit: there is no quantised training"),
        "{}",
        on.manifest
    );
}
