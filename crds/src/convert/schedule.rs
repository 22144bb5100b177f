//! The learning rate's schedule, which OpenRLHF and TRL both name as transformers does.

use serde_json::json;

use super::draft::{Draft, WrongValue};

/// Sets it from the setting `name`. `cosine` and `linear` end at 0, `cosine_with_min_lr` at the ratio `least`; without one it is not
/// translated.
pub fn set(draft: &mut Draft, name: &str, least: Option<f64>) {
    let word = draft.text(name).unwrap_or_default();
    let source = draft.source(name);
    let (schedule, ratio) = match (word.as_str(), least) {
        ("constant" | "constant_with_warmup", _) => ("constant", None),
        ("linear", _) => ("linear", Some(0.0)),
        ("cosine", _) => ("cosine", Some(0.0)),
        ("cosine_with_min_lr", Some(least)) => ("cosine", Some(least)),
        (other, _) => {
            let message = format!("{other} is not available: optimizer.schedule is constant, linear or cosine");
            draft.leave(name, &message);
            return;
        }
    };
    draft.set("optimizer.schedule", schedule, &source);
    if let Some(ratio) = ratio {
        draft.set("optimizer.minLearningRateRatio", json!(ratio), &source);
    }
}

/// Whether the schedule of the setting `name` warms up: transformers' `constant` does not, whatever is said of a warm-up (`get_scheduler` in
/// optimization.py), and `constant_with_warmup` does.
pub fn warms_up(draft: &Draft, name: &str) -> bool {
    draft.text(name).is_none_or(|word| word != "constant")
}

/// Takes the warm-up's share of all updates from the setting `name`; 0 is none.
///
/// # Errors
/// A value that is no number.
pub fn warm_up(draft: &mut Draft, name: &str) -> Result<(), WrongValue> {
    if let Some(share) = draft.number(name)?.filter(|share| *share != 0.0) {
        draft.set("optimizer.warmupRatio", share, &draft.source(name));
    }
    Ok(())
}
