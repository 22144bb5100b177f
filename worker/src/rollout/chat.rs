//! `/v1/chat/completions`: messages through the model's chat template.

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Value, json};

use super::body;
use super::error::ApiError;
use super::generate;
use super::job::Dialect;
use super::model::Model;
use super::protocol::GenerateRequest;
use super::service::Service;

/// Answers a conversation.
///
/// # Errors
/// What is wrong with the request, or why it cannot be served.
pub async fn chat(State(service): State<Service>, request: Request) -> Result<Response, ApiError> {
    let model = service.admit()?;
    let headers = request.headers().clone();
    let mut asked: GenerateRequest = body::json(&service.bodies, request).await?;
    generate::check_name(model, asked.model.as_deref())?;
    let Some(messages) = asked.messages.take() else {
        return Err(ApiError::field("messages", "is missing"));
    };
    let begin_answer = asked.add_generation_prompt != Some(false);
    let special = asked.add_special_tokens == Some(true);
    let prompt = encode(model, messages, begin_answer, special).await?;
    generate::answer(&service, &headers, asked, Dialect::Chat, vec![prompt]).await
}

/// Token ids of a conversation.
///
/// # Errors
/// 400 when a message is not one, the model has no template, or the template refuses.
pub async fn encode(
    model: &Model,
    messages: Vec<Value>,
    begin_answer: bool,
    special: bool,
) -> Result<Vec<u32>, ApiError> {
    let messages = messages
        .into_iter()
        .enumerate()
        .map(|(index, message)| plain(index, message))
        .collect::<Result<Vec<Value>, ApiError>>()?;
    let tokenizer = model.tokenizer.clone();
    let encode = move || tokenizer.encode(&tokenizer.render_chat(&messages, begin_answer)?, special);
    tokio::task::spawn_blocking(encode)
        .await
        .map_err(ApiError::internal)?
        .map_err(|error| ApiError::field("messages", format!("{error:#}")))
}

/// A message whose content is one text: parts of text are joined, as templates of text models want it.
fn plain(index: usize, mut message: Value) -> Result<Value, ApiError> {
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
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;

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
