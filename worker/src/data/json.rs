//! JSON values in words.

use serde_json::Value;

/// What a value is, short enough for an error.
pub fn describe(value: &Value) -> String {
    let kind = match value {
        Value::Null => return "null".to_owned(),
        Value::Bool(truth) => return truth.to_string(),
        Value::Number(number) => return format!("the number {number}"),
        Value::String(_) => "the string",
        Value::Array(_) => "the list",
        Value::Object(_) => "the object",
    };
    let text = value.to_string();
    let short: String = text.chars().take(60).collect();
    let more = if short.len() < text.len() { ".." } else { "" };
    format!("{kind} {short}{more}")
}
