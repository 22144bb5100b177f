//! `/metrics`, under vLLM's names.

use std::time::Duration;

use anyhow::Result;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use super::service::Service;
use crate::engine::Engine;
use crate::serving::error::ApiError;
use crate::telemetry::Exposition;

/// What is counted.
pub struct Metrics {
    exposition: Exposition,
    model_name: String,
}

impl Metrics {
    /// Nothing yet, for the model of that name.
    ///
    /// # Errors
    /// When a metric's name is not one Prometheus takes.
    pub fn new(model_name: &str) -> Result<Self> {
        Ok(Self {
            exposition: Exposition::new(model_name)?,
            model_name: model_name.to_owned(),
        })
    }

    /// A request was answered in full.
    pub fn answered(&self, took: Duration) {
        self.observe(|requests| requests.end_to_end(took));
    }

    /// A stream's first token was drawn.
    pub fn first_token(&self, took: Duration) {
        self.observe(|requests| requests.first_token(took));
    }

    /// A further token of a stream was drawn.
    pub fn next_token(&self, took: Duration) {
        self.observe(|requests| requests.next_token(took));
    }

    fn observe(&self, note: impl FnOnce(&crate::telemetry::RequestTimes)) {
        match self.exposition.requests(&self.model_name) {
            Ok(requests) => note(&requests),
            Err(error) => tracing::error!("{error:#}"),
        }
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
