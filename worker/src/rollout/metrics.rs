//! `/metrics`, under vLLM's names.

use std::time::Duration;

use anyhow::Result;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use super::service::Service;
use crate::engine::{Engine, Request, Waited};
use crate::serving::error::ApiError;
use crate::telemetry::{Exposition, RequestTimes};

/// What is counted.
pub struct Metrics {
    exposition: Exposition,
    requests: RequestTimes,
    model_name: String,
}

impl Metrics {
    /// Nothing yet, for the model of that name.
    ///
    /// # Errors
    /// When a metric's name is not one Prometheus takes.
    pub fn new(model_name: &str) -> Result<Self> {
        let exposition = Exposition::new(model_name)?;
        Ok(Self {
            requests: exposition.requests(model_name)?,
            exposition,
            model_name: model_name.to_owned(),
        })
    }

    /// A request was answered in full, with samples of each of its `prompts`.
    pub fn answered(&self, took: Duration, prompts: &[Request]) {
        self.requests.end_to_end(took);
        for prompt in prompts {
            self.requests
                .asked_for(prompt.seeds.len(), prompt.params.max_new_tokens);
        }
    }

    /// Times every token and sample that the engine draws from now on, streamed or not, as vLLM does (`IterationStats.update_from_output` in
    /// `vllm/v1/metrics/stats.py`).
    pub fn time_tokens(&self, engine: &Engine) {
        let requests = self.requests.clone();
        engine.time_tokens(move |waited| match waited {
            Waited::First(took) => requests.first_token(took),
            Waited::Next(took) => requests.next_token(took),
            Waited::All(spent) => requests.ended(spent),
        });
    }

    fn text(&self, engine: Option<&Engine>) -> Result<String> {
        if let Some(engine) = engine {
            self.exposition.engine(&self.model_name, &engine.stats())?;
        }
        self.exposition.text()
    }
}

/// `/metrics`; without a model only what is known without one.
///
/// # Errors
/// 500 when the metrics cannot be encoded.
pub async fn metrics(State(service): State<Service>) -> Result<Response, ApiError> {
    let engine = service.model().ok().map(|model| &model.engine);
    let text = service
        .metrics
        .text(engine)
        .map_err(|error| ApiError::internal(format!("{error:#}")))?;
    Ok(([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response())
}
