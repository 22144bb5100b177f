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
