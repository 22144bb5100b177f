//! The paths of a reward server, and the function that answers each.

use std::sync::{Arc, OnceLock};

use anyhow::{Error, Result, bail};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router, middleware};
use serde_json::json;

use super::held::Held;
use super::longest::Unscorable;
use super::mix::{RewardSource, Scores};
use super::protocol::{ScoreRequest, ScoreResponse};
use super::question::samples;
use super::sample::ScoredSample;
use crate::native::threads::blocking;
use crate::serving::auth::{Door, authorize};
use crate::serving::body::{self, Bodies, Object};
use crate::serving::error::ApiError;
use crate::serving::fallback::in_words;
use crate::serving::limits::Limits;
use crate::serving::room::Room;
use crate::telemetry::{self, Exposition};
use crate::tokenizer::{Encoding, Tokenizer};

/// What every request sees. It starts unready, so that probes are answered while a model loads.
#[derive(Clone)]
pub struct Service(Arc<Shared>);

struct Shared {
    door: Door,
    bodies: Bodies,
    /// Texts that are split by the policy's tokenizer.
    encoding: Encoding,
    limits: Limits,
    exposition: Arc<Exposition>,
    ready: OnceLock<Ready>,
}

struct Ready {
    source: RewardSource,
    tokenizer: Option<Arc<Tokenizer>>,
}

impl Service {
    /// A service of the job `name`, for whom `door` lets in, without sources yet.
    ///
    /// # Errors
    /// When a metric's name is not one Prometheus takes.
    pub fn new(name: &str, door: Door, limits: &Limits) -> Result<Self> {
        Ok(Self(Arc::new(Shared {
            door,
            bodies: Bodies::new(limits.clone()),
            encoding: Encoding::default(),
            limits: limits.clone(),
            exposition: Arc::new(Exposition::new(name)?),
            ready: OnceLock::new(),
        })))
    }

    /// Scores from now on. The tokenizer, if any, is the policy's: it takes special tokens out of responses for the rules
    /// and counts tokens.
    ///
    /// # Errors
    /// A rule that counts tokens without a tokenizer; a second call.
    pub fn ready(&self, source: RewardSource, tokenizer: Option<Arc<Tokenizer>>) -> Result<()> {
        if source.needs_tokens() && tokenizer.is_none() {
            bail!("a length rule counts tokens: name the model whose tokenizer counts them");
        }
        if self.0.ready.set(Ready { source, tokenizer }).is_err() {
            bail!("the reward service is ready already");
        }
        Ok(())
    }

    fn get(&self) -> Result<&Ready, ApiError> {
        let ready = self.0.ready.get();
        ready.ok_or_else(|| ApiError::unavailable("the reward model is still loading"))
    }
}

/// The role's own port: POST `/` and `/get_reward` score.
pub fn api(service: &Service) -> Router {
    let routes = Router::new()
        .route("/", post(score))
        .route("/get_reward", post(score))
        .with_state(service.clone())
        .merge(probes(service));
    in_words(routes).layer(middleware::from_fn_with_state(service.0.door.clone(), authorize))
}

/// What kubelet and Prometheus ask, on a port of its own without a token.
pub fn observed(service: &Service) -> Router {
    in_words(probes(service))
}

fn probes(service: &Service) -> Router {
    let shown = service.clone();
    telemetry::probes(service.0.exposition.clone(), move || shown.get().map(drop))
}

async fn score(State(service): State<Service>, request: Request) -> Result<Json<ScoreResponse>, ApiError> {
    service.get()?;
    let limit = service.0.limits.request_timeout;
    let (Object(asked), room): (Object<ScoreRequest>, _) = body::held(&service.0.bodies, request).await?;
    let late = |_| {
        let words = format!(
            "the samples were not scored within {} s, others before them included: ask for fewer at once, or give this server more cores or \
             GPUs",
            limit.as_secs_f64()
        );
        ApiError::new(StatusCode::GATEWAY_TIMEOUT, words)
    };
    let answered = tokio::time::timeout(limit, answer(&service, asked, room)).await;
    answered.map_err(late)?.map(Json)
}

/// All that a request waits for.
async fn answer(service: &Service, asked: ScoreRequest, room: Room) -> Result<ScoreResponse, ApiError> {
    let source = &service.get()?.source;
    let held = Arc::new(read(service, asked, room).await?);
    let scored = source.score_held(&held).await.map_err(failed)?;
    Ok(response(scored, source.digest()))
}

/// The samples of a request, checked. Aside: to split texts and to read labels takes long enough to hold up probes.
async fn read(service: &Service, asked: ScoreRequest, room: Room) -> Result<Held, ApiError> {
    let longest = asked.query.iter().map(String::len).max().unwrap_or(0);
    let splitting = service.0.encoding.enter(longest).await.map_err(ApiError::internal)?;
    let it = service.clone();
    let read = move || {
        // It goes on when the client has gone, and has what it takes with it.
        let _splitting = splitting;
        checked(&it, asked).map(|samples| Held::new(samples, room))
    };
    blocking(read).await.map_err(ApiError::internal)?
}

fn checked(service: &Service, asked: ScoreRequest) -> Result<Vec<ScoredSample>, ApiError> {
    let Ready { source, tokenizer } = service.get()?;
    // A trainer of the job says how the policy sees them; else the queries are split, here and for the model.
    if asked.policy.is_none() {
        source.check_texts(&asked.query).map_err(unfit)?;
    }
    let most = service.0.limits.samples;
    let samples = samples(asked, tokenizer.as_deref(), source.has_rules(), most)?;
    for sample in &samples {
        let checked = source.check_label(sample.label.as_ref());
        checked.map_err(|cause| unfit(format!("labels[{}]: {cause:#}", sample.index)))?;
    }
    Ok(samples)
}

fn unfit(what: impl std::fmt::Display) -> ApiError {
    ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, what.to_string())
}

fn failed(cause: Error) -> ApiError {
    if let Some(unscorable) = cause.downcast_ref::<Unscorable>() {
        return unfit(unscorable);
    }
    tracing::error!("scoring failed: {cause:#}");
    ApiError::internal(format!("{cause:#}"))
}

fn response(scored: Scores, digest: Option<&str>) -> ScoreResponse {
    let numbers = |scores: &[f32]| scores.iter().map(|score| Some(f64::from(*score))).collect();
    let (rewards, scores) = (numbers(&scored.scores), numbers(&scored.compared));
    let extra = scored.extra.into_iter().map(|(name, values)| (name, json!(values)));
    ScoreResponse {
        rewards: Some(rewards),
        scores: Some(scores),
        extra_logs: extra.collect(),
        model_digest: digest.map(str::to_owned),
    }
}

#[cfg(test)]
mod tests;
