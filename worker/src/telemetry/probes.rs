//! The paths that say whether a role lives, whether it is ready, and its metrics.

use std::sync::Arc;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;

use super::Exposition;
use crate::serving::error::ApiError;

/// What kubelet and Prometheus ask of a role. It is ready once `ready` says so.
pub fn probes(
    exposition: Arc<Exposition>,
    ready: impl Fn() -> Result<(), ApiError> + Clone + Send + Sync + 'static,
) -> Router {
    let readyz = move || {
        let ready = ready();
        async move { ready.map(|()| "ready\n") }
    };
    let metrics = move || {
        let text = exposition.text().map_err(ApiError::internal);
        async move { text.map(|text| ([(CONTENT_TYPE, prometheus::TEXT_FORMAT)], text)) }
    };
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/health", get(|| async {}))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
}
