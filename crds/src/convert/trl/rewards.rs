//! TRL's reward functions, of which those that compare final answers are rules here (trl/scripts/grpo.py).

use crate::convert::draft::{Draft, WrongValue};
use crate::convert::final_answer;
use crate::convert::row;

/// What each of TRL's own functions reads of a response.
const COMPARING: [(&str, Option<&str>); 3] = [
    ("accuracy_reward", None),
    // open-r1's.
    ("accuracy", None),
    ("reasoning_accuracy_reward", Some("(?s).*</think>(.*)")),
];

/// Sets rules for the functions that are known, with their weights, and says what to do about the others. A reward model comes first among
/// the weights.
///
/// # Errors
/// A weight that is no number.
pub fn functions(draft: &mut Draft) -> Result<(), WrongValue> {
    let (weights, flag) = draft.values("reward_weights").unwrap_or_default();
    let weight = |index: usize| match weights.get(index) {
        Some(weight) => row::float(weight).map_err(|message| WrongValue {
            flag: flag.clone(),
            message,
        }),
        None => Ok(1.0),
    };
    let has_model = draft.has("roles.reward.model");
    if has_model && !weights.is_empty() {
        draft.set("roles.reward.model.weight", weight(0)?, &flag);
    }
    let (functions, source) = draft.values("reward_funcs").unwrap_or_default();
    for (index, function) in functions.iter().enumerate() {
        if let Some((_, extract)) = COMPARING.iter().find(|(name, _)| name == function) {
            let weight = weight(index + usize::from(has_model))?;
            final_answer::compare(draft, weight, *extract, &source);
            draft.set("prompts.labelField", "solution", "the column that TRL's function reads");
        } else {
            let why = format!(
                "{function} is Python: serve it over HTTP and give the address in roles.reward.remote.urls (docs/model-and-reward.md)"
            );
            draft.leave("reward_funcs", &why);
        }
    }
    Ok(())
}
