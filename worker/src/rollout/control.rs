//! Pause, resume and abort, as vLLM has them (`vllm/entrypoints/rl/online/api_router.py`).

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::service::Service;
use crate::engine::Pause;
use crate::serving::body::{self, Object};
use crate::serving::error::ApiError;
use crate::serving::query::Query;

/// Query of `/pause`. `clear_cache` is accepted and has no effect: no cache outlives a request here.
#[derive(Debug, Deserialize)]
pub struct PauseQuery {
    #[serde(default = "abort")]
    mode: String,
    /// What vLLM had before it had `mode` (0.32 passes it over): true is `wait`, whatever the mode.
    #[serde(default)]
    wait_for_inflight_requests: String,
}

impl PauseQuery {
    fn pause(&self) -> Result<Pause, ApiError> {
        // In a query FastAPI takes each of these for a bool, and Python's requests writes True.
        match self.wait_for_inflight_requests.to_ascii_lowercase().as_str() {
            "" | "false" | "0" | "no" | "off" => {}
            "true" | "1" | "yes" | "on" => return Ok(Pause::Wait),
            other => {
                let words = format!("{other:?} is neither true nor false");
                return Err(ApiError::field("wait_for_inflight_requests", words));
            }
        }
        match self.mode.as_str() {
            "abort" => Ok(Pause::Abort),
            "wait" => Ok(Pause::Wait),
            "keep" => Ok(Pause::Keep),
            other => Err(ApiError::field(
                "mode",
                format!("{other:?} is none of abort, wait and keep"),
            )),
        }
    }
}

fn abort() -> String {
    "abort".to_owned()
}

/// Stops generation: `abort` ends what is in flight with the tokens it has, `wait` finishes it, `keep` freezes it. After the
/// first two new requests get 503 until `/resume`; with the third they wait.
///
/// # Errors
/// 400 for another mode; 409 when it is resumed, or frozen, before nothing is in flight; 504 when what is in flight does not end in time
/// (it goes on, and new requests are refused).
pub async fn pause(State(service): State<Service>, Query(query): Query<PauseQuery>) -> Result<Json<Value>, ApiError> {
    let engine = service.model()?.engine.clone();
    let pause = query.pause()?;
    let paused = service.set_paused(true, pause != Pause::Keep, || engine.pause(pause));
    let limit = service.limits.request_timeout;
    match tokio::time::timeout(limit, paused).await {
        Ok(paused) => paused?,
        Err(_) => {
            return Err(ApiError::new(
                StatusCode::GATEWAY_TIMEOUT,
                format!("requests were still in flight after {} s", limit.as_secs_f64()),
            ));
        }
    }
    Ok(Json(json!({"status": "paused"})))
}

/// Goes on after a pause.
///
/// # Errors
/// 503 without a model.
pub async fn resume(State(service): State<Service>) -> Result<Json<Value>, ApiError> {
    let engine = &service.model()?.engine;
    service.set_paused(false, false, || engine.resume());
    Ok(Json(json!({"status": "resumed"})))
}

/// Whether generation is paused.
pub async fn is_paused(State(service): State<Service>) -> Json<Value> {
    Json(json!({"is_paused": service.is_paused()}))
}

/// Body of `/abort_requests`; without names, or with an empty list of them, all requests are meant, as in vLLM.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AbortRequest {
    request_ids: Option<Vec<String>>,
}

/// Ends requests with the tokens they have.
///
/// # Errors
/// 503 without a model.
pub async fn abort_requests(State(service): State<Service>, request: Request) -> Result<Json<Value>, ApiError> {
    let Object(asked): Object<AbortRequest> = body::json(&service.bodies, request).await?;
    let engine = &service.model()?.engine;
    let names = asked.request_ids.filter(|names| !names.is_empty());
    let found = service.in_flight.find(names.as_deref());
    let aborted = found.len();
    engine.abort(found.into_iter().flatten().collect());
    Ok(Json(json!({"status": "aborted", "aborted": aborted})))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_way_to_ask_for_a_pause_that_waits_aborts_nothing() {
        let pause = |mode: &str, waits: &str| {
            let query = PauseQuery {
                mode: mode.to_owned(),
                wait_for_inflight_requests: waits.to_owned(),
            };
            query.pause().map_err(|error| error.param)
        };
        assert_eq!(pause("abort", ""), Ok(Pause::Abort));
        for waits in ["true", "True", "1"] {
            assert_eq!(pause("abort", waits), Ok(Pause::Wait), "{waits}");
        }
        assert_eq!(pause("keep", "False"), Ok(Pause::Keep));
        assert_eq!(pause("soon", ""), Err(Some("mode".into())));
        assert_eq!(pause("abort", "soon"), Err(Some("wait_for_inflight_requests".into())));
    }
}
