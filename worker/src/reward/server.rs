//! `ppo-worker reward`: a reward model or rules served by OpenRLHF's protocol.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, Json, State};
use axum::http::header::{AUTHORIZATION, RETRY_AFTER};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Router, middleware};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;

use super::mix::RewardSource;
use super::protocol::{ScoreRequest, ScoreResponse};
use super::sample::ScoredSample;
use crate::tokenizer::Tokenizer;

/// Limits and access of a reward server.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Callers must send `Authorization: Bearer <token>`. None: anyone may call.
    pub token: Option<String>,
    /// Longest request that is read.
    pub max_body_bytes: usize,
    /// Most samples in one request.
    pub max_samples: usize,
    /// For scoring one request; then the caller gets 503.
    pub timeout: Duration,
    /// How long requests in flight may go on after the shutdown signal.
    pub shutdown_grace: Duration,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            token: None,
            max_body_bytes: 64 << 20,
            max_samples: 4096,
            timeout: Duration::from_secs(600),
            shutdown_grace: Duration::from_secs(30),
        }
    }
}

/// What is served. It starts unready, so that probes are answered while a model loads.
#[derive(Clone)]
pub struct RewardService {
    shared: Arc<Shared>,
}

struct Shared {
    ready: OnceLock<Ready>,
    token: Option<[u8; 32]>,
    options: ServeOptions,
}

struct Ready {
    source: RewardSource,
    tokenizer: Option<Arc<Tokenizer>>,
}

impl RewardService {
    /// A service without sources yet: `/healthz` answers 200, everything else 503.
    pub fn new(options: ServeOptions) -> Self {
        let token = options.token.as_deref().map(digest);
        Self {
            shared: Arc::new(Shared {
                ready: OnceLock::new(),
                token,
                options,
            }),
        }
    }

    /// Makes the service ready. The tokenizer, if any, takes special tokens out of responses for the rules and counts
    /// tokens.
    ///
    /// # Errors
    /// A rule that counts tokens without a tokenizer; a second call.
    pub fn ready(&self, source: RewardSource, tokenizer: Option<Arc<Tokenizer>>) -> Result<()> {
        if source.needs_tokens() && tokenizer.is_none() {
            bail!("a length rule counts tokens: name the model whose tokenizer counts them");
        }
        if self.shared.ready.set(Ready { source, tokenizer }).is_err() {
            bail!("the reward service is ready already");
        }
        Ok(())
    }

    /// The routes: POST `/` and `/get_reward` score; GET `/healthz` and `/readyz` are probes and need no token.
    pub fn router(&self) -> Router {
        let limit = DefaultBodyLimit::max(self.shared.options.max_body_bytes);
        Router::new()
            .route("/", post(score))
            .route("/get_reward", post(score))
            .route_layer(middleware::from_fn_with_state(self.clone(), authorize))
            .route("/healthz", get(|| async { "ok" }))
            .route("/readyz", get(readyz))
            .layer(limit)
            .with_state(self.clone())
    }

