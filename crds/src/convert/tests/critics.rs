//! What the critic has of its own elsewhere and shares with the actor here.

use super::*;

/// What is said of the setting of that name.
fn said(framework: Framework, flags: &str, name: &str) -> Option<String> {
    let notes = converted(framework, flags).notes;
    let about = notes.into_iter().find(|note| note.subject == name);
    about.map(|note| {
        assert_eq!(note.kind, NoteKind::NotTranslated, "{name}");
        note.message
    })
}

/// Whether anything is said of the critic's optimizer, batches or loss.
fn is_silent(framework: Framework, flags: &str) -> bool {
    let notes = converted(framework, flags).notes;
    !notes
        .iter()
        .any(|note| note.message.contains(" for both, and the actor's is taken"))
}

const OPENRLHF: &str = "--actor.model_name_or_path a/b --reward.model_name_or_path c/d --data.prompt_dataset /d.jsonl";
const VERL: &str = "actor_rollout_ref.model.path=/m critic.model.path=/c data.train_files=/d.parquet";

#[test]
fn a_critic_that_openrlhf_gives_its_own_optimizer_is_told_of_where_it_differs() {
    for (name, value, other) in [
        ("adam.betas", "0.9 0.95", "0.9 0.999"),
        ("adam.eps", "1e-8", "1e-6"),
        ("adam.weight_decay", "0.0", "0.1"),
        ("max_norm", "1.0", "0.5"),
        ("lr_scheduler", "cosine_with_min_lr", "constant"),
        ("lr_warmup_ratio", "0.03", "0.1"),
        ("min_lr_ratio", "0.1", "0.2"),
    ] {
        let critic = format!("critic.{name}");
        // Either of the two is given, and the other one's default is another.
        let own = said(
            Framework::Openrlhf,
            &format!("{OPENRLHF} --critic.{name} {other}"),
            &critic,
        )
        .unwrap();
        assert!(
            own.starts_with(&format!("is {other}, and the actor's is {value}: here optimizer.")),
            "{own}"
        );
        let actors = said(
            Framework::Openrlhf,
            &format!("{OPENRLHF} --actor.{name} {other}"),
            &critic,
        )
        .unwrap();
        assert!(
            actors.starts_with(&format!("is {value} by default, and the actor's is {other}: ")),
            "{actors}"
        );
        let both = format!("{OPENRLHF} --actor.{name} {other} --critic.{name} {other}");
        assert!(is_silent(Framework::Openrlhf, &both), "{name}");
    }
    assert!(is_silent(Framework::Openrlhf, OPENRLHF));
    assert!(is_silent(
        Framework::Openrlhf,
        &format!("{OPENRLHF} --critic.adam.eps 0.00000001")
    ));
}

#[test]
fn one_name_of_older_versions_of_openrlhf_was_both_models() {
    let older = "--pretrain a/b --reward_pretrain c/d --prompt_data /d.jsonl --l2 0.1 --max_norm 0.5 --adam_betas 0.9 0.999 \
                 --lr_scheduler constant --lr_warmup_ratio 0.1";
    assert!(is_silent(Framework::Openrlhf, older));
}

#[test]
fn what_a_schedule_does_not_have_is_not_compared() {
    let constant = "--actor.lr_scheduler constant --critic.lr_scheduler constant";
    let flags = format!("{OPENRLHF} {constant} --actor.min_lr_ratio 0.5 --actor.lr_warmup_ratio 0.5");
    assert!(is_silent(Framework::Openrlhf, &flags));
    let ends_at = "actor_rollout_ref.actor.optim.min_lr_ratio=0.5";
    assert!(is_silent(Framework::Verl, &format!("{VERL} {ends_at}")));
    let steps = "actor_rollout_ref.actor.optim.lr_warmup_steps=5 critic.optim.lr_warmup_steps=5";
    let share = "critic.optim.lr_warmup_steps_ratio=0.5";
    assert!(is_silent(Framework::Verl, &format!("{VERL} {steps} {share}")));
}

