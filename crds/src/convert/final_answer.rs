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

/// The least score of a right answer that passes an evaluation, beside a rule that punishes length: a right answer of the longest response
/// scores less than its weight, and a wrong one at most 0.
const LEAST: f64 = 0.01;

/// Lets right answers pass an evaluation however long they are, once the rules are there.
pub fn pass_score(draft: &mut Draft) {
    let rules = draft.get(RULES).and_then(Value::as_array).cloned().unwrap_or_default();
    let sum = |kind: &str| -> f64 {
        let of_kind = rules.iter().filter(|rule| rule.get(kind).is_some());
        of_kind.map(|rule| rule["weight"].as_f64().unwrap_or(1.0)).sum()
    };
    let (right, punishment) = (sum("mathMatch"), sum("length"));
    // 1 - 0.9 is 0.09999999999999998.
    let least = ((right + punishment) * 1e6).round() / 1e6;
    if right > 0.0 && least < 1.0 {
        let source = "what the longest right answer scores, and no wrong one";
        draft.set("evaluation.passScore", least.max(LEAST), source);
    }
}

/// Whether a rule looks at more than how long a response is.
pub fn is_compared(draft: &Draft) -> bool {
    let rules = draft.get(RULES).and_then(Value::as_array);
    rules.is_some_and(|rules| rules.iter().any(|rule| rule.get("length").is_none()))
}
