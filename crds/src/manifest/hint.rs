//! What to write instead, where the mistake is a common one.

use serde_json::Value as Schema;

/// For a field that is missing.
pub(super) fn missing(field: &str) -> &'static str {
    match field {
        "spec.roles" | "spec.roles.reward" => "; give spec.roles.reward one of rules, model, remote",
        _ => "",
    }
}

/// For a text in place of a block that names where a model or data lies.
pub(super) fn place(text: &str, schema: &Schema) -> String {
    let has = |name: &str| schema.get("properties").and_then(|fields| fields.get(name)).is_some();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./~".contains(c);
    if !has("path") || !has("pvc") || text.is_empty() || text.len() > 80 || !text.chars().all(is_plain) {
        return String::new();
    }
    let is_of_the_hub = has("hub") && text.matches('/').count() == 1 && !text.starts_with(['.', '/', '~']);
    match is_of_the_hub && !text.ends_with('/') {
        true => format!(", such as {{hub: {{id: {text}}}}} or {{path: {text}}}"),
        false => format!(", such as {{path: {text}}}"),
    }
}

/// For a word that is none of a field's.
pub(super) fn word(word: &str, known: &[&str]) -> &'static str {
    match word.to_lowercase().as_str() {
        "ppo" if known.contains(&"gae") => " (PPO with a critic is gae)",
        _ => "",
    }
}
