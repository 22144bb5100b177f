//! What TRL's scripts train where the flags do not say, and how many samples they learn from.

use super::*;

fn says(conversion: &Conversion, subject: &str, words: &str) -> bool {
    let is = |note: &Note| note.subject == subject && note.message.contains(words);
    conversion.notes.iter().any(is)
}

#[test]
fn the_model_that_trls_ppo_trains_by_default_is_named() {
    let of = |flags: &str| converted(Framework::Trl, &format!("ppo.py --dataset_name /d.jsonl {flags}"));
    let pythia = "EleutherAI/pythia-160m, of the family GPT-NeoX";
    let none = of("");
    assert_eq!(none.job.spec.model.policy.path.as_deref(), Some("/models/policy"));
    assert!(says(&none, "spec.model.policy", pythia), "{:?}", none.notes);
    assert!(
        says(&none, "TRL's default", &format!("reward_model_path is {pythia}")),
        "{:?}",
        none.notes
    );
    let tokenizer = of("--model_name_or_path org/base --reward_model_path org/rm");
    assert_eq!(tokenizer.job.spec.model.policy.hub.as_ref().unwrap().id, "org/base");
    assert!(says(&tokenizer, "model_name_or_path", pythia), "{:?}", tokenizer.notes);
    let named = of("--model_name_or_path org/base --sft_model_path /models/sft --reward_model_path org/rm");
    assert_eq!(named.job.spec.model.policy.path.as_deref(), Some("/models/sft"));
    assert!(
        !named.notes.iter().any(|note| note.message.contains("pythia")),
        "{:?}",
        named.notes
    );
}

#[test]
fn samples_that_are_no_whole_groups_are_refused_as_trl_does() {
    let of = |flags: &str| {
        let command = format!("trl grpo --model_name_or_path /m --dataset_name /d.jsonl --num_generations 16 {flags}");
        convert(Framework::Trl, &command, &nothing)
    };
    for flags in ["", "--per_device_train_batch_size 24", "--generation_batch_size 40"] {
        let error = of(flags).unwrap_err().to_string();
        assert!(
            error.starts_with("num_generations: 16 does not divide the"),
            "{flags}: {error}"
        );
    }
    assert!(of("--per_device_train_batch_size 24 --num_processes 2").is_ok());
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
    let of_nodes = batch("deepspeed --num_gpus 2 --num_nodes 2 grpo.py");
    assert_eq!((of_nodes.roles.actor.nodes, of_nodes.roles.actor.gpus_per_node), (2, 2));
    assert_eq!(own.batch, of_nodes.batch);
    for unsaid in ["trl grpo", "deepspeed grpo.py"] {
        let alone = converted(Framework::Trl, &format!("{unsaid} --model_name_or_path a/b"));
        assert!(
            alone.notes.iter().any(|note| note.subject == "processes"),
            "{:?}",
            alone.notes
        );
    }
}

#[test]
fn where_trls_vllm_runs_and_when_it_saves_is_told_where_it_is_not_taken() {
    let of = |flags: &str| {
        let command = format!("trl grpo --num_processes 8 --model_name_or_path a/b --dataset_name /d.jsonl {flags}");
        let Conversion { job, notes, .. } = converted(Framework::Trl, &command);
        let told = |words: &str| notes.iter().any(|note| note.message.contains(words));
        let told = [
            "vllm_mode is server up to 0.29",
            "epoch is not available",
            "is a share of all steps",
        ]
        .map(told);
        (job.spec.roles.rollout.replicas, told)
    };
    assert_eq!(of("--use_vllm true"), (1, [true, false, false]));
    assert_eq!(of("--use_vllm true --vllm_mode colocate"), (8, [false; 3]));
    assert_eq!(of("--save_strategy epoch").1, [false, true, false]);
    assert_eq!(of("--save_steps 0.1").1, [false, false, true]);
    assert_eq!(of("--save_strategy no --save_steps 0.1").1, [false; 3]);
}

#[test]
fn the_processes_that_a_file_of_accelerates_tells_are_asked_for() {
    let said = |command: &str, file: &str| {
        let conversion = converted(Framework::Trl, command);
        let actor = &conversion.job.spec.roles.actor;
        let size = (actor.nodes, actor.gpus_per_node);
        (size, says(&conversion, "processes", &format!("{file}, which may say")))
    };
    let flags = "--model_name_or_path a/b --dataset_name /d.jsonl";
    let file = "examples/accelerate_configs/deepspeed_zero3.yaml";
    let launched = |more: &str| format!("accelerate launch --config_file {file} {more} train_grpo.py {flags}");
    assert_eq!(said(&launched(""), file), ((1, 1), true));
    assert_eq!(
        said(&launched("--num_processes 32 --num_machines 4"), file),
        ((4, 8), false)
    );
    let own = format!("trl grpo {flags} --accelerate_config zero2");
    assert_eq!(said(&own, "zero2"), ((1, 1), true));
    let given = format!("{own} --num_processes 4 --num_machines 2 --main_process_port 29501");
    assert_eq!(said(&given, "zero2"), ((2, 2), false));
}
