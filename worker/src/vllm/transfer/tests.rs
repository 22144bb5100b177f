use std::path::PathBuf;
use std::sync::{Arc, Mutex as SyncMutex};

use axum::Router;
use axum::body::Bytes;
use axum::http::Uri;
use ppo_crds::run_config::Location;
use tokio::net::TcpListener;

use super::*;
use crate::model::ModelConfig;
use crate::rollout::limits::Limits;
use crate::rollout::settings::{ModelSettings, Settings, VllmSettings};

/// What was asked of a server that stands for vLLM, in order.
type Asked = Arc<SyncMutex<Vec<String>>>;

/// The door of a server that answers as vLLM does, but fails at `fails`.
async fn door(fails: Option<&'static str>) -> (Service, Asked) {
    let asked = Asked::default();
    let notes = asked.clone();
    let answer = async move |uri: Uri, body: Bytes| {
        notes
            .lock()
            .unwrap()
            .push(format!("{uri} {}", String::from_utf8_lossy(&body)).trim().to_owned());
        if fails == Some(uri.path()) {
            return (
                StatusCode::INTERNAL_SERVER_ERROR,
                Json(json!({"error": {"message": "NCCL error"}})),
            );
        }
        let said = json!({"is_paused": false, "success": true, "weight_version": "7"});
        (StatusCode::OK, Json(said))
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serving = axum::serve(listener, Router::new().fallback(answer));
    tokio::spawn(serving.into_future());
    let settings = Settings {
        address: "127.0.0.1:0".parse().unwrap(),
        metrics_address: None,
        token: None,
        open_metrics: true,
        model: ModelSettings::alone(Location::Path(PathBuf::new()), String::new()),
        limits: Limits::default(),
        actor: None,
        vllm: None,
    };
    let folder = PathBuf::from("unused");
    let service = Service::new(&settings, VllmSettings { address, folder }).unwrap();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/quickstart/model");
    service.ready(ModelConfig::read(model.as_ref()).unwrap(), 6).await;
    (service, asked)
}

fn init() -> Request {
    let body = json!({"init_info": {"nccl_unique_id_b64": "aWQ=", "rank_offset": 1, "world_size": 3, "packed": false}});
    let request = Request::post("/init_weight_transfer_engine").header("content-type", "application/json");
    request.body(body.to_string().into()).unwrap()
}

fn transfer() -> Transfer {
    Transfer {
        nccl_unique_id_b64: "aWQ=".into(),
        update_info: UpdateInfo {
            names: vec!["w".into()],
            dtype_names: vec!["bfloat16".into()],
            shapes: vec![vec![2, 3]],
        },
    }
}

#[tokio::test]
async fn vllm_leaves_joins_and_receives_between_a_pause_and_a_resume_with_its_caches_emptied() {
    let (service, asked) = door(None).await;
    drop(join(State(service.clone()), init()).await.unwrap());
    receive(&service, 7, transfer()).await.unwrap();
    assert_eq!(service.version(), Some(7));
    let asked = asked.lock().unwrap();
    let expected = [
        "/shutdown_weight_transfer_engine {}",
        r#"/init_weight_transfer_engine {"init_info":{"nccl_unique_id_b64":"aWQ=","rank_offset":1,"world_size":3,"packed":false}}"#,
        "/is_paused",
        "/pause?mode=wait {}",
        "/start_weight_update {}",
        r#"/update_weights {"update_info":{"names":["w"],"dtype_names":["bfloat16"],"shapes":[[2,3]]}}"#,
        r#"/finish_weight_update {"weight_version":"7"}"#,
        "/weight_info",
        "/reset_prefix_cache {}",
        "/resume {}",
    ];
    assert_eq!(*asked, expected);
}

#[tokio::test]
async fn a_transfer_by_a_communicator_that_vllm_has_not_joined_is_refused_before_vllm_is_asked_for_anything() {
    let (service, asked) = door(None).await;
    let error = receive(&service, 7, transfer()).await.unwrap_err();
    assert_eq!(error.status, StatusCode::CONFLICT);
    assert_eq!(service.version(), Some(6));
    assert!(asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_communicator_that_vllm_could_not_join_is_not_received_from() {
    let (service, _) = door(Some("/init_weight_transfer_engine")).await;
    let error = join(State(service.clone()), init()).await.unwrap_err();
    assert!(error.message.contains("NCCL error"), "{error}");
    let error = receive(&service, 7, transfer()).await.unwrap_err();
    assert_eq!(error.status, StatusCode::CONFLICT);
}

#[tokio::test]
async fn a_transfer_that_fails_half_way_leaves_no_version_and_ends_the_door() {
    let (service, _) = door(Some("/update_weights")).await;
    drop(join(State(service.clone()), init()).await.unwrap());
    receive(&service, 7, transfer()).await.unwrap_err();
    assert_eq!(service.version(), None);
    let ended = tokio::time::timeout(Duration::from_secs(20), service.ended()).await;
    assert!(ended.unwrap().contains("NCCL error"));
}
