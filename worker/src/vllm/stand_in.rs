//! A server that takes vLLM's place behind a door, so that tests can see what the door asks of it and when.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{StatusCode, Uri};
use axum::routing::{get, post};
use axum::{Json, Router};
use parking_lot::Mutex;
use ppo_crds::run_config::Location;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::generate::generate;
use super::service::Service;
use super::stall::Watch;
use crate::model::ModelConfig;
use crate::rollout::settings::{ModelSettings, Settings, VllmSettings};
use crate::serving::limits::Limits;

/// What was asked of a server that stands for vLLM, in order.
pub type Asked = Arc<Mutex<Vec<String>>>;

/// The model that is served: of the quickstart.
pub fn model() -> ModelConfig {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/quickstart/model");
    ModelConfig::read(folder.as_ref()).unwrap()
}

/// The door of a server that answers as vLLM does, but fails at `fails`. It has version 6, and says that it has 7 once asked;
/// weights for it are written to `folder`.
pub async fn door(fails: Option<&'static str>, folder: PathBuf) -> (Service, Asked) {
    door_within(Limits::default(), fails, folder).await
}

/// What a door is made with.
pub fn settings(limits: Limits) -> Settings {
    let mut model = ModelSettings::alone(Location::Path(PathBuf::new()), String::new());
    // Twice as many connections are open at once, at both of their ends.
    model.rollout.max_sequences = 64;
    Settings {
        address: "127.0.0.1:0".parse().unwrap(),
        metrics_address: None,
        token: None,
        open_metrics: true,
        model,
        limits,
        actor: None,
        vllm: None,
    }
}

/// As [`door`], with other limits.
pub async fn door_within(limits: Limits, fails: Option<&'static str>, folder: PathBuf) -> (Service, Asked) {
    let asked = Asked::default();
    let notes = asked.clone();
    let answer = async move |uri: Uri, body: Bytes| {
        notes
            .lock()
            .push(format!("{uri} {}", String::from_utf8_lossy(&body)).trim().to_owned());
        if fails == Some(uri.path()) {
            return (
                StatusCode::INTERNAL_SERVER_ERROR,
                Json(json!({"error": {"message": "out of memory"}})),
            );
        }
        let logprobs = json!({"token_logprobs": [-0.5], "tokens": ["a"], "top_logprobs": [{"a": -0.5}]});
        let choices = json!([{"text": String::from_utf8_lossy(&body), "logprobs": logprobs}]);
        let said = json!({"is_paused": false, "success": true, "weight_version": "7", "choices": choices});
        (StatusCode::OK, Json(said))
    };
    (door_of(Router::new().fallback(answer), limits, folder).await, asked)
}

/// The door of a server that answers as `router` does, and has version 6.
pub async fn door_of(router: Router, limits: Limits, folder: PathBuf) -> Service {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(axum::serve(listener, router).into_future());
    let vllm = VllmSettings {
        address,
        folder,
        start_deadline: Duration::from_secs(60),
    };
    let service = Service::new(&settings(limits), vllm).unwrap();
    service.ready(model(), 6).await;
    service
}

/// Looks at a [`silent`] vLLM as at a real one, only faster.
pub const QUICK: Watch = Watch {
    every: Duration::from_millis(5),
    limit: Duration::from_millis(50),
};

/// vLLM's metrics as far as they tell how far it has computed. Those of its server move by themselves.
pub fn counters(prompts: usize, tokens: usize, cache: f64) -> String {
    static SECONDS: AtomicUsize = AtomicUsize::new(0);
    let labels = r#"{engine="0",model_name="policy"}"#;
    format!(
        "vllm:prompt_tokens_total{labels} {prompts}.0\nvllm:generation_tokens_total{labels} {tokens}.0\n\
         vllm:kv_cache_usage_perc{labels} {cache}\nprocess_cpu_seconds_total {}\n",
        SECONDS.fetch_add(1, Ordering::Relaxed)
    )
}

/// The door of a vLLM that is well by its own word, takes requests and never answers. Its metrics are what `metrics` makes of the number of
/// times that it was asked for them.
pub async fn silent(metrics: fn(usize) -> String, is_paused: bool) -> Service {
    let looks = Arc::new(AtomicUsize::new(0));
    let metrics = move || std::future::ready(metrics(looks.fetch_add(1, Ordering::Relaxed)));
    let pauses = move || std::future::ready(Json(json!({"is_paused": is_paused})));
    let router = Router::new()
        .route("/health", get(|| async {}))
        .route("/v1/completions", post(std::future::pending::<()>))
        .route("/is_paused", get(pauses))
        .route("/metrics", get(metrics));
    door_of(router, Limits::default(), "unused".into()).await
}

/// A client whose request is at vLLM, and that waits for its answer.
pub async fn ask(service: &Service) -> JoinHandle<()> {
    let (it, path) = (service.clone(), Uri::from_static("/v1/completions"));
    let request = Request::post(path.clone()).header(CONTENT_TYPE, "application/json");
    let request = request.body(Body::from(json!({"prompt": [1]}).to_string())).unwrap();
    let asking = tokio::spawn(async move { drop(generate(State(it), path, request).await) });
    until_at_vllm(service, 1).await;
    asking
}

/// Waits until vLLM has so many requests.
pub async fn until_at_vllm(service: &Service, requests: usize) {
    let ends = Instant::now() + Duration::from_secs(20);
    while service.names.at_vllm() != requests {
        assert!(Instant::now() < ends, "vLLM has {}", service.names.at_vllm());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
