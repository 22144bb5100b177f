//! `/v1/completions`.

use axum::extract::{Request, State};
use axum::response::Response;

use super::body;
use super::error::ApiError;
use super::generate;
use super::job::Dialect;
use super::model::Model;
use super::prompt::Prompt;
use super::protocol::GenerateRequest;
use super::service::Service;

/// Goes on from texts or token ids.
///
/// # Errors
/// What is wrong with the request, or why it cannot be served.
pub async fn completions(State(service): State<Service>, request: Request) -> Result<Response, ApiError> {
    let model = service.admit()?;
    let headers = request.headers().clone();
    let mut asked: GenerateRequest = body::json(&service.bodies, request).await?;
    generate::check_name(model, asked.model.as_deref())?;
    let Some(prompt) = asked.prompt.take() else {
        return Err(ApiError::field("prompt", "is missing"));
    };
    if prompt.count() > service.limits.prompts {
        return Err(ApiError::field(
            "prompt",
            format!(
                "{} prompts in one request, at most {}",
                prompt.count(),
                service.limits.prompts
            ),
        ));
    }
    let special = asked.add_special_tokens != Some(false);
    let prompts = match prompt {
        Prompt::Ids(ids) => vec![ids],
        Prompt::IdLists(lists) => lists,
        Prompt::Text(text) => encode(model, vec![text], special).await?,
        Prompt::Texts(texts) => encode(model, texts, special).await?,
    };
    generate::answer(&service, &headers, asked, Dialect::Completions, prompts).await
}

/// Token ids of texts, made aside: a long text must not hold up other requests.
///
/// # Errors
/// 400 when the tokenizer cannot split a text.
pub async fn encode(model: &Model, texts: Vec<String>, special: bool) -> Result<Vec<Vec<u32>>, ApiError> {
    let tokenizer = model.tokenizer.clone();
    let encode = move || {
        let ids = texts.iter().map(|text| tokenizer.encode(text, special));
        ids.collect::<anyhow::Result<Vec<_>>>()
    };
    tokio::task::spawn_blocking(encode)
        .await
        .map_err(ApiError::internal)?
        .map_err(|error| ApiError::bad(format!("{error:#}")))
}
