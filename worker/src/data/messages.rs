//! Messages of a row as templates of text models read them.

use anyhow::{Result, bail};
use serde_json::Value;

use super::json::describe;

/// Messages whose content is a text each, as the server makes them of a request: parts of text are joined by line feeds. Many templates
/// read texts alone: Qwen3's writes nothing for a list of parts, Llama 3's the list itself.
///
/// # Errors
/// Names the first message with a part that is no text.
pub(super) fn plain(messages: &[Value]) -> Result<Vec<Value>> {
    let all = messages.iter().enumerate();
    all.map(|(index, message)| plain_one(index, message)).collect()
}

fn plain_one(index: usize, message: &Value) -> Result<Value> {
    let mut message = message.clone();
    let Some(fields) = message.as_object_mut() else {
        return Ok(message);
    };
    // `datasets` and Parquet write every field that a message of the set has into all of them. Llama 3.1's template takes each message
    // that has tool_calls, be they null, for one of calls, and refuses it.
    fields.retain(|name, value| name == "content" || !value.is_null());
    if let Some(Value::Array(parts)) = fields.get("content") {
        let mut texts = Vec::with_capacity(parts.len());
        for part in parts {
            match text_of(part) {
                Some(text) => texts.push(text),
                None => bail!(
                    "message {index}: a part of its content is {}, want {{\"type\": \"text\", \"text\": ..}}: models read \
                     text alone",
                    describe(part)
                ),
            }
        }
        let text = texts.join("\n");
        fields.insert("content".to_owned(), text.into());
    }
    Ok(message)
}

/// The text of a part; None for one that is no text.
fn text_of(part: &Value) -> Option<&str> {
    if let Some(text) = part.as_str() {
        return Some(text);
    }
    let is_text = part.get("type").is_some_and(|kind| kind == "text");
    part.get("text").filter(|_| is_text)?.as_str()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parts_of_text_are_one_text_and_a_field_that_is_null_is_not_there() {
        let messages = [
            json!({"role": "user", "name": null, "content": [{"type": "text", "text": "a", "image": null}, "b"], "tool_calls": null}),
            json!({"role": "assistant", "content": null, "tool_calls": [{"id": null}]}),
            json!({"role": "user", "content": "c"}),
        ];
        let wanted = [
            json!({"role": "user", "content": "a\nb"}),
            json!({"role": "assistant", "content": null, "tool_calls": [{"id": null}]}),
            json!({"role": "user", "content": "c"}),
        ];
        assert_eq!(plain(&messages).unwrap(), wanted);
    }

    #[test]
    fn a_part_that_is_no_text_is_refused() {
        let image = json!({"type": "image_url", "image_url": {"url": "x"}});
        let error = plain(&[json!({"role": "user", "content": [image]})]).unwrap_err();
        let words = "message 0: a part of its content is the object {\"type\":\"image_url\"";
        assert!(error.to_string().starts_with(words), "{error}");
    }
}
