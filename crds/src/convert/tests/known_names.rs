//! A misspelt name is refused, also where a row takes many.

use super::*;

fn refused(framework: Framework, flags: &str) -> String {
    convert(framework, flags, &nothing).unwrap_err().to_string()
}

#[test]
fn a_misspelt_setting_of_verl_is_refused_where_a_row_takes_all_others() {
    let actor = "actor_rollout_ref.actor";
    for (misspelt, meant) in [
        (format!("{actor}.entropy_coef"), format!("{actor}.entropy_coeff")),
        (format!("{actor}.clip_ratio_hihg"), format!("{actor}.clip_ratio_high")),
        (format!("{actor}.ppo_epoch"), format!("{actor}.ppo_epochs")),
        (format!("{actor}.use_kl_los"), format!("{actor}.use_kl_loss")),
        (
            format!("{actor}.ppo_mini_batchsize"),
            format!("{actor}.ppo_mini_batch_size"),
        ),
        (format!("{actor}.optim.learning_rate"), format!("{actor}.optim.lr")),
        (
            "actor_rollout_ref.rollout.temprature".to_owned(),
            "actor_rollout_ref.rollout.temperature".to_owned(),
        ),
        (
            "actor_rollout_ref.rollout.top_pp".to_owned(),
            "actor_rollout_ref.rollout.top_p".to_owned(),
        ),
        (
            "actor_rollout_ref.model.lora_rnk".to_owned(),
            "actor_rollout_ref.model.lora_rank".to_owned(),
        ),
        ("trainer.total_epoch".to_owned(), "trainer.total_epochs".to_owned()),
        ("trainer.savefreq".to_owned(), "trainer.save_freq".to_owned()),
        ("trainer.n_gpus".to_owned(), "trainer.n_gpus_per_node".to_owned()),
        (
            "critic.clip_range_value".to_owned(),
            "critic.cliprange_value".to_owned(),
        ),
        ("reward_model.pth".to_owned(), "reward_model.model.path".to_owned()),
        // Below a name that takes others, and added with a plus.
        (
            "actor_rollout_ref.rollout.val_kwargs.temprature".to_owned(),
            "actor_rollout_ref.rollout.val_kwargs.temperature".to_owned(),
        ),
        (format!("+{actor}.entropy_coef"), format!("{actor}.entropy_coeff")),
    ] {
        let error = refused(
            Framework::Verl,
            &format!("actor_rollout_ref.model.path=/m {misspelt}=1"),
        );
        let name = misspelt.trim_start_matches('+');
        assert_eq!(error, format!("{name} is no setting of verl; the nearest is {meant}"));
    }
}

#[test]
fn a_misspelt_flag_of_trl_is_refused_where_a_row_takes_all_others() {
    let trl = "trl grpo --model_name_or_path /m --dataset_name /d.jsonl";
    for (misspelt, said) in [
        ("logging_stepz", "the nearest is logging_steps"),
        ("fsdpp", "the nearest is fsdp"),
        ("hub_x", "docs/migration.md lists those that are known"),
    ] {
        let error = refused(Framework::Trl, &format!("{trl} --{misspelt} 1"));
        assert_eq!(error, format!("{misspelt} is no setting of TRL; {said}"));
    }
    let error = refused(Framework::Openrlhf, "--pretrain a/b --logger.wandb.projekt x");
    assert!(error.ends_with("the nearest is logger.wandb.project"), "{error}");
}

#[test]
fn what_a_framework_has_is_taken_by_every_name_that_it_ever_had() {
    for name in known::names(known::VERL).filter(|name| !name.ends_with('*')) {
        let rows = verl::table::rows();
        if rows.iter().any(|row| row.is(name)) {
            let argument = draft::Argument {
                name: name.into(),
                shown: format!("{name}=1"),
                values: vec!["1".into()],
                unknown: None,
            };
            assert!(known::row(&argument, &verl::dialect(&[])).is_ok(), "{name}");
        }
    }
    let flags = "actor_rollout_ref.model.path=/m ray_kwargs.ray_init.runtime_env.py_executable=x hydra.run.dir=/x actor_rollout_ref.profiler.ranks=[0] \
                 +actor_rollout_ref.rollout.engine_kwargs.vllm.disable_log=True +trainer.of_my_own=1 \
                 actor_rollout_ref.actor.fsdp_config.wrap_policy.min_num_params=0 reward_model.strategy=fsdp \
                 actor_rollout_ref.actor.megatron.override_transformer_config.x=1 critic.model.fsdp_config.grad_offload=True";
    converted(Framework::Verl, flags);
}

#[test]
fn a_flag_of_another_trainer_of_trl_is_not_answered_with_itself() {
    for (program, flag) in [
        ("trl grpo", "kl_coef"),
        ("trl rloo", "scale_rewards"),
        ("ppo.py", "num_generations"),
    ] {
        let words = format!("{program} --model_name_or_path /m --dataset_name /d.jsonl --{flag} 1");
        let error = refused(Framework::Trl, &words);
        let said = format!("{flag} is a setting of TRL's that this command does not have");
        assert!(error.contains(&said), "{error}");
    }
}
