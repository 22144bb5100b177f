//! Pause, resume, abort.

use serde_json::json;

use crate::support::{Server, ids, long};

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_that_aborts_returns_the_tokens_so_far_and_refuses_more_until_resumed() {
    let server = Server::start().await;
    let running = tokio::spawn(server.post("/v1/completions", long(60_000)).send());
    server.until_busy().await;
    assert_eq!(server.ok("/pause?mode=abort", json!({})).await["status"], "paused");
    let answer: serde_json::Value = running.await.unwrap().unwrap().json().await.unwrap();
    assert_eq!(answer["choices"][0]["finish_reason"], "abort");
    assert!(ids(&answer["choices"][0]).len() < 60_000);
    assert_eq!(server.get_json("/is_paused").await["is_paused"], true);
    let refused = server.post("/v1/completions", long(3)).send().await.unwrap();
    assert_eq!(refused.status(), 503);
    assert_eq!(refused.headers()["retry-after"], "1");
    assert_eq!(
        server.get("/readyz").await.status(),
        200,
        "a trainer's pause takes no server out of its Service"
    );
    server.ok("/resume", json!({})).await;
    server.ok("/v1/completions", long(3)).await;
    assert_eq!(server.get_json("/is_paused").await["is_paused"], false);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_that_waits_finishes_what_is_in_flight() {
    let server = Server::start().await;
    let running = tokio::spawn(server.post("/v1/completions", long(2000)).send());
    server.until_busy().await;
    server.ok("/pause?mode=wait", json!({})).await;
    let answer: serde_json::Value = running.await.unwrap().unwrap().json().await.unwrap();
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(
        server.error("/v1/completions", long(3), 503).await,
        "generation is paused: try again after /resume"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_that_is_resumed_before_nothing_is_in_flight_does_not_say_that_it_paused() {
    let server = Server::start().await;
    let running = tokio::spawn(server.post("/v1/completions", long(60_000)).send());
    server.until_busy().await;
    let pausing = tokio::spawn(server.post("/pause?mode=wait", json!({})).send());
    server
        .until("a pause", async || {
            server.get_json("/is_paused").await["is_paused"] == true
        })
        .await;
    server.ok("/resume", json!({})).await;
    assert_eq!(pausing.await.unwrap().unwrap().status(), 409);
    assert_eq!(server.get_json("/is_paused").await["is_paused"], false);
    running.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_that_keeps_freezes_and_goes_on_with_the_same_tokens() {
    let server = Server::start().await;
    let whole = server.ok("/v1/completions", long(3000)).await;
    let running = tokio::spawn(server.post("/v1/completions", long(3000)).send());
    server.until_busy().await;
    server.ok("/pause?mode=keep", json!({})).await;
    let queued = tokio::spawn(server.post("/v1/completions", long(5)).send());
    let frozen = server.metric("vllm:generation_tokens_total").await;
    server
        .until("a queued request", async || {
            server.metric("vllm:num_requests_waiting").await > 0.0
        })
        .await;
    assert_eq!(server.metric("vllm:generation_tokens_total").await, frozen);
    server.ok("/resume", json!({})).await;
    let answer: serde_json::Value = running.await.unwrap().unwrap().json().await.unwrap();
    assert_eq!(ids(&answer["choices"][0]), ids(&whole["choices"][0]));
    assert_eq!(queued.await.unwrap().unwrap().status(), 200);
    assert!(server.error("/pause?mode=halt", json!({}), 400).await.contains("halt"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_aborted_by_its_name_and_others_go_on() {
    let server = Server::start().await;
    let mut named = long(60_000);
    named["request_id"] = json!("r-1");
    let running = tokio::spawn(server.post("/v1/completions", named).send());
    let other = tokio::spawn(server.post("/v1/completions", long(4000)).send());
    server
        .until("two running", async || {
            server.metric("vllm:num_requests_running").await == 2.0
        })
        .await;
    let aborted = server
        .ok("/abort_requests", json!({"request_ids": ["r-1", "r-2"]}))
        .await;
    assert_eq!(aborted, json!({"status": "aborted", "aborted": 1}));
    let answer: serde_json::Value = running.await.unwrap().unwrap().json().await.unwrap();
    assert_eq!(
        (&answer["id"], &answer["choices"][0]["finish_reason"]),
        (&json!("cmpl-r-1"), &json!("abort"))
    );
    let answer: serde_json::Value = other.await.unwrap().unwrap().json().await.unwrap();
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(server.ok("/abort_requests", json!({})).await["aborted"], 0);
    // No names are all, as in vLLM; a list is no object without names. The name in the header is the request's, as there.
    let mut named = long(60_000);
    named["request_id"] = json!("of-body");
    let request = server
        .post("/v1/completions", named)
        .header("x-request-id", "of-header");
    let running = tokio::spawn(request.send());
    server.until_busy().await;
    for list in [json!([]), json!([["of-header"]])] {
        let refused = server.error("/abort_requests", list, 400).await;
        assert!(refused.contains("an object with the request's fields"), "{refused}");
    }
    let aborted = server.ok("/abort_requests", json!({"request_ids": ["of-body"]})).await;
    assert_eq!(aborted["aborted"], 0);
    let aborted = server.ok("/abort_requests", json!({"request_ids": []})).await;
    assert_eq!(aborted["aborted"], 1);
    let answer: serde_json::Value = running.await.unwrap().unwrap().json().await.unwrap();
    assert_eq!(answer["choices"][0]["finish_reason"], "abort");
    assert_eq!(answer["id"], "cmpl-of-header");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_prompt_of_a_request_is_aborted_by_its_name_and_the_others_go_on() {
    let server = Server::start().await;
    let mut named = long(60_000);
    named["prompt"] = json!([[5, 6, 7], [8, 9]]);
    named["request_id"] = json!("r-1");
    let request = tokio::spawn(server.post("/v1/completions", named).send());
    let running = async || server.metric("vllm:num_requests_running").await;
    let drawn = async || server.metric("vllm:generation_tokens_total").await;
    server.until("two running", async || running().await == 2.0).await;
    let names = json!({"request_ids": ["cmpl-r-1-1", "cmpl-r-1-2"]});
    assert_eq!(server.ok("/abort_requests", names).await["aborted"], 1);
    server.until("one running", async || running().await == 1.0).await;
    let so_far = drawn().await;
    server.until("another token", async || drawn().await > so_far).await;
    let names = json!({"request_ids": ["cmpl-r-1"]});
    assert_eq!(server.ok("/abort_requests", names).await["aborted"], 1);
    let answer: serde_json::Value = request.await.unwrap().unwrap().json().await.unwrap();
    let choices = answer["choices"].as_array().unwrap();
    assert!(choices.iter().all(|choice| choice["finish_reason"] == "abort"));
    assert!(ids(&choices[1]).len() < ids(&choices[0]).len());
}
