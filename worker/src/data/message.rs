//! A message as templates of text models read it, of a row of data or of a request: made as vLLM makes them
//! (`vllm/renderers/chat_utils.py`).

use std::fmt::Display;

use serde_json::{Map, Value, json};

use super::json::describe;

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

/// A message whose content is one text: parts of text are joined by line feeds. Many templates read texts alone: Qwen3's writes nothing for a list of
/// parts, Llama 3's the list itself. `read` parses the arguments of calls.
///
/// # Errors
/// What is wrong with the message, in words that follow its name.
pub fn plain<E: Display>(mut message: Value, read: impl Fn(&str) -> Result<Value, E>) -> Result<Value, String> {
    let Some(fields) = message.as_object_mut() else {
        return Err("is no object with role and content".to_owned());
    };
    if !fields.get("role").is_some_and(Value::is_string) {
        return Err("has no role".to_owned());
    }
    // `datasets` and Parquet write every field that a message of the set has into all of them, and what came as an answer goes back with every
    // field that a message may have, null where it has none (`model_dump()` of OpenAI's client), and with `tool_calls: []` from vLLM. Llama
    // 3.1's template takes each message that has tool_calls for one of calls, and refuses it.
    fields.retain(|name, value| name == "content" || !is_nothing(name, value));
    let content = match fields.get("content") {
        Some(Value::Array(parts)) => Some(joined(parts)?),
        None | Some(Value::Null) => Some(String::new()),
        Some(Value::String(_)) => None,
        Some(other) => return Err(format!("has content that is {}, want a string", describe(other))),
    };
    if let Some(content) = content {
        fields.insert("content".to_owned(), content.into());
    }
    if fields.get("role").is_some_and(|role| role == "assistant") {
        name_thoughts(fields);
        let calls = fields.get_mut("tool_calls").and_then(Value::as_array_mut);
        for (call, asked) in calls.into_iter().flatten().enumerate() {
            arguments(asked, &read).map_err(|cause| format!("has tool_calls[{call}].function.arguments {cause}"))?;
        }
    }
    Ok(message)
}

/// The text of parts.
fn joined(parts: &[Value]) -> Result<String, String> {
    let text = |part| {
        text_of(part).ok_or_else(|| {
            format!(
                "has a part that is {}, want {{\"type\": \"text\", \"text\": ..}}: models read text alone",
                describe(part)
            )
        })
    };
    let texts: Vec<&str> = parts.iter().map(text).collect::<Result<_, _>>()?;
    Ok(texts.join("\n"))
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
fn arguments<E: Display>(call: &mut Value, read: impl Fn(&str) -> Result<Value, E>) -> Result<(), String> {
    let Some(function) = call.get_mut("function").and_then(Value::as_object_mut) else {
        return Ok(());
    };
    let parsed = match function.get("arguments") {
        None | Some(Value::Null) => json!({}),
        Some(Value::String(text)) if text.is_empty() => json!({}),
        Some(Value::String(text)) => read(text).map_err(|error| format!("that cannot be read as JSON: {error}"))?,
        Some(_) => return Ok(()),
    };
    function.insert("arguments".to_owned(), parsed);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(message: Value) -> Result<Value, String> {
        super::plain(message, |text| serde_json::from_str(text))
    }

    #[test]
    fn arguments_of_calls_are_values_to_the_template() {
        let message = |role: &str, arguments: Value| json!({"role": role, "content": "", "tool_calls": [{"function": {"name": "add", "arguments": arguments}}]});
        let call = |arguments: Value| message("assistant", arguments);
        assert_eq!(
            plain(call(json!("{\"b\": 1, \"a\": [2]}"))).unwrap(),
            call(json!({"b": 1, "a": [2]}))
        );
        assert_eq!(plain(call(json!(null))).unwrap(), call(json!({})));
        assert_eq!(plain(call(json!(""))).unwrap(), call(json!({})));
        assert_eq!(plain(call(json!({"a": 1}))).unwrap(), call(json!({"a": 1})));
        let users = message("user", json!("{"));
        assert_eq!(plain(users.clone()).unwrap(), users);
        let error = plain(call(json!("{\"a\":"))).unwrap_err();
        assert!(
            error.starts_with("has tool_calls[0].function.arguments that cannot be read as JSON"),
            "{error}"
        );
    }

    #[test]
    fn parts_of_text_become_one_and_anything_else_is_refused() {
        let parts = json!({"role": "user", "content": [
            {"type": "text", "text": "a"}, "b", {"type": "output_text", "text": "c"}, {"type": "refusal", "refusal": "d"},
        ]});
        assert_eq!(plain(parts).unwrap(), json!({"role": "user", "content": "a\nb\nc\nd"}));
        let unchanged = json!({"role": "user", "content": "a", "name": "x"});
        assert_eq!(plain(unchanged.clone()).unwrap(), unchanged);
        for wrong in [
            json!("hi"),
            json!({"content": "a"}),
            json!({"role": "user", "content": 1}),
            json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}),
            json!({"role": "user", "content": [{"type": "text"}]}),
        ] {
            assert!(plain(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_an_assistant_thought_has_both_names_whichever_it_came_under() {
        for name in THOUGHTS {
            let message = plain(json!({"role": "assistant", "content": "42", name: "6 by 7"})).unwrap();
            for name in THOUGHTS {
                assert_eq!(message[name], "6 by 7");
            }
        }
        let silent = json!({"role": "assistant", "content": "42", "reasoning_content": null});
        assert_eq!(plain(silent).unwrap(), json!({"role": "assistant", "content": "42"}));
    }

    #[test]
    fn an_answer_that_goes_back_as_clients_dump_it_has_no_fields_that_say_nothing() {
        let dumped = json!({
            "content": "42", "refusal": null, "role": "assistant", "annotations": null, "audio": null, "function_call": null,
            "tool_calls": null,
        });
        let of_vllm = json!({"role": "assistant", "content": "42", "tool_calls": [], "reasoning": null});
        for answer in [dumped, of_vllm] {
            let kept = plain(answer).unwrap();
            assert_eq!(kept, json!({"role": "assistant", "content": "42"}));
        }
        // Content is text to every template.
        let silent = json!({"role": "assistant", "content": null, "tool_calls": []});
        assert_eq!(plain(silent).unwrap(), json!({"role": "assistant", "content": ""}));
        let empty = json!({"role": "user", "content": "a", "name": ""});
        assert_eq!(plain(empty.clone()).unwrap(), empty, "an empty text is one");
    }

    #[test]
    fn a_part_that_is_no_text_is_told() {
        let image = json!({"type": "image_url", "image_url": {"url": "x"}});
        let error = plain(json!({"role": "user", "content": [image]})).unwrap_err();
        let words = "has a part that is the object {\"type\":\"image_url\"";
        assert!(error.starts_with(words), "{error}");
    }
}
