//! What verl's optimizer has and the job's has not, where it acts: with a course of the learning rate, or with a warm-up.

use super::critic::DECAY;
use crate::convert::draft::Draft;

/// Says what the course of the learning rate would be otherwise, and the weight decay.
pub(super) fn tell(draft: &mut Draft) {
    decay(draft);
    let is = |word: &str| draft.get("optimizer.schedule").is_some_and(|schedule| schedule == word);
    let is_cosine = is("cosine");
    let falls = is_cosine || is("linear");
    let warms_up = draft.has("optimizer.warmupUpdates") || draft.has("optimizer.warmupRatio");
    for (setting, acts) in [
        ("actor_rollout_ref.actor.optim.lr_decay_steps", falls),
        ("actor_rollout_ref.actor.optim.lr_decay_ratio", falls),
        // Only a cosine has any.
        ("actor_rollout_ref.actor.optim.num_cycles", is_cosine),
        ("actor_rollout_ref.actor.optim.lr_warmup_init", warms_up),
    ] {
        if acts {
            draft.leave_given(setting);
        }
    }
}

/// FSDP takes torch's optimizer of the name as it is written (`build_optimizer` in verl/workers/config/optimizer.py). Megatron's is `adam`.
fn decay(draft: &mut Draft) {
    for (optimizer, decay) in [
        ("actor_rollout_ref.actor.optim.optimizer", DECAY.of_actor(draft)),
        ("critic.optim.optimizer", DECAY.of_critic(draft)),
    ] {
        let is_zero = |decay: &String| decay.parse::<f64>().is_ok_and(|decay| decay == 0.0);
        if draft.text(optimizer).as_deref() == Some("Adam") && !decay.iter().all(is_zero) {
            let source = draft.source(optimizer);
            let why = "is torch's Adam, which adds the weight decay to the gradient (L2); the job has AdamW, which is another optimizer \
                       unless optimizer.weightDecay is 0";
            draft.leave(&source, why);
        }
    }
}
