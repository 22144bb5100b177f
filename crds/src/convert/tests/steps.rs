//! Schedules, and what is counted in steps there and in updates here.

use super::*;

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
