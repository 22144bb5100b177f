//! Losses that are not here, whose bounds a script gives too.

use super::draft::Draft;

const BOUNDS: [&str; 3] = [
    "algorithm.clip.policyLow",
    "algorithm.clip.policyHigh",
    "algorithm.clip.dual",
];

/// Takes the bounds of the policy's ratio out where the setting `name` chooses another loss: what is right for it is wrong for
/// PPO's.
pub fn leave_bounds(draft: &mut Draft, name: &str) {
    let Some(loss) = draft.other_word(name) else {
        return;
    };
    if BOUNDS.iter().any(|bound| draft.has(bound)) {
        for bound in BOUNDS {
            draft.unset(bound);
        }
        let why = format!(
            "what the flags give is for {loss}; without it a token's ratio is clipped at 1 - 0.2 and 1 + 0.2: give policyLow and policyHigh"
        );
        draft.leave("algorithm.clip", &why);
    }
}
