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

fn of(attempt: Option<u32>) -> Query<InitQuery> {
    Query(InitQuery { attempt })
}

/// A version of the actor's second attempt.
fn given(version: u64) -> PolicyVersion {
    PolicyVersion {
        attempt: Some(2),
        version,
    }
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
    drop(join(State(service.clone()), of(None), init()).await.unwrap());
    receive(&service, given(7), transfer()).await.unwrap();
    assert_eq!(service.held(), Some(given(7)));
    let asked = asked.lock();
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
    let error = receive(&service, given(7), transfer()).await.unwrap_err();
    assert_eq!(error.status, StatusCode::CONFLICT);
    assert_eq!(service.held().unwrap().version, 6);
    assert!(asked.lock().is_empty());
}

#[tokio::test]
async fn a_communicator_that_vllm_could_not_join_is_not_received_from() {
    let (service, _) = door(Some("/init_weight_transfer_engine")).await;
    let error = join(State(service.clone()), of(None), init()).await.unwrap_err();
    assert!(error.message.contains("out of memory"), "{error}");
    let error = receive(&service, given(7), transfer()).await.unwrap_err();
    assert_eq!(error.status, StatusCode::CONFLICT);
}

#[tokio::test]
async fn a_transfer_that_fails_half_way_leaves_no_version_and_ends_the_door() {
    let (service, _) = door(Some("/update_weights")).await;
    drop(join(State(service.clone()), of(None), init()).await.unwrap());
    receive(&service, given(7), transfer()).await.unwrap_err();
    assert_eq!(service.held(), None);
    let ended = tokio::time::timeout(Duration::from_secs(20), service.ended()).await;
    assert!(ended.unwrap().contains("out of memory"));
}

#[tokio::test]
async fn an_older_attempt_of_the_actor_takes_vllm_from_no_newer_one() {
    let (service, asked) = door(None).await;
    drop(join(State(service.clone()), of(Some(2)), init()).await.unwrap());
    let joined = asked.lock().len();
    let error = join(State(service.clone()), of(Some(1)), init()).await.unwrap_err();
    assert_eq!(error.status, StatusCode::CONFLICT);
    let older = PolicyVersion {
        attempt: Some(1),
        version: 9,
    };
    let error = receive(&service, older, transfer()).await.unwrap_err();
    assert!(error.message.contains("attempt 2 of the actor"), "{error}");
    assert_eq!(asked.lock().len(), joined, "vLLM heard nothing of it");
    receive(&service, given(7), transfer()).await.unwrap();
}
