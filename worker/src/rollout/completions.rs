//! `/v1/completions`.

use axum::extract::{Request, State};
use axum::response::Response;

use super::job::Dialect;
use super::prompt::Prompt;
use super::protocol::GenerateRequest;
use super::service::Service;
use super::truncate::Cut;
use super::{echo, generate};
use crate::serving::body::{self, Object};
use crate::serving::error::ApiError;

/// Goes on from texts or token ids.
///
/// # Errors
/// What is wrong with the request, or why it cannot be served.
pub async fn completions(State(service): State<Service>, request: Request) -> Result<Response, ApiError> {
    let model = service.admit()?;
    let headers = request.headers().clone();
    let (Object(mut asked), room): (Object<GenerateRequest>, _) = body::held(&service.bodies, request).await?;
    generate::check_name(&model.name, asked.model.as_deref())?;
    let Some(prompt) = asked.prompt.take() else {
        return Err(ApiError::field("prompt", "is missing"));
    };
    service.limits.check_prompts(prompt.count())?;
    let special = asked.add_special_tokens != Some(false);
    let cut = Cut::of(&asked);
    let texts = echo::texts(&asked, &prompt);
    let encode = |texts| service.encoding.encode(model, texts, special, cut, "prompt");
    let prompts = match prompt {
        Prompt::Ids(ids) => vec![ids],
        Prompt::IdLists(lists) => lists,
        Prompt::Text(text) => encode(vec![text]).await?,
        Prompt::Texts(texts) => encode(texts).await?,
    };
    drop(room);
    generate::answer(&service, &headers, asked, Dialect::Completions, prompts, texts, None).await
}
