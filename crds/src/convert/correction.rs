//! What samples weigh that another policy drew, as the manifest says it.

use serde_json::json;

use super::draft::Draft;
use crate::spec::RolloutCorrection;

/// The field that says an upper bound alone.
pub const SHORT: &str = "algorithm.truncatedImportanceSampling";

/// The block that says all.
pub const LONG: &str = "algorithm.rolloutCorrection";

/// Takes the place of what was set before: the short field where it says all.
pub fn set(draft: &mut Draft, correction: RolloutCorrection, source: &str) {
    draft.unset(SHORT);
    draft.unset(LONG);
    if correction == RolloutCorrection::truncated(correction.high) {
        draft.set(SHORT, json!(correction.high), source);
        return;
    }
    for (name, value) in [
        ("level", json!(correction.level)),
        ("outside", json!(correction.outside)),
        ("low", json!(correction.low)),
        ("high", json!(correction.high)),
    ] {
        draft.set(&format!("{LONG}.{name}"), value, source);
    }
}
