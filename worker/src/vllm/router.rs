//! The paths of the door, and what answers each. A path that is not listed here cannot be reached, whatever vLLM has there.

use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use reqwest::Method;
use serde_json::Value;
use serde_json::value::RawValue;

use super::generate::generate;
use super::service::Service;
use super::{abort, transfer};
use crate::rollout::follow::Follower;
use crate::rollout::weights::{LoadedWeights, UploadQuery, is_stream};
use crate::serving::auth::authorize;
use crate::serving::body;
use crate::serving::error::ApiError;
use crate::serving::fallback::{nothing_here, wrong_method};
use crate::serving::query::Query;

/// The API, for those who have the token.
pub fn api(service: Service) -> Router {
    Router::new()
        .route("/v1/completions", post(generate))
        .route("/v1/chat/completions", post(generate))
        .route("/v1/models", get(forward))
        .route("/v1/models/{*name}", get(model))
        .route("/tokenize", post(forward_body))
        .route("/detokenize", post(forward_body))
        .route("/version", get(forward))
        .route("/pause", post(pause))
        .route("/resume", post(pause))
        // As it is at the moment, as vLLM says it to whoever updates its weights step by step: an update pauses it too.
        .route("/is_paused", get(forward))
        .route("/abort_requests", post(abort::abort_requests))
        .route("/update_weights", post(update))
        .route("/get_world_size", get(forward))
        .route("/init_weight_transfer_engine", post(transfer::join))
        .route("/weight_info", get(weight_info))
        .merge(probes())
        .fallback(nothing_here)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(service.door.clone(), authorize))
        .with_state(service)
}

/// What kubelet and Prometheus ask, on a port of its own without a token.
pub fn observed(service: Service) -> Router {
    probes().fallback(nothing_here).with_state(service)
}

fn probes() -> Router<Service> {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/health", get(health))
        .route("/ping", get(health).post(health))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
}

/// vLLM's own health once it is up, and 503 before: a vLLM without a door does not even listen then.
async fn health(State(service): State<Service>) -> Result<(), ApiError> {
    service.model()?;
    service.vllm.health().await
}

async fn readyz(State(service): State<Service>) -> Result<&'static str, ApiError> {
    service.model().map(|_| "ready\n")
}