    /// Serves until `shutdown` completes, then lets requests in flight finish for at most `shutdown_grace`.
    ///
    /// # Errors
    /// When the listener fails.
    pub async fn serve(
        &self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Result<()> {
        let (signal, mut signalled) = tokio::sync::watch::channel(false);
        let stop = async move {
            shutdown.await;
            let _ = signal.send(true);
        };
        let grace = self.shared.options.shutdown_grace;
        let deadline = async move {
            // An error means that the server has dropped `stop`, so it has ended by itself.
            let _ = signalled.wait_for(|stopped| *stopped).await;
            tokio::time::sleep(grace).await;
        };
        let server = axum::serve(listener, self.router()).with_graceful_shutdown(stop);
        tokio::select! {
            ended = async { server.await } => ended.context("reward server"),
            () = deadline => {
                tracing::warn!("requests were still in flight {grace:?} after the shutdown signal; closing them");
                Ok(())
            }
        }
    }
}

async fn readyz(State(service): State<RewardService>) -> Response {
    match service.shared.ready.get() {
        Some(_) => "ready".into_response(),
        None => not_ready(),
    }
}

fn not_ready() -> Response {
    let mut response = refuse(StatusCode::SERVICE_UNAVAILABLE, "the reward model is still loading");
    response
        .headers_mut()
        .insert(RETRY_AFTER, axum::http::HeaderValue::from_static("1"));
    response
}

async fn authorize(
    State(service): State<RewardService>,
    headers: HeaderMap,
    request: axum::extract::Request,
    next: middleware::Next,
) -> Response {
    if let Some(expected) = &service.shared.token {
        let header = headers
            .get(AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        let (scheme, token) = header.split_once(' ').unwrap_or_default();
        if !(scheme.eq_ignore_ascii_case("bearer") && same(&digest(token.trim()), expected)) {
            return refuse(
                StatusCode::UNAUTHORIZED,
                "want the header Authorization: Bearer <token>",
            );
        }
    }
    next.run(request).await
}

async fn score(State(service): State<RewardService>, body: Result<Json<ScoreRequest>, JsonRejection>) -> Response {
    let Some(ready) = service.shared.ready.get() else {
        return not_ready();
    };
    let request = match body {
        Ok(Json(request)) => request,
        Err(rejection) => return refuse(rejection.status(), &rejection.body_text()),
    };
    let samples = match samples(request, ready.tokenizer.as_deref(), service.shared.options.max_samples) {
        Ok(samples) => samples,
        Err(refusal) => return refusal.into_response(),
    };
    for sample in &samples {
        if let Err(cause) = ready.source.check_label(sample.label.as_deref()) {
            return refuse(
                StatusCode::UNPROCESSABLE_ENTITY,
                &format!("labels[{}]: {cause:#}", sample.index),
            );
        }
    }
    let timeout = service.shared.options.timeout;
    match tokio::time::timeout(timeout, ready.source.score(&samples)).await {
        Ok(Ok(answer)) => {
            let numbers = |values: Vec<f32>| {
                values
                    .into_iter()
                    .map(|value| Some(f64::from(value)))
                    .collect::<Vec<_>>()
            };
            let rewards = numbers(answer.scores);
            let extra = answer
                .extra
                .into_iter()
                .map(|(name, values)| (name, json!(values)))
                .collect();
            Json(ScoreResponse {
                rewards: Some(rewards.clone()),
                scores: Some(rewards),
                extra_logs: extra,
            })
            .into_response()
        }
        Ok(Err(cause)) => {
            tracing::error!("scoring failed: {cause:#}");
            refuse(StatusCode::INTERNAL_SERVER_ERROR, &format!("{cause:#}"))
        }
        Err(_) => refuse(
            StatusCode::SERVICE_UNAVAILABLE,
            &format!("scoring took longer than {timeout:?}"),
        ),
    }
}

/// The request's samples, their numbers counted from 0. The response is the query without its prompt; without prompts (the
/// old form) rules read the whole query.
fn samples(request: ScoreRequest, tokenizer: Option<&Tokenizer>, most: usize) -> Result<Vec<ScoredSample>, Refusal> {
    let count = request.query.len();
    let bad = |what: String| Refusal(StatusCode::UNPROCESSABLE_ENTITY, what);
    if count > most {
        let what = format!("{count} queries in one request, at most {most}");
        return Err(Refusal(StatusCode::PAYLOAD_TOO_LARGE, what));
    }
    for (name, length) in [
        ("prompts", request.prompts.as_ref().map(Vec::len)),
        ("labels", request.labels.as_ref().map(Vec::len)),
    ] {
        if let Some(length) = length.filter(|length| *length != count) {
            return Err(bad(format!("{name} has {length} entries for {count} queries")));
        }
    }
    let mut prompts = request
        .prompts
        .unwrap_or_else(|| vec![String::new(); count])
        .into_iter();
    let mut labels = request.labels.unwrap_or_default().into_iter();
    let mut samples = Vec::with_capacity(count);
    for (index, query) in request.query.into_iter().enumerate() {
        let prompt = prompts.next().unwrap_or_default();
        // A trainer may decode BOS or padding in front of the prompt.
        let Some((_, response)) = query.split_once(prompt.as_str()) else {
            return Err(bad(format!("query[{index}] does not contain prompts[{index}]")));
        };
        let response = response.to_owned();
        let (response_ids, visible_response) = match tokenizer {
            None => (Vec::new(), response.clone()),
            Some(tokenizer) => {
                let ids = tokenizer
                    .encode(&response, false)
                    .map_err(|cause| bad(format!("query[{index}]: {cause:#}")))?;
                let visible = tokenizer
                    .decode(&ids, true)
                    .map_err(|cause| bad(format!("query[{index}]: {cause:#}")))?;
                (ids, visible)
            }
        };
        let label = labels.next().flatten();
        samples.push(ScoredSample {
            index,
            prompt,
            response,
            visible_response,
            prompt_ids: Vec::new().into(),
            response_ids,
            label,
        });
    }
    Ok(samples)
}

/// Why a request is not scored.
struct Refusal(StatusCode, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Self(status, message) = self;
        (
            status,
            Json(json!({"error": {"code": status.as_u16(), "message": message}})),
        )
            .into_response()
    }
}

fn refuse(status: StatusCode, message: &str) -> Response {
    Refusal(status, message.to_owned()).into_response()
}

fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

/// Looks at every byte whatever it finds, so that the time tells nothing; digests also hide the token's length.
fn same(left: &[u8; 32], right: &[u8; 32]) -> bool {
    let difference = left
        .iter()
        .zip(right)
        .fold(0, |difference, (left, right)| difference | (left ^ right));
    std::hint::black_box(difference) == 0
}

#[cfg(test)]
mod tests;
