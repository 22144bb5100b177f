//! What tokens weigh that vLLM drew with other probabilities than the policy's, as grpo_trainer.py of 0.24 to 1.16 has it.

use super::newer;
use crate::convert::correction;
use crate::convert::draft::{Draft, WrongValue};
use crate::spec::{CorrectionLevel, Outside, RolloutCorrection};

const MODE: &str = "vllm_importance_sampling_mode";
const GREATEST: &str = "vllm_importance_sampling_clip_max";
const LEAST: &str = "vllm_importance_sampling_clip_min";

/// The upper bound where there is none: the greatest that can be given.
const NONE: f64 = 1000.0;

/// The scheme that was chosen, with its bounds.
pub(super) fn set(draft: &mut Draft) -> Result<(), WrongValue> {
    if !(draft.truth("use_vllm")? && draft.truth("vllm_importance_sampling_correction")?) {
        return Ok(());
    }
    // The modes are of 0.26, the names of the two bounds of later versions.
    let is_newer = draft.is_given(MODE) || draft.has_name(|name| [GREATEST, LEAST].contains(&name));
    let default = if is_newer { "sequence_mask" } else { "token_truncate" };
    let mode = draft.text(MODE).unwrap_or_else(|| default.into());
    let (level, outside) = match mode.as_str() {
        "token_truncate" => (CorrectionLevel::Token, Outside::Truncate),
        "token_mask" => (CorrectionLevel::Token, Outside::Mask),
        "sequence_truncate" => (CorrectionLevel::Sequence, Outside::Truncate),
        "sequence_mask" => (CorrectionLevel::Sequence, Outside::Mask),
        _ => {
            return Err(WrongValue {
                flag: draft.source(MODE),
                message: format!(
                    "{mode} is none of these: token_truncate, token_mask, sequence_truncate, sequence_mask"
                ),
            });
        }
    };
    let high = match (draft.is_given(GREATEST), is_newer) {
        (true, _) => draft.number(GREATEST)?.unwrap_or(NONE),
        (false, true) => 3.0,
        (false, false) => 2.0,
    };
    let correction = RolloutCorrection {
        level,
        outside,
        low: draft.number(LEAST)?.unwrap_or(0.0),
        high,
    };
    let source = if draft.is_given(MODE) { MODE } else { GREATEST };
    let source = draft.source(source);
    correction::set(draft, correction, &source);
    if !is_newer {
        newer::correction(draft);
    }
    Ok(())
}
