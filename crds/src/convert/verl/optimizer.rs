//! What verl's optimizer has and the job's has not, where it acts: with a course of the learning rate, or with a warm-up.

use crate::convert::draft::Draft;

/// Says what the course of the learning rate would be otherwise.
pub(super) fn tell(draft: &mut Draft) {
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
