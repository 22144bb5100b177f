//! The paths of a reward server, and the function that answers each.

use std::sync::{Arc, OnceLock};

use anyhow::{Result, bail};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router, middleware};
use serde_json::json;

use super::mix::{RewardSource, Scores};
use super::protocol::{ScoreRequest, ScoreResponse};
use super::question::samples;
use crate::serving;
use crate::serving::auth::{Door, authorize};
use crate::serving::body::{self, Bodies};
use crate::serving::error::ApiError;
use crate::serving::fallback::in_words;
use crate::serving::limits::Limits;
use crate::telemetry::Exposition;
use crate::tokenizer::Tokenizer;

/// What every request sees. It starts unready, so that probes are answered while a model loads.
#[derive(Clone)]
pub struct Service(Arc<Shared>);

struct Shared {
    door: Door,
    bodies: Bodies,
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
    serving::probes(service.0.exposition.clone(), move || shown.get().map(drop))
}

async fn score(State(service): State<Service>, request: Request) -> Result<Json<ScoreResponse>, ApiError> {
    let ready = service.get()?;
    let limits = &service.0.limits;
    let (asked, _room): (ScoreRequest, _) = body::held(&service.0.bodies, request).await?;
    let has_rules = ready.source.has_rules();
    let samples = samples(asked, ready.tokenizer.as_deref(), has_rules, limits.samples)?;
    for sample in &samples {
        let unfit = |cause| {
            let what = format!("labels[{}]: {cause:#}", sample.index);
            ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, what)
        };
        ready.source.check_label(sample.label.as_ref()).map_err(unfit)?;
    }
    let limit = limits.request_timeout;
    let late = |_| {
        let words = format!(
            "the samples were not scored within {} s, others before them included: ask for fewer at once, or give this server more cores or \
             GPUs",
            limit.as_secs_f64()
        );
        ApiError::new(StatusCode::GATEWAY_TIMEOUT, words)
    };
    let scored = tokio::time::timeout(limit, ready.source.score(&samples)).await;
    let scored = scored.map_err(late)?;
    let answered = scored.map(|scored| Json(answer(scored, ready.source.digest())));
    answered.map_err(|cause| {
        tracing::error!("scoring failed: {cause:#}");
        ApiError::internal(format!("{cause:#}"))
    })
}

fn answer(scored: Scores, digest: Option<&str>) -> ScoreResponse {
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
