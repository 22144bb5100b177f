//! Optimizers and courses of the learning rate that are not here.

use super::*;

/// What is said of a flag, other than that it needs nothing.
fn left(framework: Framework, command: &str, subject: &str) -> Option<String> {
    let notes = converted(framework, command).notes;
    let is_about = |note: &&Note| note.kind == NoteKind::NotTranslated && note.subject == subject;
    notes.iter().find(is_about).map(|note| note.message.clone())
}

#[test]
fn an_optimizer_of_trl_that_is_no_adamw_is_told_of() {
    let of = |optimizer: &str| {
        let flag = format!("--optim {optimizer}");
        let command =
            format!("trl grpo --model_name_or_path /m --dataset_name /d.jsonl --reward_model_name_or_path /rm {flag}");
        left(Framework::Trl, &command, &flag)
    };
    for other in [
        "adafactor",
        "sgd",
        "lion_8bit",
        "galore_adamw",
        "schedule_free_adamw",
        "muon",
    ] {
        let said = of(other).unwrap();
        assert_eq!(said, format!("{other} is not available; the job uses adamw_torch"));
    }
    for ours in [
        "adamw_torch",
        "adamw_torch_fused",
        "adamw_hf",
        "paged_adamw_8bit",
        "ADAMW_8BIT",
    ] {
        assert_eq!(of(ours), None, "{ours}");
    }
}

#[test]
fn muon_of_one_of_openrlhfs_models_is_told_of_whatever_the_other_has() {
    let command = "--actor.model_name_or_path a/b --actor.optim muon --critic.optim adam";
    let said = left(Framework::Openrlhf, command, "--actor.optim muon").unwrap();
    assert_eq!(said, "muon is not available; the job uses adam");
    assert_eq!(left(Framework::Openrlhf, command, "--critic.optim adam"), None);
}

#[test]
fn a_course_of_verls_learning_rate_that_is_not_here_is_told_of() {
    let of = |setting: &str, value: &str| {
        let name = format!("actor_rollout_ref.actor.optim.{setting}");
        let command = format!("actor_rollout_ref.model.path=/m {name}={value}");
        left(Framework::Verl, &command, &name)
    };
    for (setting, other, same) in [
        ("lr_decay_steps", "100", "null"),
        ("num_cycles", "1.5", "0.5"),
        ("lr_decay_ratio", "0.8", "1.0"),
        ("lr_warmup_init", "1e-8", "0.0"),
        ("weight_decay_incr_style", "cosine", "constant"),
        ("override_optimizer_config.amsgrad", "True", "null"),
    ] {
        assert!(of(setting, other).is_some(), "{setting}");
        assert_eq!(of(setting, same), None, "{setting}");
    }
    let conversion = converted(
        Framework::Verl,
        "actor_rollout_ref.model.path=/m actor_rollout_ref.actor.optim.eps=1e-6",
    );
    assert_eq!(conversion.job.spec.optimizer.epsilon, 1e-6);
}
