//! Messages of a conversation as templates of text models want them, made as vLLM makes them (`vllm/renderers/chat_utils.py`).

use std::cell::Cell;

use serde_json::{Map, Value, json};

use crate::serving::error::ApiError;
use crate::serving::values::{self, MOST_VALUES};

/// Kinds of parts that are text, each with the field that holds it.
const TEXTS: &[(&str, &str)] = &[
    ("text", "text"),
    ("input_text", "text"),
    ("output_text", "text"),
    ("refusal", "refusal"),
    ("thinking", "thinking"),
];

/// What an assistant thought, under the names that clients and templates have for it; the first one counts.
const THOUGHTS: [&str; 2] = ["reasoning", "reasoning_content"];

/// As [`plain`], of a whole conversation.
///
/// # Errors
/// 400 for the first message that is none.
pub fn all_plain(messages: Vec<Value>) -> Result<Vec<Value>, ApiError> {
    let left = Cell::new(MOST_VALUES);
    let messages = messages.into_iter().enumerate();
    messages.map(|(index, message)| plain(index, message, &left)).collect()
}

/// A message whose content is one text: parts of text are joined. What is read of its texts takes of the values that are `left`.
fn plain(index: usize, mut message: Value, left: &Cell<usize>) -> Result<Value, ApiError> {
    let wrong = |what: &str| ApiError::field("messages", format!("message {index} {what}"));
    let Some(fields) = message.as_object_mut() else {
        return Err(wrong("is no object with role and content"));
    };
    if !fields.get("role").is_some_and(Value::is_string) {
        return Err(wrong("has no role"));
    }
    // What came as an answer goes back with every field that a message may have, null where it has none (`model_dump()` of OpenAI's
    // client), and with `tool_calls: []` from vLLM. Llama 3.1's template takes each message that has tool_calls for one of calls.
    fields.retain(|name, value| name == "content" || !is_nothing(name, value));
    let content = match fields.get("content") {
        Some(Value::Array(parts)) => {
            let text =
                |part| text_of(part).ok_or_else(|| wrong("has a part that is no text: this server reads text alone"));
            Some(json!(parts.iter().map(text).collect::<Result<Vec<_>, _>>()?.join("\n")))
        }
        None | Some(Value::Null) => Some(json!("")),
        Some(Value::String(_)) => None,
        Some(_) => return Err(wrong("has content that is no text")),
    };
    if let Some(content) = content {
        fields.insert("content".to_owned(), content);
    }
    if fields.get("role").is_some_and(|role| role == "assistant") {
        name_thoughts(fields);
        let calls = fields.get_mut("tool_calls").and_then(Value::as_array_mut);
        for (call, asked) in calls.into_iter().flatten().enumerate() {
            arguments(asked, left)
                .map_err(|cause| wrong(&format!("has tool_calls[{call}].function.arguments {cause}")))?;
        }
    }
    Ok(message)
}

/// Whether a field says no more than its absence.
fn is_nothing(name: &str, value: &Value) -> bool {
    value.is_null() || (name == "tool_calls" && value.as_array().is_some_and(Vec::is_empty))
}

/// The text of a part of a message; None for one that is no text.
fn text_of(part: &Value) -> Option<&str> {
    if let Some(text) = part.as_str() {
        return Some(text);
    }
    let kind = part.get("type")?.as_str()?;
    let (_, field) = TEXTS.iter().find(|(name, _)| *name == kind)?;
    part.get(*field)?.as_str()
}

/// Gives a thought both of its names.
fn name_thoughts(fields: &mut Map<String, Value>) {
    let thought = THOUGHTS.iter().find_map(|name| fields.get(*name)?.as_str());
    if let Some(thought) = thought.map(str::to_owned) {
        for name in THOUGHTS {
            fields.insert(name.to_owned(), json!(thought));
        }
    }
}

/// The arguments of a call as a value: OpenAI's clients send JSON in a string, templates go through its keys (vLLM's
/// `_postprocess_messages`).
fn arguments(call: &mut Value, left: &Cell<usize>) -> Result<(), String> {
    let Some(function) = call.get_mut("function").and_then(Value::as_object_mut) else {
        return Ok(());
    };
    let parsed = match function.get("arguments") {
        None | Some(Value::Null) => json!({}),
        Some(Value::String(text)) if text.is_empty() => json!({}),
        Some(Value::String(text)) => {
            values::counted(text, left).map_err(|error| format!("that cannot be read as JSON: {error}"))?
        }
        Some(_) => return Ok(()),
    };
    function.insert("arguments".to_owned(), parsed);
    Ok(())
}

/// Whether a message is a developer's.
pub fn is_developers(message: &Value) -> bool {
    message["role"] == "developer"
}