/// vLLM's own. One that starts has none yet and is well: a scraper takes whatever is no success for a target that is down.
async fn metrics(State(service): State<Service>) -> Result<Response, ApiError> {
    let text = match service.model() {
        Ok(_) => service.vllm.metrics(service.limits.body_timeout).await?,
        Err(_) => String::new(),
    };
    Ok(([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response())
}

/// Which weights vLLM has; those that are on their way to it are waited for.
pub(super) async fn weight_info(State(service): State<Service>) -> Result<Json<LoadedWeights>, ApiError> {
    service.model()?;
    service.updates.none().await;
    let (_held, policy) = service.hold().await?;
    Ok(Json(LoadedWeights::of(policy)))
}

/// The actor's new weights: as a stream, or by NCCL.
async fn update(
    State(service): State<Service>,
    Query(query): Query<UploadQuery>,
    headers: HeaderMap,
    request: Request,
) -> Result<Json<LoadedWeights>, ApiError> {
    service.model()?;
    let policy = query.policy()?;
    if is_stream(&headers) {
        service.take(policy, request.into_body().into_data_stream()).await?;
    } else {
        let transfer = body::json(&service.bodies, request).await?;
        transfer::receive(&service, policy, transfer).await?;
    }
    Ok(Json(LoadedWeights::of(policy)))
}

/// The model of that name in vLLM's list, as OpenAI's clients ask for it: vLLM has no such path.
async fn model(State(service): State<Service>, Path(name): Path<String>) -> Result<Json<Value>, ApiError> {
    let Json(mut models) = forward(State(service), Uri::from_static("/v1/models")).await?;
    let listed = models.get_mut("data").and_then(Value::as_array_mut);
    let listed = listed.map(std::mem::take).unwrap_or_default();
    let card = listed.into_iter().find(|card| card["id"] == name.as_str());
    card.map(Json).ok_or_else(|| {
        let words = format!("there is no model {name:?} here: /v1/models lists those that are served");
        ApiError::new(StatusCode::NOT_FOUND, words)
    })
}

async fn forward(State(service): State<Service>, uri: Uri) -> Result<Json<Value>, ApiError> {
    service.model()?;
    let call = service.vllm.request(Method::GET, uri.path());
    service.vllm.json(call, service.limits.body_timeout).await.map(Json)
}

/// What is sent goes on as it is: parsed it would take many times the memory of its text, which counts until vLLM has answered.
async fn forward_body(State(service): State<Service>, uri: Uri, request: Request) -> Result<Json<Value>, ApiError> {
    service.model()?;
    let (body, _room): (Box<RawValue>, _) = body::held(&service.bodies, request).await?;
    pass_on(&service, &uri, &body).await
}

/// `/pause` and `/resume`.
async fn pause(State(service): State<Service>, uri: Uri, request: Request) -> Result<Json<Value>, ApiError> {
    service.model()?;
    let (body, _room): (Box<RawValue>, _) = body::held(&service.bodies, request).await?;
    let _steady = service.vllm.between_updates().await;
    pass_on(&service, &uri, &body).await
}

async fn pass_on(service: &Service, uri: &Uri, body: &RawValue) -> Result<Json<Value>, ApiError> {
    let path = uri.path_and_query().map_or(uri.path(), |whole| whole.as_str());
    let call = service.vllm.request(Method::POST, path).json(body);
    service.vllm.json(call, service.limits.request_timeout).await.map(Json)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::body::Body;
    use serde_json::json;
    use tokio::net::TcpListener;
    use tokio::sync::watch;

    use super::*;
    use crate::rollout::settings::VllmSettings;
    use crate::serving::Limits;
    use crate::vllm::stand_in::{Asked, door, door_of, settings};

    #[tokio::test]
    async fn a_client_that_pauses_vllm_while_it_reloads_finds_it_paused_afterwards() {
        let (asked, (load, loads)) = (Asked::default(), watch::channel(false));
        let notes = asked.clone();
        let answer = move |uri: Uri| {
            let (notes, mut loads) = (notes.clone(), loads.clone());
            async move {
                notes.lock().push(uri.to_string());
                if uri.path() == "/collective_rpc" {
                    drop(loads.wait_for(|loads| *loads).await);
                }
                Json(json!({"is_paused": false, "success": true, "weight_version": "7"}))
            }
        };
        let service = door_of(Router::new().fallback(answer), Limits::default(), "unused".into()).await;
        let vllm = service.vllm.clone();
        let reloading = async move { vllm.reload("unused".as_ref(), 7, Duration::from_secs(20)).await };
        let reloading = tokio::spawn(reloading);
        while asked.lock().last().is_none_or(|path| path != "/collective_rpc") {
            assert!(!reloading.is_finished());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let request = Request::post("/pause?mode=keep").body(Body::empty()).unwrap();
        let pausing = pause(State(service), Uri::from_static("/pause?mode=keep"), request);
        let mut pausing = std::pin::pin!(pausing);
        let early = tokio::time::timeout(Duration::from_millis(100), &mut pausing).await;
        assert!(early.is_err(), "it waits");
        load.send_replace(true);
        reloading.await.unwrap().unwrap();
        drop(pausing.await.unwrap());
        let asked = asked.lock();
        assert_eq!(asked[asked.len() - 2..], ["/resume", "/pause?mode=keep"]);
    }

    #[tokio::test]
    async fn a_model_is_found_by_its_name_in_vllms_list() {
        let list = json!({"object": "list", "data": [{"id": "policy", "max_model_len": 64}, {"id": "some/lora"}]});
        let router = Router::new().route("/v1/models", get(move || async move { Json(list) }));
        let service = door_of(router, Limits::default(), "unused".into()).await;
        let named = async |name: &str| model(State(service.clone()), Path(name.to_owned())).await;
        assert_eq!(named("policy").await.unwrap().0["max_model_len"], 64);
        assert_eq!(named("some/lora").await.unwrap().0["id"], "some/lora");
        assert_eq!(named("other").await.unwrap_err().status, StatusCode::NOT_FOUND);
    }

    #[tokio::test]
    async fn it_is_not_healthy_before_vllm_is_up() {
        let (up, asked) = door(None, "unused".into()).await;
        assert!(health(State(up)).await.is_ok());
        assert_eq!(*asked.lock(), ["/health"]);
        let vllm = VllmSettings {
            address: "127.0.0.1:1".into(),
            folder: "unused".into(),
            start_deadline: Duration::from_secs(60),
        };
        let loading = Service::new(&settings(Limits::default()), vllm).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(axum::serve(listener, api(loading)).into_future());
        let client = crate::http_client::builder().build().unwrap();
        for path in ["/health", "/ping"] {
            let answer = client.get(format!("{url}{path}")).send().await.unwrap();
            assert_eq!(answer.status().as_u16(), 503, "{path}");
        }
    }

    #[tokio::test]
    async fn what_the_door_does_not_read_goes_on_to_vllm_as_it_was_sent() {
        let (service, asked) = door(None, "unused".into()).await;
        let body = r#"{"prompt": "x",  "deep": [[1.50]]}"#;
        let request = Request::post("/tokenize").header(header::CONTENT_TYPE, "application/json");
        let request = request.body(body.into()).unwrap();
        let answer = forward_body(State(service), Uri::from_static("/tokenize"), request).await;
        assert_eq!(answer.unwrap().0["success"], true);
        assert_eq!(*asked.lock(), [format!("/tokenize {body}")]);
    }
}