#[test]
fn a_critic_that_verl_gives_its_own_optimizer_is_told_of_where_it_differs() {
    for (name, value, other) in [
        ("weight_decay", "0.01", "0.1"),
        ("betas", "0.9 0.999", "[0.9,0.95]"),
        ("eps", "1e-8", "1e-6"),
        ("lr_scheduler_type", "constant", "cosine"),
        ("lr_warmup_steps", "-1", "10"),
        ("lr_warmup_steps_ratio", "0.0", "0.1"),
    ] {
        let (actor, critic) = (
            format!("actor_rollout_ref.actor.optim.{name}={other}"),
            format!("critic.optim.{name}={other}"),
        );
        let name = format!("critic.optim.{name}");
        let own = said(Framework::Verl, &format!("{VERL} {critic}"), &name).unwrap();
        assert!(
            own.starts_with(&format!("is {other}, and the actor's is {value}: here optimizer.")),
            "{own}"
        );
        let actors = said(Framework::Verl, &format!("{VERL} {actor}"), &name).unwrap();
        assert!(
            actors.starts_with(&format!("is {value} by default, and the actor's is {other}: ")),
            "{actors}"
        );
        assert!(
            is_silent(Framework::Verl, &format!("{VERL} {actor} {critic}")),
            "{name}"
        );
    }
    let clipped = said(
        Framework::Verl,
        &format!("{VERL} actor_rollout_ref.actor.grad_clip=0.5"),
        "critic.grad_clip",
    );
    assert!(clipped.unwrap().contains("optimizer.maxGradNorm"));
    // By the name that it was given.
    let older = said(
        Framework::Verl,
        &format!("{VERL} critic.optim.warmup_style=cosine"),
        "critic.optim.warmup_style",
    );
    assert!(older.unwrap().contains("optimizer.schedule"));
    let unsaid =
        "critic.grad_clip=1 critic.optim.weight_decay=0.010 critic.optim.lr_warmup_steps=0 critic.optim.betas=null";
    assert!(is_silent(Framework::Verl, VERL) && is_silent(Framework::Verl, &format!("{VERL} {unsaid}")));
}

#[test]
fn verls_critic_has_the_actors_batches_unless_it_is_given_its_own() {
    let actors = "actor_rollout_ref.actor.ppo_epochs=2 actor_rollout_ref.actor.ppo_mini_batch_size=128 \
                  actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean data.train_batch_size=128";
    assert!(is_silent(Framework::Verl, &format!("{VERL} {actors}")));
    for own in [
        "critic.ppo_epochs=1",
        "critic.ppo_mini_batch_size=64",
        "critic.loss_agg_mode=token-mean",
    ] {
        let (name, _) = own.split_once('=').unwrap();
        assert!(
            said(Framework::Verl, &format!("{VERL} {actors} {own}"), name).is_some(),
            "{own}"
        );
    }
}

#[test]
fn a_reference_to_the_actors_setting_is_the_actors_value() {
    let actor = "actor_rollout_ref.actor";
    let actors = format!(
        "{actor}.ppo_mini_batch_size=128 {actor}.ppo_epochs=2 {actor}.optim.lr_warmup_steps=5 {actor}.optim.warmup_style=cosine \
         data.train_batch_size=128"
    );
    let referring = format!(
        "critic.ppo_mini_batch_size='${{{actor}.ppo_mini_batch_size}}' critic.ppo_epochs='${{oc.select:{actor}.ppo_epochs,1}}' \
         critic.optim.lr_warmup_steps='${{{actor}.optim.lr_warmup_steps}}' \
         critic.optim.lr_scheduler_type='${{{actor}.optim.warmup_style}}'"
    );
    assert!(is_silent(Framework::Verl, &format!("{VERL} {actors} {referring}")));
    let another = format!("critic.ppo_epochs='${{{actor}.ppo_mini_batch_size}}'");
    let told = said(
        Framework::Verl,
        &format!("{VERL} {actors} {another}"),
        "critic.ppo_epochs",
    );
    assert!(told.is_some());
}

#[test]
fn without_a_critic_nothing_is_said_of_it() {
    let grpo = format!("{VERL} algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=4");
    let flags = format!("{grpo} actor_rollout_ref.actor.optim.lr_scheduler_type=cosine critic.optim.weight_decay=0.5");
    assert!(is_silent(Framework::Verl, &flags));
    let rloo = format!("{OPENRLHF} --algo.advantage.estimator rloo --rollout.n_samples_per_prompt 4");
    assert!(is_silent(Framework::Openrlhf, &format!("{rloo} --actor.max_norm 0.5")));
}
