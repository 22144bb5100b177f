//! Messages of a conversation as vLLM takes them (`vllm/renderers/chat_utils.py`).

use std::cell::Cell;

use serde_json::{Value, json};

use crate::data::message::plain;
use crate::serving::error::ApiError;
use crate::serving::values::{self, MOST_VALUES};

/// Messages as templates want them. What is read of their texts takes of the values that a request may have.
///
/// # Errors
/// 400 for the first message that is none.
pub fn all_plain(messages: Vec<Value>) -> Result<Vec<Value>, ApiError> {
    let left = Cell::new(MOST_VALUES);
    let read = |text: &str| values::counted(text, &left);
    let made = messages.into_iter().enumerate().map(|(index, message)| {
        let wrong = |what| ApiError::field("messages", format!("message {index} {what}"));
        plain(message, read).map_err(wrong)
    });
    made.collect()
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

    #[test]
    fn the_message_that_is_none_is_named_and_arguments_take_of_the_values_of_the_request() {
        let call = |arguments: &str| json!({"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": arguments}}]});
        let refused = |messages: Vec<Value>| all_plain(messages).unwrap_err().message;
        let said = refused(vec![json!({"role": "user", "content": "a"}), json!("hi")]);
        assert!(said.contains("message 1 is no object"), "{said}");
        let said = refused(vec![call("{\"a\":")]);
        let words = "message 0 has tool_calls[0].function.arguments that cannot be read as JSON";
        assert!(said.contains(words), "{said}");
        let many = format!("[{}1]", "1,".repeat(MOST_VALUES * 2 / 3));
        assert!(all_plain(vec![call(&many)]).is_ok());
        let said = refused(vec![call(&many), call(&many)]);
        assert!(said.contains("message 1 has tool_calls[0]"), "{said}");
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
