//! DAPO's soft punishment of long responses (Yu et al. 2025, section 3.4), which OpenRLHF and verl both offer, as a rule of lengths.

use serde_json::json;

use super::draft::{Draft, WrongValue};

/// Punishes the last `buffer` tokens before `longest`, linearly up to `factor` (1 where it is not given). `buffer` and `factor` name flags
/// of the framework; without a buffer there is no rule. A length rule is 1 at `longest` alone and falls to 0 over the buffer before it: with
/// minus the factor as its weight it scores what the frameworks do, 0 for a response that is short enough. A rule that rewarded short ones
/// would let each of them pass an evaluation, however wrong.
///
/// # Errors
/// A value that is no number, or a buffer longer than the longest response, which the frameworks refuse too.
pub fn punish(draft: &mut Draft, buffer: &str, factor: &str, longest: u64) -> Result<(), WrongValue> {
    if let Some(tokens) = draft.count(buffer)?.filter(|tokens| *tokens > 0) {
        if tokens > longest {
            return Err(WrongValue {
                flag: draft.source(buffer),
                message: format!("is more than the {longest} tokens of the longest response"),
            });
        }
        let weight = -draft.number(factor)?.unwrap_or(1.0);
        let rule = json!([{"weight": weight, "length": {"min": longest, "max": longest, "slope": tokens}}]);
        draft.set("roles.reward.rules", rule, &draft.source(buffer));
    }
    Ok(())
}
