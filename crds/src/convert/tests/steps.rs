//! Schedules, and what is counted in steps there and in updates here.

use super::*;
use crate::spec::Schedule;

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
    let told = |flags: &str| {
        let notes = converted(Framework::Openrlhf, &format!("--pretrain a/b {flags}")).notes;
        let said = |note: &&Note| note.subject == "freezing_actor_steps";
        notes.iter().find(said).map(|note| note.message.clone())
    };
    let older = told("--freezing_actor_steps 5").unwrap();
    assert!(
        older.starts_with("5 freezes 6 steps since OpenRLHF 0.9.1, which is taken, and 5 up to 0.9.0"),
        "{older}"
    );
    assert_eq!(
        [told("--critic.freezing_steps 5"), told("--freezing_actor_steps -1")],
        [None, None]
    );
    let verl = |steps: &str| {
        let flags = format!("actor_rollout_ref.model.path=/m trainer.critic_warmup={steps}");
        rests(Framework::Verl, &flags)
    };
    assert_eq!([verl("5"), verl("1"), verl("0")], [4, 0, 0]);
}

#[test]
fn a_warm_up_that_is_a_share_of_all_updates_stays_one() {
    let of = |framework, flags: &str| {
        let optimizer = converted(framework, flags).job.spec.optimizer;
        (optimizer.warmup_updates, optimizer.warmup_ratio)
    };
    let openrlhf = |flags: &str| of(Framework::Openrlhf, &format!("--pretrain a/b {flags}"));
    assert_eq!(openrlhf(""), (0, Some(0.03)));
    assert_eq!(openrlhf("--lr_warmup_ratio 0.1"), (0, Some(0.1)));
    assert_eq!(openrlhf("--actor.lr_warmup_ratio 0"), (0, None));
    // transformers' `constant` has none, whatever is said of one.
    assert_eq!(openrlhf("--actor.lr_scheduler constant"), (0, None));
    let slow = "--actor.lr_scheduler constant_with_warmup";
    assert_eq!(openrlhf(slow), (0, Some(0.03)));
    let optim = "actor_rollout_ref.actor.optim";
    let verl = |flags: &str| of(Framework::Verl, &format!("actor_rollout_ref.model.path=/m {flags}"));
    assert_eq!(verl(""), (0, None));
    assert_eq!(verl(&format!("{optim}.lr_warmup_steps_ratio=0.")), (0, None));
    let share = format!("{optim}.lr_warmup_steps_ratio=0.05");
    assert_eq!(verl(&share), (0, Some(0.05)));
    assert_eq!(verl(&format!("{share} {optim}.lr_warmup_steps=-1")), (0, Some(0.05)));
    assert_eq!(verl(&format!("{share} {optim}.lr_warmup_steps=0")), (0, Some(0.05)));
    assert_eq!(verl(&format!("{share} {optim}.lr_warmup_steps=10")), (40, None));
    let data = "--dataset_name /d.jsonl";
    let ppo = |flags: &str| {
        of(
            Framework::Trl,
            &format!("ppo.py --sft_model_path /m --reward_model_path /rm {data} {flags}"),
        )
    };
    let grpo = |flags: &str| {
        of(
            Framework::Trl,
            &format!("trl grpo --model_name_or_path /m {data} {flags}"),
        )
    };
    assert_eq!(
        [ppo("--warmup_ratio 0.1"), grpo("--warmup_ratio 0.1")],
        [(0, Some(0.1)); 2]
    );
    for constant in ["--warmup_ratio 0.1", "--warmup_steps 7"] {
        assert_eq!(grpo(&format!("{constant} --lr_scheduler_type constant")), (0, None));
    }
    assert_eq!(
        [ppo("--warmup_steps 0.1"), grpo("--warmup_steps 0.1")],
        [(0, Some(0.1)); 2]
    );
    assert_eq!([ppo(""), grpo("--warmup_ratio 0.0")], [(0, None); 2]);
    assert_eq!(grpo("--warmup_ratio 0.1 --warmup_steps 7"), (7, None));
}

#[test]
fn verls_ways_to_begin_that_are_not_here_are_not_passed_over() {
    let said = |flag: &str| {
        let notes = converted(Framework::Verl, &format!("actor_rollout_ref.model.path=/m {flag}")).notes;
        let (name, _) = flag.split_once('=').unwrap();
        let about = notes.into_iter().find(|note| note.subject == name);
        about.map(|note| {
            assert_eq!(note.kind, NoteKind::NotTranslated, "{flag}");
            note.message
        })
    };
    assert!(said("trainer.resume_mode=disable").unwrap().contains("--fresh"));
    assert!(said("trainer.val_before_train=False").unwrap().contains("always made"));
    assert_eq!(
        [said("trainer.resume_mode=auto"), said("trainer.val_before_train=True")],
        [None, None]
    );
}

#[test]
fn the_end_of_trls_cosine_is_read_from_its_kwargs() {
    let of = |kwargs: &str| {
        let trl = "trl grpo --model_name_or_path /m --dataset_name /d.jsonl --learning_rate 2e-6 --lr_scheduler_type cosine_with_min_lr";
        let conversion = converted(Framework::Trl, &format!("{trl} --lr_scheduler_kwargs '{kwargs}'"));
        let optimizer = &conversion.job.spec.optimizer;
        let is_said = conversion
            .notes
            .iter()
            .any(|note| note.subject.starts_with("lr_scheduler"));
        (optimizer.schedule, optimizer.min_learning_rate_ratio, is_said)
    };
    assert_eq!(of(r#"{"min_lr_rate": 0.25}"#), (Schedule::Cosine, 0.25, false));
    assert_eq!(of(r#"{"min_lr": 1e-6}"#), (Schedule::Cosine, 0.5, false));
    assert_eq!(of(r#"{"num_cycles": 2}"#), (Schedule::Constant, 0.1, true));
}
