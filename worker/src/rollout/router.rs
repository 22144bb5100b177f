//! The paths of a rollout server, and the function that answers each.

use axum::routing::{get, post};
use axum::{Router, middleware};

use super::service::Service;
use super::{chat, completions, control, info, metrics, weights};
use crate::serving::auth;
use crate::serving::fallback::{nothing_here, wrong_method};

/// The API. Every path asks for the token but those that [`auth`] names.
pub fn api(service: Service) -> Router {
    Router::new()
        .route("/v1/completions", post(completions::completions))
        .route("/v1/chat/completions", post(chat::chat))
        .route("/v1/models", get(info::models))
        .route("/v1/models/{*name}", get(info::model))
        .route("/tokenize", post(info::tokenize))
        .route("/detokenize", post(info::detokenize))
        .route("/version", get(info::version))
        .route("/pause", post(control::pause))
        .route("/resume", post(control::resume))
        .route("/is_paused", get(control::is_paused))
        .route("/abort_requests", post(control::abort_requests))
        .route("/update_weights", post(weights::update))
        .route("/weight_info", get(weights::info))
        .merge(probes())
        .fallback(nothing_here)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(service.door.clone(), auth::authorize))
        .with_state(service)
}

/// What kubelet and Prometheus ask, on a port of its own without a token.
pub fn observed(service: Service) -> Router {
    probes().fallback(nothing_here).with_state(service)
}

fn probes() -> Router<Service> {
    Router::new()
        .route("/health", get(info::health))
        .route("/ping", get(info::health).post(info::health))
        .route("/healthz", get(info::healthz))
        .route("/readyz", get(info::readyz))
        .route("/metrics", get(metrics::metrics))
}
