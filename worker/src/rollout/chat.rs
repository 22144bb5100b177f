//! `/v1/chat/completions`: messages through the model's chat template.

use std::cell::Cell;

use axum::extract::{Request, State};
use axum::response::Response;
use ppo_crds::spec::NO_TEMPLATE_VARIABLES;
use serde_json::{Map, Value, json};

use super::generate;
use super::job::Dialect;
use super::model::Model;
use super::protocol::GenerateRequest;
use super::refused;
use super::service::Service;
use super::values::{self, MOST_VALUES};
use crate::data::describe;
use crate::serving::body;
use crate::serving::error::ApiError;

/// Answers a conversation.
///
/// # Errors
/// What is wrong with the request, or why it cannot be served.
pub async fn chat(State(service): State<Service>, request: Request) -> Result<Response, ApiError> {
    let model = service.admit()?;
    let headers = request.headers().clone();
    let (mut asked, room): (GenerateRequest, _) = body::held(&service.bodies, request).await?;
    generate::check_name(model, asked.model.as_deref())?;
    let Some(messages) = asked.messages.take() else {
        return Err(ApiError::field("messages", "is missing"));
    };
    // Before the template: its complaint would be about the conversation.
    refused::check(&asked)?;
    let way = Way {
        begin_answer: asked.add_generation_prompt != Some(false),
        special: asked.add_special_tokens == Some(true),
        variables: variables(asked.chat_template_kwargs.take())?,
    };
    let prompt = encode(&service, model, messages, way).await?;
    drop(room);
    generate::answer(&service, &headers, asked, Dialect::Chat, vec![prompt]).await
}

/// How a conversation becomes a prompt.
#[derive(Debug, Default)]
pub struct Way {
    /// It ends where the assistant's answer begins.
    pub begin_answer: bool,
    /// The model's own tokens go around it.
    pub special: bool,
    /// For the template.
    pub variables: Map<String, Value>,
}

/// The variables that `chat_template_kwargs` gives the template.
///
/// # Errors
/// 400 when it is no object, or names what is no variable.
pub fn variables(given: Option<Value>) -> Result<Map<String, Value>, ApiError> {
    let wrong = |what: String| ApiError::field("chat_template_kwargs", what);
    let variables = match given {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(variables)) => variables,
        Some(other) => return Err(wrong(format!("is {}, want an object", describe(&other)))),
    };
    match NO_TEMPLATE_VARIABLES
        .into_iter()
        .find(|name| variables.contains_key(*name))
    {
        Some(name) => Err(wrong(format!("{name} is no variable of a template"))),
        None => Ok(variables),
    }
}

/// Token ids of a conversation.
///
/// # Errors
/// 400 when a message is not one, the model has no template, the template refuses, or the text is too long.
pub async fn encode(service: &Service, model: &Model, messages: Vec<Value>, way: Way) -> Result<Vec<u32>, ApiError> {
    let messages = all_plain(messages)?;
    let tokenizer = model.tokenizer.clone();
    let render = move || tokenizer.render_chat_with(&messages, way.begin_answer, &way.variables);
    let text = tokio::task::spawn_blocking(render)
        .await
        .map_err(ApiError::internal)?
        .map_err(|error| ApiError::field("messages", format!("{error:#}")))?;
    let encoding = service.encoding.encode(model, vec![text], way.special, "messages");
    Ok(encoding.await?.into_iter().next().unwrap_or_default())
}

/// As [`plain`], of a whole conversation.
fn all_plain(messages: Vec<Value>) -> Result<Vec<Value>, ApiError> {
    let left = Cell::new(MOST_VALUES);
    let messages = messages.into_iter().enumerate();
    messages.map(|(index, message)| plain(index, message, &left)).collect()
}

/// A message whose content is one text: parts of text are joined, as templates of text models want it. What is read of
/// its texts takes of the values that are `left`.
fn plain(index: usize, mut message: Value, left: &Cell<usize>) -> Result<Value, ApiError> {
    let wrong = |what: &str| ApiError::field("messages", format!("message {index} {what}"));
    let Some(fields) = message.as_object_mut() else {
        return Err(wrong("is no object with role and content"));
    };
    if !fields.get("role").is_some_and(Value::is_string) {
        return Err(wrong("has no role"));
    }
    let content = match fields.get("content") {
        Some(Value::Array(parts)) => {
            let text = |part: &Value| match (part["type"].as_str(), part["text"].as_str()) {
                (Some("text"), Some(text)) => Ok(text.to_owned()),
                _ => Err(wrong("has a part that is no text: this server reads text alone")),
            };
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
        let calls = fields.get_mut("tool_calls").and_then(Value::as_array_mut);
        for (call, asked) in calls.into_iter().flatten().enumerate() {
            arguments(asked, left)
                .map_err(|cause| wrong(&format!("has tool_calls[{call}].function.arguments {cause}")))?;
        }
    }
    Ok(message)
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
    fn variables_of_the_template_are_an_object_of_its_own_names() {
        assert!(variables(None).unwrap().is_empty());
        assert_eq!(variables(Some(json!({"enable_thinking": false}))).unwrap().len(), 1);
        for (wrong, words) in [
            (json!([1]), "want an object"),
            (json!({"chat_template": "x"}), "chat_template is no variable"),
        ] {
            let error = variables(Some(wrong)).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("chat_template_kwargs"));
            assert!(error.message.contains(words), "{error}");
        }
    }

    #[test]
    fn parts_of_text_become_one_and_anything_else_is_refused() {
        let parts = json!({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]});
        assert_eq!(plain(0, parts).unwrap(), json!({"role": "user", "content": "a\nb"}));
        let unchanged = json!({"role": "user", "content": "a", "name": "x"});
        assert_eq!(plain(0, unchanged.clone()).unwrap(), unchanged);
        for wrong in [
            json!("hi"),
            json!({"content": "a"}),
            json!({"role": "user", "content": 1}),
            json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}),
        ] {
            assert!(plain(3, wrong).unwrap_err().message.contains("message 3"));
        }
    }
}
