//! Fields of a row: the prompt (text or chat messages) and the label.

use std::borrow::Cow;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::Value;

use super::label::Label;

/// Most characters of a test set's name: it stands in the name of every figure of the set.
const LONGEST_SET: usize = 64;

/// What a prompt field may hold.
pub(super) enum PromptValue<'a> {
    Text(&'a str),
    Messages(&'a [Value]),
}

/// The prompt of a row.
pub(super) fn prompt<'a>(row: &'a Value, field: &str) -> Result<PromptValue<'a>> {
    let want = "want a string or a list of chat messages [{\"role\": .., \"content\": ..}]";
    match find(row, field)? {
        Value::String(text) => Ok(PromptValue::Text(text)),
        Value::Array(messages) => {
            check_messages(messages).with_context(|| format!("field {field:?}"))?;
            Ok(PromptValue::Messages(messages))
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
    let step = |value: &'a Value, name: &str| match value {
        Value::Array(items) => items.get(name.parse::<usize>().ok()?),
        other => other.get(name),
    };
    field.split('.').try_fold(row, step).with_context(|| {
        let there: Vec<_> = keys.keys().map(|key| format!("{key:?}")).collect();
        format!("field {field:?} is missing; the row has {}", there.join(", "))
    })
}

fn check_messages(messages: &[Value]) -> Result<()> {
    for (index, message) in messages.iter().enumerate() {
        let Some(role) = message.get("role").and_then(Value::as_str) else {
            bail!(
                "message {index} is {}, want an object with a string \"role\" and a \"content\"",
                describe(message)
            );
        };
        match message.get("content") {
            Some(Value::String(_) | Value::Array(_) | Value::Null) => {}
            Some(other) => bail!(
                "message {index} ({role}): content is {}, want a string",
                describe(other)
            ),
            // A message of tool calls alone has no content.
            None if message.get("tool_calls").is_some() => {}
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
