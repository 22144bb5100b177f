//! A server that takes vLLM's place behind a door, so that tests can see what the door asks of it and when.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{StatusCode, Uri};
use axum::{Json, Router};
use parking_lot::Mutex;
use ppo_crds::run_config::Location;
use serde_json::json;
use tokio::net::TcpListener;

use super::service::Service;
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
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serving = axum::serve(listener, Router::new().fallback(answer));
    tokio::spawn(serving.into_future());
    let vllm = VllmSettings {
        address,
        folder,
        start_deadline: Duration::from_secs(60),
    };
    let service = Service::new(&settings(limits), vllm).unwrap();
    service.ready(model(), 6).await;
    (service, asked)
}
