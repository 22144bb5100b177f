//! DAPO's soft punishment of long responses (Yu et al. 2025, section 3.4), which OpenRLHF and verl both offer, as a rule of lengths.

use serde_json::json;

use super::draft::{Draft, WrongValue};

/// Punishes the last `buffer` tokens before `longest`, linearly up to `factor` (1 where it is not given). `buffer` and `factor` name flags
/// of the framework; without a buffer there is no rule.
///
/// # Errors
/// A value that is no number, or a buffer longer than the longest response, which the frameworks refuse too.
pub fn punish(draft: &mut Draft, buffer: &str, factor: &str, longest: u64) -> Result<(), WrongValue> {
    if let Some(tokens) = draft.count(buffer)?.filter(|tokens| *tokens > 0) {
        let Some(free) = longest.checked_sub(tokens) else {
            return Err(WrongValue {
                flag: draft.source(buffer),
                message: format!("is more than the {longest} tokens of the longest response"),
            });
        };
        let weight = draft.number(factor)?.unwrap_or(1.0);
        let rule = json!([{"weight": weight, "length": {"max": free, "slope": tokens}}]);
        draft.set("roles.reward.rules", rule, &draft.source(buffer));
    }
    Ok(())
}
