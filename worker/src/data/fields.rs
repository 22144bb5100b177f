//! Fields of a row: the prompt (text or chat messages) and the label.

use std::borrow::Cow;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Map, Value};

use super::json::describe;
use super::label::Label;
use super::message;

/// Most characters of a test set's name: it stands in the name of every figure of the set.
const LONGEST_SET: usize = 64;

/// What a prompt field may hold.
pub(super) enum PromptValue<'a> {
    Text(&'a str),
    Messages(Vec<Value>),
}

/// The prompt of a row.
pub(super) fn prompt<'a>(row: &'a Value, field: &str) -> Result<PromptValue<'a>> {
    let want = "want a string or a list of chat messages [{\"role\": .., \"content\": ..}]";
    match find(row, field)? {
        Value::String(text) => Ok(PromptValue::Text(text)),
        Value::Array(messages) => {
            let plain = check_messages(messages).and_then(|()| all_plain(messages));
            Ok(PromptValue::Messages(
                plain.with_context(|| format!("field {field:?}"))?,
            ))
        }
        other => bail!("field {field:?} is {}, {want}", describe(other)),
    }
}

/// The label of a row; null is none.
pub(super) fn label(row: &Value, field: &str) -> Result<Option<Label>> {
    Label::of(find(row, field)?.clone()).map_err(|wrong| anyhow!("field {field:?} {wrong}"))
}

/// The test set of a row, by name.
pub(super) fn set<'a>(row: &'a Value, field: &str) -> Result<Cow<'a, str>> {
    let name: Cow<'a, str> = match find(row, field)? {
        Value::String(name) => name.as_str().into(),
        Value::Number(number) => number.to_string().into(),
        other => bail!(
            "field {field:?} is {}, want the name of a test set: a string or a number",
            describe(other)
        ),
    };
    let length = name.chars().count();
    ensure!(
        (1..=LONGEST_SET).contains(&length),
        "field {field:?} names a test set by {length} characters, want 1 to {LONGEST_SET}"
    );
    Ok(name)
}

/// The value of `field`: a key of the row, else a path of keys and list positions joined by dots.
fn find<'a>(row: &'a Value, field: &str) -> Result<&'a Value> {
    let Value::Object(keys) = row else {
        bail!("the row is {}, want an object with the field {field:?}", describe(row));
    };
    if let Some(value) = keys.get(field) {
        return Ok(value);
    }
    let mut found = row;
    for (depth, name) in field.split('.').enumerate() {
        let below = match found {
            Value::Array(items) => name.parse::<usize>().ok().and_then(|at| items.get(at)),
            other => other.get(name),
        };
        found = below.with_context(|| missing(field, depth, found, keys))?;
    }
    Ok(found)
}

/// What is said of a field whose path of keys ends after `depth` of them, at `found`.
fn missing(field: &str, depth: usize, found: &Value, row: &Map<String, Value>) -> String {
    let names = |keys: &Map<String, Value>| {
        let names: Vec<String> = keys.keys().map(|key| format!("{key:?}")).collect();
        names.join(", ")
    };
    if depth == 0 {
        return format!("field {field:?} is missing; the row has {}", names(row));
    }
    let begun: Vec<&str> = field.split('.').take(depth).collect();
    let there = match found {
        Value::Object(keys) if !keys.is_empty() => format!("has {}", names(keys)),
        other => format!("is {}", describe(other)),
    };
    format!("field {field:?} is missing; {:?} {there}", begun.join("."))
}

/// Messages as templates read them.
fn all_plain(messages: &[Value]) -> Result<Vec<Value>> {
    let made = messages.iter().enumerate().map(|(index, message)| {
        let wrong = |what| anyhow!("message {index} {what}");
        message::plain(message.clone(), |text| serde_json::from_str(text)).map_err(wrong)
    });
    made.collect()
}

fn check_messages(messages: &[Value]) -> Result<()> {
    for (index, message) in messages.iter().enumerate() {
        let Some(role) = message.get("role").and_then(Value::as_str) else {
            bail!(
                "message {index} is {}, want an object with a string \"role\" and a \"content\"",
                describe(message)
            );
        };
        let calls = message.get("tool_calls").and_then(Value::as_array);
        match message.get("content") {
            Some(Value::String(_) | Value::Array(_)) => {}
            // A message of tool calls alone has no content.
            None | Some(Value::Null) if calls.is_some_and(|calls| !calls.is_empty()) => {}
            Some(other) => bail!(
                "message {index} ({role}): content is {}, want a string",
                describe(other)
            ),
            None => bail!("message {index} ({role}) has no content"),
        }
        if index + 1 == messages.len() && role == "assistant" {
            bail!("the last message is the assistant's; a prompt ends with what the model is to answer: leave it out");
        }
    }
    if messages.is_empty() {
        bail!("the list of messages is empty");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_that_leads_nowhere_is_told_where_it_ends_and_what_is_there() {
        let row = json!({"prompt": "x", "reward_model": {"style": "rule", "tests": ["a"], "none": null}, "info": {}});
        for (field, words) in [
            ("nosuch.answer", "the row has \"prompt\", \"reward_model\", \"info\""),
            (
                "reward_model.ground_truth",
                "\"reward_model\" has \"style\", \"tests\", \"none\"",
            ),
            ("reward_model.none.a", "\"reward_model.none\" is null"),
            ("reward_model.tests.1", "\"reward_model.tests\" is the list [\"a\"]"),
            ("prompt.text", "\"prompt\" is the string \"x\""),
            ("info.answer", "\"info\" is the object {}"),
        ] {
            let said = find(&row, field).unwrap_err().to_string();
            assert_eq!(said, format!("field {field:?} is missing; {words}"));
        }
        assert_eq!(find(&row, "reward_model.tests.0").unwrap(), "a");
    }
}
