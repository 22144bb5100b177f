//! What a server reports about itself and its tokenizer.

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use super::conversation::{self, Way};
use super::prompt::Prompt;
use super::protocol::{GenerateRequest, WholeNumber};
use super::service::Service;
use super::truncate::Cut;
use super::{generate, refused};
use crate::serving::body::{self, Object};
use crate::serving::error::ApiError;

/// `/healthz`: this process answers, and its engine has not failed.
///
/// # Errors
/// 503 with the cause once the engine is over.
pub async fn healthz(State(service): State<Service>) -> Result<&'static str, ApiError> {
    service.alive().map(|()| "ok\n")
}

/// `/health` and `/ping`, as vLLM has them: 200 without a body once requests can be answered. Scripts wait for that; a vLLM does not even
/// listen before.
///
/// 503 while the model loads, and when the engine is over.
pub async fn health(State(service): State<Service>) -> Response {
    match service.model() {
        Ok(_) => ().into_response(),
        Err(error) => error.into_response(),
    }
}

/// `/readyz`: requests are let in. A paused server is ready: it is its trainer that paused it.
///
/// # Errors
/// 503 with what is missing.
pub async fn readyz(State(service): State<Service>) -> Result<&'static str, ApiError> {
    if service.is_stopping() {
        return Err(ApiError::unavailable("shutting down"));
    }
    service.model().map(|_| "ready\n")
}

/// `/version`: of this program.
pub async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION")}))
}

/// `/v1/models`: the one model.
///
/// # Errors
/// 503 while it loads.
pub async fn models(State(service): State<Service>) -> Result<Json<Value>, ApiError> {
    Ok(Json(json!({"object": "list", "data": [card(&service)?]})))
}

/// `/v1/models/{name}`: the model of that name; names of the hub have a slash.
///
/// # Errors
/// 404 for another name, 503 while it loads.
pub async fn model(State(service): State<Service>, Path(name): Path<String>) -> Result<Json<Value>, ApiError> {
    generate::check_name(&service.model()?.name, Some(&name))?;
    card(&service).map(Json)
}

fn card(service: &Service) -> Result<Value, ApiError> {
    let model = service.model()?;
    Ok(json!({
        "id": model.name,
        "object": "model",
        "created": service.started(),
        "owned_by": "ppo-worker",
        "root": model.folder,
        "parent": null,
        "max_model_len": model.config.max_positions,
    }))
}

/// `/tokenize`: token ids of a text or a conversation.
///
/// # Errors
/// 400 when there is neither, or the tokenizer refuses.
pub async fn tokenize(State(service): State<Service>, request: Request) -> Result<Json<Value>, ApiError> {
    let (Object(mut asked), room): (Object<GenerateRequest>, _) = body::held(&service.bodies, request).await?;
    let model = service.model()?;
    generate::check_name(&model.name, asked.model.as_deref())?;
    refused::check_conversation(&asked)?;
    let tokens = match (asked.prompt.take(), asked.messages.take()) {
        (Some(Prompt::Text(prompt)), None) => {
            let special = asked.add_special_tokens != Some(false);
            let encoding = service
                .encoding
                .encode(model, vec![prompt], special, Cut::default(), "prompt");
            encoding.await?.into_iter().next().unwrap_or_default()
        }
        (None, Some(messages)) => {
            // All tokens are wanted.
            asked.truncate_prompt_tokens = None;
            let way = Way::of(&mut asked)?;
            conversation::encode(&service, model, messages, way, room).await?
        }
        (Some(_), None) => return Err(ApiError::field("prompt", "give one text")),
        (Some(_), Some(_)) | (None, None) => {
            return Err(ApiError::field("prompt", "give prompt or messages, one of them"));
        }
    };
    let names = (asked.return_token_strs == Some(true)).then(|| {
        let names = tokens.iter().map(|id| model.tokenizer.token_name(*id));
        names.collect::<Vec<_>>()
    });
    Ok(Json(json!({
        "count": tokens.len(),
        "max_model_len": model.config.max_positions,
        "tokens": tokens,
        "token_strs": names,
    })))
}

#[derive(Debug, Deserialize)]
struct DetokenizeRequest {
    model: Option<String>,
    tokens: Vec<WholeNumber<u32>>,
}

/// `/detokenize`: the text of token ids.
///
/// # Errors
/// 400 when the tokenizer refuses.
pub async fn detokenize(State(service): State<Service>, request: Request) -> Result<Json<Value>, ApiError> {
    let (Object(asked), room): (Object<DetokenizeRequest>, _) = body::held(&service.bodies, request).await?;
    let model = service.model()?;
    generate::check_name(&model.name, asked.model.as_deref())?;
    service.limits.check_tokens(asked.tokens.len())?;
    let tokenizer = model.tokenizer.clone();
    let decode = move || {
        // It goes on when the client has gone, and has its room with it.
        let _room = room;
        let tokens: Vec<u32> = asked.tokens.into_iter().map(|WholeNumber(id)| id).collect();
        tokenizer.decode(&tokens, false)
    };
    let text = tokio::task::spawn_blocking(decode)
        .await
        .map_err(ApiError::internal)?
        .map_err(|error| ApiError::field("tokens", format!("{error:#}")))?;
    Ok(Json(json!({"prompt": text})))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::body::Body;
    use axum::http::header::CONTENT_TYPE;
    use futures::FutureExt;
    use ppo_crds::run_config::Location;

    use super::*;
    use crate::rollout::settings::{ModelSettings, Settings};
    use crate::rollout::stand_in::{engine, server_of, taken};
    use crate::serving::Limits;

    #[tokio::test]
    async fn a_server_whose_model_loads_is_alive_and_neither_healthy_nor_ready() {
        let settings = Settings {
            address: "127.0.0.1:0".parse().unwrap(),
            metrics_address: None,
            token: None,
            open_metrics: false,
            model: ModelSettings::alone(Location::Path("unused".into()), "m".to_owned()),
            limits: Limits::default(),
            actor: None,
            vllm: None,
        };
        let service = Service::new(&settings).unwrap();
        assert!(healthz(State(service.clone())).await.is_ok());
        assert_eq!(health(State(service.clone())).await.status(), 503);
        assert!(readyz(State(service)).await.is_err());
    }

    /// The answer to `body` at one of the two paths.
    async fn ask(service: &Service, path: &str, body: &Value) -> Result<Json<Value>, ApiError> {
        let request = Request::post(path).header(CONTENT_TYPE, "application/json");
        let request = request.body(Body::from(body.to_string())).unwrap();
        match path {
            "/tokenize" => tokenize(State(service.clone()), request).await,
            _ => detokenize(State(service.clone()), request).await,
        }
    }

    #[test]
    fn what_still_works_on_a_body_whose_client_has_gone_keeps_the_room_of_that_body() {
        // Room for one short body.
        let limits = Limits {
            connections: 1,
            body_timeout: Duration::from_millis(30),
            ..Limits::default()
        };
        let messages = json!({"messages": [{"role": "user", "content": "hi"}]});
        for (path, body) in [("/tokenize", messages), ("/detokenize", json!({"tokens": [1]}))] {
            let service = server_of(engine(), limits.clone());
            let (runtime, give_back) = taken();
            runtime.block_on(async {
                assert!(ask(&service, path, &body).now_or_never().is_none(), "{path}");
                let full = ask(&service, path, &body).await.unwrap_err();
                assert_eq!(full.status, 503, "{path}: {full}");
                drop(give_back);
                let later = async || ask(&service, path, &body).await.err().map(|error| error.status);
                while later().await.is_some_and(|status| status == 503) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            });
        }
    }
}
