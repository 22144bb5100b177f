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
        let command = format!("lr_scheduler_type=cosine lr_warmup_steps=5 {setting}={value}");
        of_verls_actor(&command, setting)
    };
    for (setting, other, same) in [
        ("lr_decay_steps", "100", "null"),
        ("num_cycles", "1.5", "0.5"),
        ("lr_decay_ratio", "0.8", "1.0"),
        ("lr_warmup_init", "1e-8", "0.0"),
        ("weight_decay_incr_style", "cosine", "constant"),
        ("override_optimizer_config.amsgrad", "True", "null"),
        ("override_optimizer_config", "{amsgrad:true}", "{}"),
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

/// What is said of a setting of the optimizer of verl's actor, of those that are given.
fn of_verls_actor(settings: &str, setting: &str) -> Option<String> {
    let actor = "actor_rollout_ref.actor.optim.";
    let settings: Vec<String> = settings.split(' ').map(|one| format!("{actor}{one}")).collect();
    let command = format!("actor_rollout_ref.model.path=/m {}", settings.join(" "));
    left(Framework::Verl, &command, &format!("{actor}{setting}"))
}

#[test]
fn how_verls_learning_rate_falls_is_nothing_to_tell_of_where_it_stays() {
    for setting in ["lr_decay_steps=100", "lr_decay_ratio=0.8", "num_cycles=1.5"] {
        let (name, _) = setting.split_once('=').unwrap();
        assert_eq!(of_verls_actor(setting, name), None, "{setting}");
        let constant = format!("lr_scheduler_type=constant {setting}");
        assert_eq!(of_verls_actor(&constant, name), None, "{setting}");
        // A line has no waves.
        let linear = of_verls_actor(&format!("lr_decay_style=linear {setting}"), name);
        assert_eq!(linear.is_some(), name != "num_cycles", "{setting}");
    }
}

#[test]
fn where_verls_warm_up_begins_is_told_of_with_one_alone() {
    for setting in ["lr_warmup_init=1e-8", "lr_start=1e-8"] {
        let (name, _) = setting.split_once('=').unwrap();
        for (warm_up, is_one) in [
            ("lr=1e-6", false),
            ("lr_warmup_steps=0", false),
            ("lr_warmup_steps_ratio=0.0", false),
            ("lr_warmup_steps=5", true),
            ("lr_warmup_steps_ratio=0.1", true),
        ] {
            let said = of_verls_actor(&format!("{warm_up} {setting}"), name);
            assert_eq!(said.is_some(), is_one, "{warm_up} {setting}");
        }
    }
}

#[test]
fn where_the_state_of_verls_optimizer_lies_is_nothing_to_tell_of() {
    for optimizer in ["actor_rollout_ref.actor.optim", "critic.optim"] {
        for setting in [
            "optimizer_cpu_offload=True",
            "optimizer_offload_fraction=1",
            "overlap_cpu_optimizer_d2h_h2d=True",
            "use_torch_optimizer_for_cpu_offload=True",
            "use_precision_aware_optimizer=True",
        ] {
            let given = format!("{optimizer}.override_optimizer_config.{setting}");
            let (name, _) = given.split_once('=').unwrap();
            let command = format!("actor_rollout_ref.model.path=/m +{given}");
            assert_eq!(left(Framework::Verl, &command, name), None, "{given}");
        }
        let name = format!("{optimizer}.override_optimizer_config");
        let command = format!("actor_rollout_ref.model.path=/m {name}={{}}");
        assert_eq!(left(Framework::Verl, &command, &name), None, "{name}");
    }
}

#[test]
fn megatrons_adam_is_adamw() {
    for name in ["actor_rollout_ref.actor.optim.optimizer", "critic.optim.optimizer"] {
        let of = |word: &str| {
            let flag = format!("{name}={word}");
            left(
                Framework::Verl,
                &format!("actor_rollout_ref.model.path=/m {flag}"),
                &flag,
            )
        };
        assert_eq!(of("adam"), None, "{name}");
        assert_eq!(of("AdamW"), None, "{name}");
        assert_eq!(of("sgd").unwrap(), "sgd is not available; the job uses adamw");
    }
}

#[test]
fn fsdps_adam_is_another_optimizer_where_weights_decay() {
    let (actor, critic) = ("actor_rollout_ref.actor.optim", "critic.optim");
    for optimizer in [actor, critic] {
        let of = |word: &str, others: &str| {
            let flag = format!("{optimizer}.optimizer={word}");
            let command = format!("actor_rollout_ref.model.path=/m {flag} {others}");
            left(Framework::Verl, &command, &flag)
        };
        let decay = |value: &str| format!("{optimizer}.weight_decay={value}");
        let said = of("Adam", "").unwrap();
        assert!(said.starts_with("is torch's Adam") && said.contains("(L2)"), "{said}");
        assert!(of("Adam", &decay("0.1")).is_some() && of("Adam", &decay("null")).is_some());
        assert!(of("Adam", &decay("0")).is_none() && of("Adam", &decay("0.0")).is_none());
        for other in ["adam", "AdamW", "adamw"] {
            assert_eq!(of(other, &decay("0.1")), None, "{other}");
        }
    }
    let referring = format!("{critic}.optimizer=Adam {critic}.weight_decay='${{{actor}.weight_decay}}'");
    let of_critic = |flags: &str| {
        let command = format!("actor_rollout_ref.model.path=/m {referring} {flags}");
        left(Framework::Verl, &command, "critic.optim.optimizer=Adam")
    };
    assert!(of_critic("").is_some());
    assert_eq!(of_critic(&format!("{actor}.weight_decay=0")), None);
    // Without a critic nothing is said of its optimizer.
    assert_eq!(
        of_critic("algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=4"),
        None
    );
}

#[test]
fn the_optimizer_of_a_critic_that_is_not_there_is_nothing_to_tell_of() {
    for (flag, subject) in [
        ("critic.optim.optimizer=sgd", "critic.optim.optimizer=sgd"),
        ("critic.optim.num_cycles=1.5", "critic.optim.num_cycles"),
    ] {
        let of = |estimator: &str| {
            let command = format!(
                "actor_rollout_ref.model.path=/m actor_rollout_ref.rollout.n=4 algorithm.adv_estimator={estimator} {flag}"
            );
            left(Framework::Verl, &command, subject)
        };
        assert!(of("gae").is_some(), "{flag}");
        assert!(of("grpo").is_none() && of("rloo").is_none(), "{flag}");
    }
    let of = |estimator: &str| {
        let command = format!(
            "--actor.model_name_or_path a/b --rollout.n_samples_per_prompt 4 --algo.advantage.estimator {estimator} \
             --critic.optim muon"
        );
        left(Framework::Openrlhf, &command, "--critic.optim muon")
    };
    assert!(of("gae").is_some() && of("rloo").is_none());
}
