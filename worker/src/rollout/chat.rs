//! `/v1/chat/completions`: messages through the model's chat template.

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::Value;

use super::conversation::{self, Way};
use super::job::Dialect;
use super::protocol::GenerateRequest;
use super::service::Service;
use super::{generate, refused};
use crate::serving::body::{self, Object};
use crate::serving::error::ApiError;

/// Longest role of a message that an answer repeats, in bytes: each of its choices does.
const LONGEST_ROLE: usize = 64;

/// Answers a conversation.
///
/// # Errors
/// What is wrong with the request, or why it cannot be served.
pub async fn chat(State(service): State<Service>, request: Request) -> Result<Response, ApiError> {
    let model = service.admit()?;
    let headers = request.headers().clone();
    let (Object(mut asked), room): (Object<GenerateRequest>, _) = body::held(&service.bodies, request).await?;
    generate::check_name(&model.name, asked.model.as_deref())?;
    let Some(messages) = asked.messages.take() else {
        return Err(ApiError::field("messages", "is missing"));
    };
    // Before the template: its complaint would be about the conversation.
    refused::check(&asked)?;
    let role = role(&asked, &messages);
    let way = Way::of(&mut asked)?;
    let prompt = conversation::encode(&service, model, messages, way, room).await?;
    generate::answer(&service, &headers, asked, Dialect::Chat, vec![prompt], Vec::new(), role).await
}

/// Who speaks in the answer: where none of the assistant begins, whoever spoke last goes on, as in vLLM (`get_chat_request_role`).
fn role(asked: &GenerateRequest, messages: &[Value]) -> Option<String> {
    if asked.add_generation_prompt != Some(false) {
        return None;
    }
    let role = messages.last()?.get("role")?.as_str()?;
    Some(role.to_owned()).filter(|role| role.len() <= LONGEST_ROLE)
}
