//! `/v1/chat/completions`: messages through the model's chat template.

use axum::extract::{Request, State};
use axum::response::Response;

use super::conversation::{self, Way};
use super::job::Dialect;
use super::protocol::GenerateRequest;
use super::service::Service;
use super::{generate, refused};
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
    generate::check_name(&model.name, asked.model.as_deref())?;
    let Some(messages) = asked.messages.take() else {
        return Err(ApiError::field("messages", "is missing"));
    };
    // Before the template: its complaint would be about the conversation.
    refused::check(&asked)?;
    let way = Way::of(&mut asked)?;
    let prompt = conversation::encode(&service, model, messages, way, room).await?;
    generate::answer(&service, &headers, asked, Dialect::Chat, vec![prompt], Vec::new()).await
}
