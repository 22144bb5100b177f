//! Sizes that are no sizes.

use super::*;

#[test]
fn a_negative_size_is_refused_with_its_flag() {
    let openrlhf = "--pretrain a/b";
    let verl = "actor_rollout_ref.model.path=a/b";
    let trl = "trl grpo --model_name_or_path a/b --dataset_name /d.jsonl --reward_model_name_or_path /rm";
    for (framework, start, flag) in [
        (Framework::Openrlhf, openrlhf, "--rollout_batch_size -1"),
        (Framework::Openrlhf, openrlhf, "--n_samples_per_prompt -2"),
        (Framework::Openrlhf, openrlhf, "--max_new_tokens -1"),
        (Framework::Verl, verl, "data.train_batch_size=-1"),
        (Framework::Verl, verl, "actor_rollout_ref.actor.ppo_mini_batch_size=-1"),
        (Framework::Verl, verl, "trainer.nnodes=-1"),
        (Framework::Trl, trl, "--num_generations -1"),
        (Framework::Trl, trl, "--per_device_train_batch_size -1"),
    ] {
        let error = convert(framework, &format!("{start} {flag}"), &nothing)
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with(&format!("{flag}: wants a whole number that is not below 0, has \"-")),
            "{flag}: {error}"
        );
    }
}

#[test]
fn what_minus_one_switches_off_stays_off() {
    let spec = |framework, script: &str| converted(framework, script).job.spec;
    let evaluated = "--pretrain a/b --eval_dataset /e.jsonl --eval_steps -1 --save_steps -1 --freezing_actor_steps -1";
    let openrlhf = spec(Framework::Openrlhf, evaluated);
    assert_eq!(
        (openrlhf.checkpoint.every_steps, openrlhf.optimizer.critic_warmup_steps),
        (0, 0)
    );
    let verl = spec(
        Framework::Verl,
        "actor_rollout_ref.model.path=a/b actor_rollout_ref.rollout.top_k=-1 trainer.save_freq=-1 trainer.test_freq=-1 \
         data.val_files=/e.parquet data.val_max_samples=-1 actor_rollout_ref.actor.optim.lr_warmup_steps=-1",
    );
    assert_eq!((verl.generation.top_k, verl.checkpoint.every_steps), (0, 0));
    assert!(verl.evaluation.is_none());
    let trl = spec(
        Framework::Trl,
        "trl grpo --model_name_or_path a/b --top_k -1 --max_steps -1 --save_total_limit -1",
    );
    assert_eq!((trl.generation.top_k, trl.steps), (0, None));
}

#[test]
fn generation_batches_that_are_parts_of_an_update_of_trls_are_one_step() {
    let of = |flags: &str| {
        let trl = "accelerate launch --num_processes 4 grpo.py --model_name_or_path a/b --dataset_name /d.jsonl --num_generations 8 \
                   --per_device_train_batch_size 8 --gradient_accumulation_steps 4";
        let spec = converted(Framework::Trl, &format!("{trl} {flags}")).job.spec;
        (spec.batch.rollout_batch_size, spec.batch.train_batch_size, spec.steps)
    };
    assert_eq!(of("--steps_per_generation 1 --max_steps 10"), (16, Some(128), Some(10)));
    assert_eq!(of("--generation_batch_size 64"), (16, Some(128), None));
    assert_eq!(of("--steps_per_generation 8 --max_steps 10"), (32, Some(128), Some(5)));
}