/// What system and developers say as one message of the system at the beginning, for templates that know no developers (vLLM's
/// `safe_apply_chat_template` in `renderers/hf.py`).
pub fn of_system(messages: Vec<Value>) -> Vec<Value> {
    let leads = |message: &Value| is_developers(message) || message["role"] == "system";
    let (leading, others): (Vec<Value>, Vec<Value>) = messages.into_iter().partition(leads);
    let texts = leading.iter().filter_map(|message| message["content"].as_str());
    let texts: Vec<&str> = texts.filter(|text| !text.is_empty()).collect();
    let system = json!({"role": "system", "content": texts.join("\n\n")});
    std::iter::once(system).chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(index: usize, message: Value) -> Result<Value, ApiError> {
        super::plain(index, message, &Cell::new(MOST_VALUES))
    }

    #[test]
    fn arguments_of_calls_are_values_to_the_template() {
        let message = |role: &str, arguments: Value| json!({"role": role, "content": "", "tool_calls": [{"function": {"name": "add", "arguments": arguments}}]});
        let call = |arguments: Value| message("assistant", arguments);
        assert_eq!(
            plain(0, call(json!("{\"b\": 1, \"a\": [2]}"))).unwrap(),
            call(json!({"b": 1, "a": [2]}))
        );
        assert_eq!(plain(0, call(json!(null))).unwrap(), call(json!({})));
        assert_eq!(plain(0, call(json!(""))).unwrap(), call(json!({})));
        assert_eq!(plain(0, call(json!({"a": 1}))).unwrap(), call(json!({"a": 1})));
        let users = message("user", json!("{"));
        assert_eq!(plain(0, users.clone()).unwrap(), users);
        let error = plain(3, call(json!("{\"a\":"))).unwrap_err().message;
        assert!(
            error.contains("message 3 has tool_calls[0].function.arguments that cannot be read as JSON"),
            "{error}"
        );
    }

    #[test]
    fn parts_of_text_become_one_and_anything_else_is_refused() {
        let parts = json!({"role": "user", "content": [
            {"type": "text", "text": "a"}, "b", {"type": "output_text", "text": "c"}, {"type": "refusal", "refusal": "d"},
        ]});
        assert_eq!(
            plain(0, parts).unwrap(),
            json!({"role": "user", "content": "a\nb\nc\nd"})
        );
        let unchanged = json!({"role": "user", "content": "a", "name": "x"});
        assert_eq!(plain(0, unchanged.clone()).unwrap(), unchanged);
        for wrong in [
            json!("hi"),
            json!({"content": "a"}),
            json!({"role": "user", "content": 1}),
            json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}),
            json!({"role": "user", "content": [{"type": "text"}]}),
        ] {
            assert!(plain(3, wrong).unwrap_err().message.contains("message 3"));
        }
    }

    #[test]
    fn what_an_assistant_thought_has_both_names_whichever_it_came_under() {
        for name in THOUGHTS {
            let message = plain(0, json!({"role": "assistant", "content": "42", name: "6 by 7"})).unwrap();
            for name in THOUGHTS {
                assert_eq!(message[name], "6 by 7");
            }
        }
        let silent = json!({"role": "assistant", "content": "42", "reasoning_content": null});
        assert_eq!(plain(0, silent).unwrap(), json!({"role": "assistant", "content": "42"}));
    }

    #[test]
    fn an_answer_that_goes_back_as_clients_dump_it_has_no_fields_that_say_nothing() {
        let dumped = json!({
            "content": "42", "refusal": null, "role": "assistant", "annotations": null, "audio": null, "function_call": null,
            "tool_calls": null,
        });
        let of_vllm = json!({"role": "assistant", "content": "42", "tool_calls": [], "reasoning": null});
        for answer in [dumped, of_vllm] {
            let kept = plain(0, answer).unwrap();
            assert_eq!(kept, json!({"role": "assistant", "content": "42"}));
        }
        // Content is text to every template.
        let silent = json!({"role": "assistant", "content": null, "tool_calls": []});
        assert_eq!(plain(0, silent).unwrap(), json!({"role": "assistant", "content": ""}));
        let empty = json!({"role": "user", "content": "a", "name": ""});
        assert_eq!(plain(0, empty.clone()).unwrap(), empty, "an empty text is one");
    }

    #[test]
    fn a_developer_speaks_for_the_system_where_a_template_knows_none() {
        let say = |role: &str, content: &str| json!({"role": role, "content": content});
        let messages = vec![
            say("system", "a"),
            say("user", "b"),
            say("developer", "c"),
            say("system", ""),
        ];
        assert_eq!(of_system(messages), [say("system", "a\n\nc"), say("user", "b")]);
    }
}
