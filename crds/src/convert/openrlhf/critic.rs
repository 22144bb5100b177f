//! What OpenRLHF's critic has of its own: since 0.11 every option of its optimizer (`critic_cfg` in trainer/ray/ppo_critic.py), before it shared
//! all but the learning rate with the actor.

use crate::convert::critic::Pair;
use crate::convert::draft::Draft;

/// With the defaults of train_ppo_ray.py.
const PAIRS: &[Pair] = &[
    Pair::of("actor.adam.betas", "critic.adam.betas", "0.9 0.95"),
    Pair::of("actor.adam.eps", "critic.adam.eps", "1e-8"),
    Pair::of("actor.adam.weight_decay", "critic.adam.weight_decay", "0.0"),
    Pair::of("actor.max_norm", "critic.max_norm", "1.0"),
    SCHEDULE,
    LEAST,
    WARM_UP,
];

const SCHEDULE: Pair = Pair::of("actor.lr_scheduler", "critic.lr_scheduler", "cosine_with_min_lr");
const LEAST: Pair = Pair::of("actor.min_lr_ratio", "critic.min_lr_ratio", "0.1");
const WARM_UP: Pair = Pair::of("actor.lr_warmup_ratio", "critic.lr_warmup_ratio", "0.03");

/// Says what the critic would have otherwise.
pub(super) fn tell(draft: &mut Draft) {
    let schedules = [SCHEDULE.of_actor(draft), SCHEDULE.of_critic(draft)].concat();
    let ends = schedules.iter().any(|schedule| schedule == "cosine_with_min_lr");
    let warms_up = schedules.iter().any(|schedule| schedule != "constant");
    for pair in PAIRS {
        let acts = match pair.actor {
            name if name == LEAST.actor => ends,
            name if name == WARM_UP.actor => warms_up,
            _ => true,
        };
        // Names without a dot are of versions in which it was both models'.
        let is_of_both = draft.given_as(pair.actor).is_some_and(|name| !name.contains('.'));
        if acts && !is_of_both {
            pair.tell(draft);
        }
    }
}
