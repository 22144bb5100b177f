use super::*;
use crate::vllm::stand_in::{Asked, door as door_in};

/// Nothing is written to disk here.
async fn door(fails: Option<&'static str>) -> (Service, Asked) {
    door_in(fails, "unused".into()).await
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
    assert!(error.message.contains("out of memory"), "{error}");
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
    assert!(ended.unwrap().contains("out of memory"));
}
