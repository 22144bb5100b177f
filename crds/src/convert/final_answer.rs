//! Reward functions that compare final answers of mathematics, as a rule.

use serde_json::{Value, json};

use super::draft::Draft;

const RULES: &str = "roles.reward.rules";

/// Adds the rule that compares what `extract` finds, else the answer that a response states.
pub fn compare(draft: &mut Draft, weight: f64, extract: Option<&str>, source: &str) {
    let mut rule = json!({"mathMatch": {}});
    if weight != 1.0 {
        rule["weight"] = weight.into();
    }
    if let Some(extract) = extract {
        rule["extract"] = extract.into();
    }
    let mut rules = draft.get(RULES).and_then(Value::as_array).cloned().unwrap_or_default();
    rules.push(rule);
    draft.set(RULES, rules, source);
}

/// Whether a rule looks at more than how long a response is.
pub fn is_compared(draft: &Draft) -> bool {
    let rules = draft.get(RULES).and_then(Value::as_array);
    rules.is_some_and(|rules| rules.iter().any(|rule| rule.get("length").is_none()))
}
