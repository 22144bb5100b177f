//! How many samples of a held-out prompt are drawn, and what test set it is of.

use super::*;

/// Samples of a prompt, and whether it is said that greedy ones are all equal.
fn samples(framework: Framework, script: &str) -> (Option<u32>, bool) {
    let conversion = converted(framework, script);
    let greedy = |note: &Note| note.message.contains("greedy samples of a prompt are all equal");
    let evaluation = conversion.job.spec.evaluation;
    (
        evaluation.map(|evaluation| evaluation.n_samples_per_prompt),
        conversion.notes.iter().any(greedy),
    )
}

#[test]
fn verls_samples_of_a_held_out_prompt_are_taken_where_they_can_differ() {
    let of = |flags: &str| {
        let held_out = "data.val_files=/aime.parquet trainer.test_freq=5";
        samples(Framework::Verl, &format!("{held_out} {flags}"))
    };
    let thirty_two = "actor_rollout_ref.rollout.val_kwargs.n=32";
    let warm = "actor_rollout_ref.rollout.val_kwargs.temperature=1.0";
    assert_eq!(of(warm), (Some(1), false));
    assert_eq!(of(&format!("{thirty_two} {warm}")), (Some(32), false));
    assert_eq!(of(thirty_two), (Some(1), true));
    assert_eq!(samples(Framework::Verl, &format!("{thirty_two} {warm}")), (None, false));
}

#[test]
fn false_switches_verls_validation_and_checkpoints_off_as_it_does_there() {
    let held_out = "actor_rollout_ref.model.path=/m data.val_files=/aime.parquet";
    for off in ["False", "false", "-1", "0"] {
        let flags = format!("{held_out} trainer.test_freq={off} trainer.save_freq={off}");
        let conversion = converted(Framework::Verl, &flags);
        let spec = &conversion.job.spec;
        assert_eq!((&spec.evaluation, spec.checkpoint.every_steps), (&None, 0), "{off}");
        let told = |note: &Note| note.message.starts_with("test_freq is off");
        assert!(conversion.notes.iter().any(told), "{off}: {:?}", conversion.notes);
    }
    let other = convert(
        Framework::Verl,
        &format!("{held_out} trainer.test_freq=often"),
        &nothing,
    );
    let error = other.unwrap_err().to_string();
    assert!(error.contains("wants a whole number, has \"often\""), "{error}");
}

#[test]
fn openrlhf_draws_four_samples_of_a_held_out_prompt_unless_another_number_is_given() {
    let of = |flags: &str| samples(Framework::Openrlhf, &format!("--pretrain a/b {flags}"));
    let held_out = "--eval_dataset /e.jsonl --eval_steps 5";
    assert_eq!(of(""), (None, false));
    assert_eq!(of(held_out), (Some(4), false));
    assert_eq!(
        of(&format!("{held_out} --eval_n_samples_per_prompt 1")),
        (Some(1), false)
    );
    assert_eq!(
        of(&format!(
            "{held_out} --eval_n_samples_per_prompt 16 --eval_temperature 1"
        )),
        (Some(16), false)
    );
    assert_eq!(of(&format!("{held_out} --eval_temperature 0")), (Some(1), true));
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

/// The field that names a row's test set, as the printed manifest has it.
fn set_field(framework: Framework, flags: &str) -> Option<String> {
    let Conversion { job, manifest, .. } = converted(framework, flags);
    let field = job.spec.evaluation.and_then(|evaluation| evaluation.set_field);
    assert_eq!(manifest.contains("setField"), field.is_some(), "{manifest}");
    field
}

#[test]
fn verls_held_out_figures_are_told_by_data_source_where_its_rewards_need_it_in_every_row() {
    let of = |flags: &str| {
        let held_out = "actor_rollout_ref.model.path=/m data.val_files=/v.parquet trainer.test_freq=5";
        set_field(Framework::Verl, &format!("{held_out} {flags}"))
    };
    assert_eq!(of("").as_deref(), Some("data_source"));
    assert_eq!(of("data.reward_fn_key=data_source").as_deref(), Some("data_source"));
    assert_eq!(of("data.reward_fn_key=ability"), None);
    let model = "reward.reward_model.enable=True reward.reward_model.model_path=/rm";
    assert_eq!(of(model), None);
}

#[test]
fn openrlhfs_rows_need_not_name_a_test_set() {
    let flags = "--pretrain a/b --eval_dataset /e.jsonl --eval_steps 5";
    assert_eq!(set_field(Framework::Openrlhf, flags), None);
}
