//! What verl's critic has of its own (verl/trainer/config/critic): an optimizer with the actor's defaults but for the learning rate, and the
//! actor's batches and loss where it is not given others.

use crate::convert::critic::Pair;
use crate::convert::draft::{Draft, WrongValue};

const PAIRS: &[Pair] = &[
    Pair::of("actor_rollout_ref.actor.grad_clip", "critic.grad_clip", "1.0"),
    DECAY,
    Pair::of("actor_rollout_ref.actor.optim.betas", "critic.optim.betas", "0.9 0.999"),
    Pair::of("actor_rollout_ref.actor.optim.eps", "critic.optim.eps", "1e-8"),
    SCHEDULE,
    LEAST,
    STEPS,
    SHARE,
    Pair::following("actor_rollout_ref.actor.ppo_epochs", "critic.ppo_epochs", "1"),
    Pair::following(
        "actor_rollout_ref.actor.ppo_mini_batch_size",
        "critic.ppo_mini_batch_size",
        "256",
    ),
    Pair::following(
        "actor_rollout_ref.actor.loss_agg_mode",
        "critic.loss_agg_mode",
        "token-mean",
    ),
];

/// The weight decay of both.
pub(super) const DECAY: Pair = Pair::of(
    "actor_rollout_ref.actor.optim.weight_decay",
    "critic.optim.weight_decay",
    "0.01",
);
const SCHEDULE: Pair = Pair::of(
    "actor_rollout_ref.actor.optim.lr_scheduler_type",
    "critic.optim.lr_scheduler_type",
    "constant",
);
const LEAST: Pair = Pair::of(
    "actor_rollout_ref.actor.optim.min_lr_ratio",
    "critic.optim.min_lr_ratio",
    "0.0",
);
const STEPS: Pair = Pair::of(
    "actor_rollout_ref.actor.optim.lr_warmup_steps",
    "critic.optim.lr_warmup_steps",
    "-1",
);
const SHARE: Pair = Pair::of(
    "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio",
    "critic.optim.lr_warmup_steps_ratio",
    "0.0",
);

/// Says what the critic would have otherwise.
pub(super) fn tell(draft: &mut Draft) -> Result<(), WrongValue> {
    let schedules = [SCHEDULE.of_actor(draft), SCHEDULE.of_critic(draft)].concat();
    let falls = schedules.iter().any(|schedule| schedule != "constant");
    let has_steps = |name: &str| {
        draft
            .count_or_off(name)
            .map(|steps| steps.is_some_and(|steps| steps > 0))
    };
    // Where there are steps the share does not count.
    let of_critic = if STEPS.refers(draft) { STEPS.actor } else { STEPS.critic };
    let by_share = !(has_steps(STEPS.actor)? && has_steps(of_critic)?);
    for pair in PAIRS {
        let acts = match pair.actor {
            name if name == LEAST.actor => falls,
            name if name == SHARE.actor => by_share,
            _ => true,
        };
        if acts {
            pair.tell(draft);
        }
    }
    Ok(())
}
