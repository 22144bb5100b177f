//! verl's number formats: actor, reference, engines and reward model have one each, and bfloat16 is the default of every one.

use super::kl::has_kl;
use crate::convert::draft::Draft;

/// Takes those away that nothing would have, and writes verl's default where ours is the actor's format and another one.
pub(super) fn formats(draft: &mut Draft) {
    let has_reference = has_kl(draft) && !draft.has("model.adapter");
    let has_reward_model = draft.has("roles.reward.model.source");
    let in_float32 = draft.get("model.dtype").is_some_and(|dtype| dtype == "float32");
    for (field, is_there) in [
        ("roles.rollout.dtype", true),
        ("roles.reference.dtype", has_reference),
        ("roles.reward.model.dtype", has_reward_model),
    ] {
        if !is_there {
            draft.unset(field);
        } else if in_float32 && !draft.has(field) {
            draft.set(field, "bfloat16", "verl's default");
        }
    }
}
