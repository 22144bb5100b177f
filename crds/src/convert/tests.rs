use super::*;
use crate::spec::{AdapterSpec, Projection};
use crate::{parse_manifest, spec_schema};

mod adapters;
mod dynamic;
mod engines;
mod losses;
mod rewards;
mod scripts;
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
    conversion
}

#[test]
fn every_field_of_the_tables_is_one_of_the_manual() {
    let tables = [
        openrlhf::table::ROWS,
        verl::table::ROWS,
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
fn a_schedule_without_its_end_is_not_translated() {
    let trl = "ppo.py --sft_model_path /m --reward_model_path /rm --dataset_name /d.jsonl --lr_scheduler_type cosine_with_min_lr";
    let conversion = converted(Framework::Trl, trl);
    let said = |subject: &str| conversion.notes.iter().any(|note| note.subject == subject);
    assert!(said("lr_scheduler_type"), "{:?}", conversion.notes);
    let conversion = converted(Framework::Trl, &trl.replace("cosine_with_min_lr", "cosine"));
    assert!(
        conversion.manifest.contains("schedule: cosine"),
        "{}",
        conversion.manifest
    );
    let openrlhf = "--pretrain /m --reward_pretrain /rm --prompt_data /d.jsonl --lr_scheduler cosine_with_min_lr";
    let conversion = converted(Framework::Openrlhf, openrlhf);
    assert!(
        conversion.manifest.contains("minLearningRateRatio: 0.1"),
        "{}",
        conversion.manifest
    );
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
        verl::table::ROWS.to_vec(),
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

#[test]
fn a_run_that_generates_one_step_ahead_elsewhere_does_so_here_and_corrects_as_it_did() {
    use crate::spec::Overlap;
    let check = |framework, command: &str, overlap: Overlap, cap: Option<f64>| {
        let spec = converted(framework, command).job.spec;
        let corrects = spec.algorithm.truncated_importance_sampling;
        assert_eq!((spec.overlap, corrects), (overlap, cap), "{command}");
        spec
    };
    let openrlhf = |flags: &str, overlap, cap| {
        let command = format!("--pretrain a/b {flags}");
        check(Framework::Openrlhf, &command, overlap, cap);
    };
    let corrected = "--enable_vllm_is_correction --vllm_is_truncated_threshold 0.5 3";
    openrlhf("", Overlap::None, None);
    openrlhf("--async_train --async_queue_size 1", Overlap::OneStep, Some(0.0));
    openrlhf(
        &format!("--train.async_enable {corrected}"),
        Overlap::OneStep,
        Some(3.0),
    );
    openrlhf(corrected, Overlap::None, Some(3.0));

    let verl = |program: &str, flags: &str, overlap, cap| {
        let gpus = "rollout.nnodes=1 rollout.n_gpus_per_node=4 trainer.n_gpus_per_node=8";
        let split = "actor_rollout_ref.rollout.tensor_model_parallel_size=2";
        let command = format!("python3 -m {program} {gpus} {split} {flags}");
        let roles = check(Framework::Verl, &command, overlap, cap).roles;
        assert_eq!((roles.rollout.replicas, roles.actor.gpus_per_node), (2, 8), "{command}");
    };
    let corrected = "algorithm.rollout_correction.rollout_is=token";
    verl("verl.trainer.main_ppo", "", Overlap::None, None);
    verl("recipe.one_step_off_policy.main_ppo", "", Overlap::OneStep, Some(0.0));
    verl(
        "verl.experimental.one_step_off_policy.main_ppo",
        corrected,
        Overlap::OneStep,
        Some(2.0),
    );
    // There PPO's ratio is to the policy that drew, unless it is told otherwise.
    let recipe = |package: &str| format!("{package}.one_step_off_policy.main_ppo");
    let bypass = |value: &str| format!("algorithm.rollout_correction.bypass_mode={value}");
    verl(&recipe("verl.experimental"), "", Overlap::OneStep, None);
    verl(
        &recipe("verl.experimental"),
        &bypass("False"),
        Overlap::OneStep,
        Some(0.0),
    );
    verl(&recipe("recipe"), &bypass("True"), Overlap::OneStep, None);
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
    assert_eq!(spec.algorithm.truncated_importance_sampling, Some(5.0));
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
    let Conversion { job, manifest, notes } = convert(Framework::Verl, VERL_GRPO, &home).unwrap();
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
        said("batch.microRolloutBatchSize") && said("gpu_memory_utilization") && said("spec.roles.reward"),
        "{notes:?}"
    );
}

#[test]
fn verl_without_a_kl_has_none_and_with_it_in_the_reward_it_is_there() {
    let none = converted(
        Framework::Verl,
        "python -m verl.trainer.main_ppo actor_rollout_ref.model.path=/m",
    );
    assert_eq!(none.job.spec.algorithm.kl.coef, Some(0.0));
    let flags = "actor_rollout_ref.model.path=/m algorithm.use_kl_in_reward=True algorithm.kl_ctrl.type=adaptive \
                 algorithm.kl_ctrl.target_kl=0.2 algorithm.norm_adv_by_std_in_grpo=False algorithm.adv_estimator=grpo \
                 actor_rollout_ref.rollout.n=4";
    let spec = converted(Framework::Verl, flags).job.spec;
    assert_eq!(spec.algorithm.kl.placement, Some(crate::spec::KlPlacement::Reward));
    assert_eq!(spec.algorithm.kl.coef, Some(0.001));
    assert_eq!(spec.algorithm.kl.controller.unwrap().adaptive.unwrap().target, 0.2);
    assert_eq!(spec.algorithm.advantage.estimator, crate::spec::Estimator::DrGrpo);
}

#[test]
fn verl_validates_at_its_temperature_whether_or_not_it_says_to_sample() {
    let temperature = |flags: &str| {
        let flags = format!("data.val_files=/v.parquet trainer.test_freq=5 {flags}");
        let spec = converted(Framework::Verl, &flags).job.spec;
        spec.evaluation.unwrap().temperature
    };
    let warm = "actor_rollout_ref.rollout.val_kwargs.temperature=0.7";
    let sampled = "actor_rollout_ref.rollout.val_kwargs.do_sample=True";
    assert_eq!(temperature(warm), 0.7);
    assert_eq!(temperature(&format!("{warm} {sampled}")), 0.7);
    assert_eq!(temperature(sampled), 0.0);
}

#[test]
fn openrlhfs_four_samples_of_a_held_out_prompt_are_told_of() {
    let said = |flags: &str| {
        let conversion = converted(Framework::Openrlhf, &format!("--pretrain a/b {flags}"));
        let samples = |note: &Note| note.message.contains("eval_n_samples_per_prompt is 4");
        conversion.notes.iter().any(samples)
    };
    assert!(!said(""));
    assert!(said("--eval_dataset /e.jsonl --eval_steps 5"));
    assert!(!said(
        "--eval_dataset /e.jsonl --eval_steps 5 --eval_n_samples_per_prompt 1"
    ));
}

#[test]
fn verls_variables_of_the_chat_template_are_variables_here() {
    let conversion = converted(
        Framework::Verl,
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-8B \
         +data.apply_chat_template_kwargs.enable_thinking=False +data.apply_chat_template_kwargs.budget=512 \
         data.apply_chat_template_kwargs.tone='short and dry' +data.apply_chat_template_kwargs.of.two=1 \
         data.apply_chat_template_kwargs.nothing=null",
    );
    let variables = conversion.job.spec.prompts.chat_template_variables.unwrap();
    assert_eq!(
        Value::Object(variables),
        json!({"enable_thinking": false, "budget": 512, "tone": "short and dry"})
    );
    let said = |note: &Note| note.subject.contains("of.two=1") && note.message.contains("chatTemplateVariables");
    assert!(conversion.notes.iter().any(said), "{:?}", conversion.notes);
}

#[test]
fn openrlhfs_prompts_without_a_template_have_no_special_tokens_which_is_said() {
    let flags = "--pretrain a/b --remote_rm_url http://x/y --prompt_data /d.jsonl";
    let said = |conversion: &Conversion| {
        let about = |note: &&Note| note.subject == "apply_chat_template";
        conversion.notes.iter().find(about).map(|note| note.message.clone())
    };
    let plain = converted(Framework::Openrlhf, flags);
    assert!(!plain.job.spec.prompts.chat_template);
    assert!(said(&plain).unwrap().contains("special tokens"));
    let rendered = converted(Framework::Openrlhf, &format!("{flags} --apply_chat_template"));
    assert!(rendered.job.spec.prompts.chat_template);
    assert_eq!(said(&rendered), None);
}

#[test]
fn trls_sizes_are_of_one_process() {
    let script = "accelerate launch --num_processes 8 --config_file zero3.yaml \\\n examples/scripts/ppo/ppo.py \
                  --dataset_name trl-internal-testing/tldr --sft_model_path org/sft --reward_model_path org/rm \
                  --per_device_train_batch_size 16 --gradient_accumulation_steps 4 --num_mini_batches 2 --total_episodes 10000 \
                  --missing_eos_penalty 1.0 --stop_token eos --bf16 --output_dir /ckpt/ppo --learning_rate 3e-6";
    let Conversion { job, notes, .. } = converted(Framework::Trl, script);
    let batch = &job.spec.batch;
    assert_eq!((batch.rollout_batch_size, batch.n_samples_per_prompt), (512, 1));
    assert_eq!(
        (batch.train_batch_size, batch.micro_train_batch_size, batch.ppo_epochs),
        (Some(512), Some(16), 4)
    );
    let geometry = Geometry::of(&job).unwrap();
    assert_eq!((geometry.actor_ranks, geometry.accumulation_steps), (8, 4));
    assert_eq!((job.spec.steps, job.spec.episodes), (Some(20), None));
    assert_eq!(
        (job.spec.generation.max_new_tokens, job.spec.generation.temperature),
        (53, 0.7)
    );
    assert_eq!(job.spec.algorithm.score.missing_eos_penalty, Some(1.0));
    assert_eq!(
        job.spec.model.critic.as_ref().unwrap().hub.as_ref().unwrap().id,
        "org/rm"
    );
    assert!(
        notes
            .iter()
            .any(|note| note.kind == NoteKind::Missing && note.message.contains("trl-internal-testing/tldr"))
    );
}

#[test]
fn trls_grpo_and_rloo_count_generation_batches_in_samples() {
    let grpo = "trl grpo --model_name_or_path Qwen/Qwen2-0.5B --dataset_name /data/p.jsonl --reward-model-name-or-path org/rm \
                --num_generations 8 --per_device_train_batch_size 4 --gradient_accumulation_steps 4 --steps_per_generation 8 \
                --max_steps 100 --num_iterations 2 --use_vllm --vllm_mode colocate --loss_type dr_grpo --scale_rewards none --beta 0.04";
    let spec = converted(Framework::Trl, grpo).job.spec;
    assert_eq!(
        (spec.batch.rollout_batch_size, spec.batch.train_batch_size),
        (4, Some(16))
    );
    assert_eq!((spec.batch.ppo_epochs, spec.steps), (2, Some(25)));
    assert_eq!(spec.algorithm.advantage.estimator, crate::spec::Estimator::DrGrpo);
    assert_eq!(
        (spec.algorithm.kl.coef, spec.algorithm.truncated_importance_sampling),
        (Some(0.04), Some(2.0))
    );
    let rloo = "torchrun --nproc_per_node=2 rloo.py --model_name_or_path /m --reward_model_name_or_path /rm --dataset_name /d.parquet \
                --num_generations 4 --per_device_train_batch_size 8 --normalize_advantages";
    let spec = converted(Framework::Trl, rloo).job.spec;
    assert_eq!(
        (
            spec.batch.rollout_batch_size,
            spec.batch.n_samples_per_prompt,
            spec.batch.train_batch_size
        ),
        (4, 4, Some(16))
    );
    assert_eq!(
        (spec.roles.actor.gpus_per_node, spec.algorithm.advantage.whiten),
        (2, Some(true))
    );
}

#[test]
fn trls_ppo_accumulates_across_its_mini_batches_and_neither_clips_nor_warms_up_within_a_step() {
    let of = |flags: &str| {
        let command = format!("ppo.py --sft_model_path /m --reward_model_path /rm --dataset_name /d.jsonl {flags}");
        let Conversion { job, notes, .. } = converted(Framework::Trl, &command);
        let geometry = Geometry::of(&job).unwrap();
        let said = notes.iter().any(|note| note.subject == "num_mini_batches");
        let optimizer = job.spec.optimizer;
        assert_eq!(optimizer.max_grad_norm, 0.0, "{flags}");
        (
            geometry.updates_per_epoch,
            geometry.accumulation_steps,
            optimizer.warmup_updates,
            said,
        )
    };
    assert_eq!(
        of("--gradient_accumulation_steps 16 --warmup_steps 5"),
        (1, 16, 20, false)
    );
    assert_eq!(
        of("--gradient_accumulation_steps 16 --num_mini_batches 4"),
        (1, 16, 0, true)
    );
    // Mini-batches smaller than a micro-batch are micro-batches themselves.
    assert_eq!(of("--num_mini_batches 4 --warmup_steps 5"), (4, 1, 80, false));
    assert_eq!(
        of("--gradient_accumulation_steps 2 --num_mini_batches 4"),
        (2, 2, 0, true)
    );
    let rloo = "rloo.py --model_name_or_path /m --reward_model_name_or_path /rm --dataset_name /d.jsonl --warmup_steps 5 \
                --max_grad_norm 0.5";
    let optimizer = converted(Framework::Trl, rloo).job.spec.optimizer;
    assert_eq!((optimizer.warmup_updates, optimizer.max_grad_norm), (5, 0.5));
}

#[test]
fn a_warm_up_counted_in_steps_becomes_one_of_all_their_updates() {
    let warm = |flags: &str| {
        let flags = format!("actor_rollout_ref.model.path=/m actor_rollout_ref.actor.optim.lr_warmup_steps={flags}");
        converted(Framework::Verl, &flags).job.spec.optimizer.warmup_updates
    };
    assert_eq!(
        warm("10 data.train_batch_size=1024 actor_rollout_ref.actor.ppo_mini_batch_size=256"),
        40
    );
    assert_eq!(
        warm("10 actor_rollout_ref.rollout.n=4 actor_rollout_ref.actor.ppo_epochs=2"),
        80
    );
    assert_eq!(warm("-1"), 0);
}

#[test]
fn the_policy_rests_for_as_many_steps_as_it_does_elsewhere() {
    let rests = |framework, flags: &str| converted(framework, flags).job.spec.optimizer.critic_warmup_steps;
    let openrlhf = |steps: &str| {
        rests(
            Framework::Openrlhf,
            &format!("--pretrain a/b --freezing_actor_steps {steps}"),
        )
    };
    assert_eq!([openrlhf("5"), openrlhf("0"), openrlhf("-1")], [6, 1, 0]);
    let verl = |steps: &str| {
        let flags = format!("actor_rollout_ref.model.path=/m trainer.critic_warmup={steps}");
        rests(Framework::Verl, &flags)
    };
    assert_eq!([verl("5"), verl("1"), verl("0")], [4, 0, 0]);
}

#[test]
fn trls_mean_of_micro_batches_is_not_that_of_an_update() {
    let said = |loss: &str| {
        let flags = format!(
            "trl grpo --model_name_or_path /m --dataset_name /d.jsonl --reward_model_name_or_path /rm --loss_type {loss}"
        );
        let conversion = converted(Framework::Trl, &flags);
        assert_eq!(
            conversion.job.spec.algorithm.aggregation,
            Some(crate::spec::Aggregation::TokenMean)
        );
        conversion.notes.iter().any(|note| note.subject == "loss_type")
    };
    assert!(said("bnpo") && !said("dapo"));
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
                 --per_device_train_batch_size 8 --scale_rewards batch";
    let conversion = converted(Framework::Trl, flags);
    assert_eq!(
        conversion.job.spec.algorithm.advantage.estimator,
        crate::spec::Estimator::Grpo
    );
    assert!(conversion.notes.iter().any(|note| note.message.starts_with("is batch")));
}

#[test]
fn trls_ppo_trains_the_supervised_model_whatever_the_order_of_flags() {
    for flags in [
        "--sft_model_path org/sft --model_name_or_path org/base",
        "--model_name_or_path org/base --sft_model_path org/sft",
    ] {
        let flags = format!("ppo.py {flags} --reward_model_path org/rm --dataset_name /d.jsonl --total_episodes 1024");
        let spec = converted(Framework::Trl, &flags).job.spec;
        assert_eq!(spec.model.policy.hub.unwrap().id, "org/sft");
    }
}

#[test]
fn trls_ppo_does_not_end_a_response_by_itself_which_is_said() {
    let said = |flags: &str| {
        let command = format!("ppo.py --sft_model_path /m --reward_model_path /rm --dataset_name /d.jsonl {flags}");
        let notes = converted(Framework::Trl, &command).notes;
        ["past the end of sequence", "the only end of a response"]
            .map(|words| notes.iter().any(|note| note.message.contains(words)))
    };
    assert_eq!(said(""), [true, false]);
    assert_eq!(said("--stop_token eos"), [false, false]);
    assert_eq!(said("--stop_token_id 7"), [false, true]);
}

#[test]
fn a_bound_that_cuts_prompts_elsewhere_says_that_they_are_dropped_here() {
    let said = |framework, flags: &str| {
        let conversion = converted(framework, flags);
        let dropped = |note: &Note| note.message.starts_with("a longer prompt is dropped");
        conversion.notes.iter().any(dropped)
    };
    let trl = "trl grpo --model_name_or_path /m --dataset_name /d.jsonl --reward_model_name_or_path /rm";
    assert!(said(Framework::Trl, &format!("{trl} --max_prompt_length 256")));
    assert!(said(Framework::Openrlhf, "--pretrain a/b --prompt_max_len 256"));
    assert!(!said(
        Framework::Verl,
        "data.max_prompt_length=256 data.truncation=error"
    ));
    assert!(said(
        Framework::Verl,
        "data.max_prompt_length=256 data.truncation='left'"
    ));
}

#[test]
fn the_lower_bound_of_openrlhfs_correction_is_told_of() {
    let of = |flags: &str| {
        let flags = format!("--pretrain a/b --enable_vllm_is_correction {flags}");
        let conversion = converted(Framework::Openrlhf, &flags);
        let lower = |note: &Note| note.message.starts_with("the lower bound, 0.5, is not here");
        let cap = conversion.job.spec.algorithm.truncated_importance_sampling;
        (cap, conversion.notes.iter().any(lower))
    };
    assert_eq!(of(""), (Some(5.0), true));
    assert_eq!(of("--vllm_is_truncated_threshold 0 2"), (Some(2.0), false));
    let one = "--pretrain a/b --enable_vllm_is_correction --vllm_is_truncated_threshold 2";
    let error = convert(Framework::Openrlhf, one, &nothing).unwrap_err().to_string();
    assert!(error.contains("wants 2 numbers, has 1"), "{error}");
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
    assert!(message(Framework::Openrlhf, "--pretrain $MODEL/x").starts_with("$MODEL in `--pretrain /x`"));
    assert!(message(Framework::Openrlhf, "ls -l").contains("no OpenRLHF command"));
    assert!(message(Framework::Trl, "train.py --learning_rate 1").contains("put the script's name"));
    assert!(
        message(Framework::Openrlhf, "--rollout_batch_size 99999999999").contains("--rollout_batch_size 99999999999")
    );
}

#[test]
fn what_is_not_read_need_not_be_known() {
    let script = "W=$(pwd)\npython -m openrlhf.cli.train_ppo_ray --pretrain a/b --remote_rm_url http://x/y \
                  --prompt_data /d.jsonl --save_path $W/out";
    converted(Framework::Openrlhf, script);
    let error = convert(
        Framework::Openrlhf,
        &script.replace("--save_path", "--ckpt_path"),
        &nothing,
    )
    .unwrap_err();
    assert!(error.to_string().starts_with("$W in `--ckpt_path /out`"), "{error}");
}

#[test]
fn all_that_is_not_known_is_named_at_once_and_can_be_given_from_outside() {
    let script = "W=$(pwd)\nOUT=$W/out\npython -m openrlhf.cli.train_ppo_ray --pretrain a/b --remote_rm_url http://x/y \
                  --prompt_data $W/d.jsonl --ckpt_path $OUT --seed $(date)";
    let error = convert(Framework::Openrlhf, script, &nothing).unwrap_err().to_string();
    let lines: Vec<&str> = error.lines().collect();
    assert_eq!(lines.len(), 3, "{error}");
    let command = "$(...) in `--seed` is not known here: run it yourself and write its result";
    for (line, start) in lines
        .iter()
        .zip(["$W in `--prompt_data", "$W in `--ckpt_path", command])
    {
        assert!(line.starts_with(start), "{line}");
    }
    let given = |name: &str| (name == "W").then(|| "/home/me".to_owned());
    let spec = convert(Framework::Openrlhf, &script.replace("$(date)", "1"), &given)
        .unwrap()
        .job
        .spec;
    assert_eq!(spec.checkpoint.path.as_deref(), Some("/home/me/out"));
}

#[test]
fn every_flag_that_no_field_says_leaves_a_word_also_beside_others_of_its_row() {
    for (framework, rows, start) in [
        (
            Framework::Openrlhf,
            openrlhf::table::ROWS.to_vec(),
            "python3 -m openrlhf.cli.train_ppo_ray",
        ),
        (
            Framework::Verl,
            verl::table::ROWS.to_vec(),
            "python3 -m verl.trainer.main_ppo",
        ),
        (
            Framework::Trl,
            [trl::table::COMMON, trl::table::GRPO].concat(),
            "grpo.py",
        ),
    ] {
        for row in rows
            .iter()
            .filter(|row| matches!(row.to, row::To::Nowhere | row::To::Needless))
        {
            let names: Vec<String> = row.names.iter().take(2).map(|name| name.replace('*', "some")).collect();
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
fn verls_overlong_buffer_is_a_length_rule_beside_the_reward_that_is_missing() {
    let buffer = "+reward_model.reward_kwargs.overlong_buffer_cfg";
    let flags = format!(
        "data.max_response_length=8192 reward_model.reward_manager=dapo {buffer}.enable=True {buffer}.len=4096 {buffer}.penalty_factor=0.5"
    );
    let conversion = converted(Framework::Verl, &flags);
    let rules = &conversion.job.spec.roles.reward.rules;
    assert_eq!(rules.len(), 1);
    let length = rules[0].length.as_ref().unwrap();
    assert_eq!((rules[0].weight, length.max, length.slope), (0.5, 4096, 4096));
    assert!(conversion.notes.iter().any(|note| note.subject == "spec.roles.reward"));
    let off = converted(Framework::Verl, &flags.replace("enable=True", "enable=False"));
    assert!(off.job.spec.roles.reward.rules.is_empty());
}

#[test]
fn trls_own_launcher_takes_the_number_of_processes_as_accelerate_does() {
    let batch = |command: &str| {
        converted(
            Framework::Trl,
            &format!("{command} --model_name_or_path a/b --dataset_name /d.jsonl"),
        )
        .job
        .spec
    };
    let own = batch("trl grpo --num_processes 4");
    assert_eq!(own.roles.actor.gpus_per_node, 4);
    assert_eq!(own.batch, batch("accelerate launch --num_processes 4 grpo.py").batch);
    let alone = converted(Framework::Trl, "trl grpo --model_name_or_path a/b");
    assert!(
        alone.notes.iter().any(|note| note.subject == "processes"),
        "{:?}",
        alone.notes
    );
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

fn adapter_of(framework: Framework, flags: &str) -> (AdapterSpec, Conversion) {
    let conversion = converted(framework, flags);
    (conversion.job.spec.model.adapter.clone().unwrap(), conversion)
}

#[test]
fn adapters_have_the_rank_the_scale_and_the_targets_of_each_framework() {
    let openrlhf =
        "--pretrain a/b --remote_rm_url http://x/y --prompt_data /d.jsonl --ref_num_gpus_per_node 8 --lora_rank 8";
    let (adapter, conversion) = adapter_of(Framework::Openrlhf, openrlhf);
    assert_eq!((adapter.rank, adapter.alpha, adapter.targets.len()), (8, 16.0, 7));
    let geometry = Geometry::of(&conversion.job).unwrap();
    assert_eq!(geometry.role(crate::spec::Role::Reference).unwrap().pods, 0);
    let named = format!("{openrlhf} --lora_alpha 64 --lora_dropout 0.1 --target_modules q_proj lm_head v_proj");
    let (adapter, conversion) = adapter_of(Framework::Openrlhf, &named);
    assert_eq!(
        (adapter.alpha, adapter.targets),
        (64.0, vec![Projection::Query, Projection::Value])
    );
    let said = |subject: &str| conversion.notes.iter().any(|note| note.subject.contains(subject));
    assert!(said("target_modules") && said("lora_dropout"), "{:?}", conversion.notes);

    let verl = "actor_rollout_ref.model.path=/m actor_rollout_ref.model.lora_rank=32 algorithm.use_kl_in_reward=True \
                actor_rollout_ref.model.target_modules=all-linear critic.model.lora_rank=32";
    let (adapter, conversion) = adapter_of(Framework::Verl, verl);
    assert_eq!((adapter.rank, adapter.alpha, adapter.targets.len()), (32, 16.0, 7));
    assert!(!conversion.manifest.contains("reference:"), "{}", conversion.manifest);

    let trl = "ppo.py --sft_model_path /m --reward_model_path /rm --dataset_name /d.jsonl --use_peft";
    let (adapter, conversion) = adapter_of(Framework::Trl, trl);
    assert_eq!((adapter.rank, adapter.alpha), (16, 32.0));
    assert_eq!(adapter.targets, [Projection::Query, Projection::Value]);
    assert!(
        conversion.manifest.contains("lora_dropout is 0.05"),
        "{}",
        conversion.manifest
    );
    let without = converted(Framework::Trl, &trl.replace("--use_peft", "--lora_r 8"));
    assert!(without.job.spec.model.adapter.is_none());
}
