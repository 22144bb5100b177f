//! New weights under a running server.

use std::time::Duration;

use ppo_worker::model::digest::digest;
use ppo_worker::model::{ModelConfig, Weights};
use ppo_worker::rollout::weights::frame;
use serde_json::{Value, json};
use tch::{Kind, Tensor};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{LONG, Server, ids, long, make_model};

/// Another model of the same shape: its folder, its tensors.
fn other(server: &Server, seed: u64) -> (std::path::PathBuf, Weights) {
    let folder = server.folder.path().join(format!("other-{seed}"));
    make_model(&folder, seed);
    let config = ModelConfig::read(&folder).unwrap();
    let weights = Weights::load(&folder, &config, Kind::Float).unwrap();
    (folder, weights)
}

fn stream_of(weights: &Weights) -> Vec<u8> {
    frame::pieces(weights.shallow_clone())
        .unwrap()
        .map(Result::unwrap)
        .collect::<Vec<_>>()
        .concat()
}

async fn upload(server: &Server, version: &str, body: Vec<u8>) -> (u16, Value) {
    let url = format!("{}/update_weights?weight_version={version}", server.url);
    let request = server
        .client
        .post(url)
        .header("content-type", "application/octet-stream")
        .body(body);
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap_or(Value::Null))
}

#[tokio::test(flavor = "multi_thread")]
async fn new_weights_from_a_folder_change_tokens_and_versions_between_two_steps() {
    let server = Server::start().await;
    let (folder, weights) = other(&server, 1);
    let wanted = digest(&weights).unwrap().to_string();
    let mut request = long(6000);
    request["return_weight_versions"] = json!(true);
    let before = server.ok("/v1/completions", request.clone()).await["choices"][0].clone();
    let running = tokio::spawn(server.post("/v1/completions", request.clone()).send());
    server.until_busy().await;
    let update = json!({"path": folder, "weight_version": "13", "digest": wanted});
    assert_eq!(
        server.ok("/update_weights", update).await,
        json!({"weight_version": "13", "digest": wanted, "takes_delta": true})
    );
    assert_eq!(
        server.get_json("/weight_info").await,
        json!({"weight_version": "13", "digest": wanted, "takes_delta": true})
    );
    let answer: Value = running.await.unwrap().unwrap().json().await.unwrap();
    let across = &answer["choices"][0];
    let spans = across["weight_versions"].as_array().unwrap();
    assert_eq!(
        (&spans[0]["version"], &spans[1]["version"]),
        (&json!("0"), &json!("13"))
    );
    assert_eq!((&spans[0]["start"], &spans[1]["end"]), (&json!(0), &json!(6000)));
    let end = spans[0]["end"].as_u64().unwrap() as usize;
    assert_eq!(spans[1]["start"], end);
    assert_eq!(ids(across)[..end], ids(&before)[..end]);
    assert_ne!(ids(across), ids(&before));
    // A server that started with these weights says the same.
    let fresh = Server::start_with(crate::support::Wanted {
        seed: 1,
        ..Default::default()
    })
    .await;
    let after = server.ok("/v1/completions", long(50)).await["choices"][0].clone();
    assert_eq!(after, fresh.ok("/v1/completions", long(50)).await["choices"][0]);
}

/// What is not held up is answered in this time. A slow machine that takes longer fails no test: it is told nothing wrong.
const EARLY: Duration = Duration::from_millis(500);

/// A client that has announced weights of `bytes` bytes, once the server begins to read them: it says so then, and the update runs.
async fn begun_update(server: &Server, version: &str, bytes: usize) -> TcpStream {
    const GO_ON: &str = "HTTP/1.1 100 Continue\r\n\r\n";
    let mut client = TcpStream::connect(server.url.trim_start_matches("http://"))
        .await
        .unwrap();
    let head = format!(
        "POST /update_weights?weight_version={version} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/octet-stream\r\n\
         content-length: {bytes}\r\nexpect: 100-continue\r\nconnection: close\r\n\r\n"
    );
    client.write_all(head.as_bytes()).await.unwrap();
    let mut said = [0; GO_ON.len()];
    let heard = tokio::time::timeout(LONG, client.read_exact(&mut said)).await;
    heard.unwrap().unwrap();
    assert_eq!(said, GO_ON.as_bytes());
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_asks_for_the_version_during_an_update_is_told_the_new_one() {
    let server = Server::start().await;
    let (_, weights) = other(&server, 1);
    let stream = stream_of(&weights);
    let mut client = begun_update(&server, "13", stream.len()).await;
    let mut asked = tokio::spawn(server.client.get(format!("{}/weight_info", server.url)).send());
    let early = tokio::time::timeout(EARLY, &mut asked).await;
    assert!(early.is_err(), "{early:?}");
    client.write_all(&stream).await.unwrap();
    let mut answer = String::new();
    let heard = tokio::time::timeout(LONG, client.read_to_string(&mut answer)).await;
    heard.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let told: Value = asked.await.unwrap().unwrap().json().await.unwrap();
    let digest = digest(&weights).unwrap().to_string();
    assert_eq!(
        told,
        json!({"weight_version": "13", "digest": digest, "takes_delta": true})
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn weights_that_do_not_fit_are_refused_and_the_old_ones_stay() {
    let server = Server::start().await;
    let before = server.ok("/v1/completions", long(50)).await["choices"][0].clone();
    let (folder, mut weights) = other(&server, 2);
    let refused = async |body: Value, word: &str| {
        let message = server.error("/update_weights", body, 400).await;
        assert!(message.contains(word), "{message}");
    };
    refused(
        json!({"path": "/no/such/folder", "weight_version": "1"}),
        "/no/such/folder",
    )
    .await;
    refused(json!({"path": folder, "weight_version": "latest"}), "latest").await;
    refused(json!({"path": folder, "weight_version": "1", "digest": "00"}), "not 00").await;
    let whole = stream_of(&weights);
    assert_eq!(upload(&server, "x", whole.clone()).await.0, 400);
    for (body, word) in [
        (whole[..whole.len() - 1].to_vec(), "ended before"),
        ([whole.clone(), vec![0]].concat(), "behind"),
        (whole[..4].to_vec(), "ended before"),
        (u64::MAX.to_le_bytes().to_vec(), "no safetensors header"),
        ([&8u64.to_le_bytes()[..], b"not json"].concat(), "no safetensors header"),
    ] {
        let (status, answer) = upload(&server, "1", body).await;
        assert_eq!(status, 400);
        assert!(answer["error"]["message"].as_str().unwrap().contains(word), "{answer}");
    }
    let mut flipped = whole.clone();
    flipped[whole.len() - 100] ^= 1;
    let (status, answer) = upload(&server, "1", flipped).await;
    assert_eq!(status, 400);
    assert!(
        answer["error"]["message"].as_str().unwrap().contains("digest"),
        "{answer}"
    );
    weights.0.insert(
        "lm_head.weight".into(),
        Tensor::zeros([399, 32], (Kind::Float, tch::Device::Cpu)),
    );
    weights.0.remove("model.norm.weight");
    let (status, answer) = upload(&server, "1", stream_of(&weights)).await;
    let message = answer["error"]["message"].as_str().unwrap();
    assert_eq!(status, 400);
    assert!(
        message.contains("lm_head.weight is [399, 32], not [400, 32]")
            && message.contains("model.norm.weight is missing"),
        "{message}"
    );
    assert_eq!(server.get_json("/weight_info").await, json!({"weight_version": "0"}));
    assert_eq!(server.ok("/v1/completions", long(50)).await["choices"][0], before);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_attempt_of_an_actor_gives_no_weights_once_a_newer_one_has_and_who_is_no_actor_may() {
    let server = Server::start().await;
    let (_, weights) = other(&server, 4);
    let (stream, digest) = (stream_of(&weights), digest(&weights).unwrap().to_string());
    for attempt in [1, 2] {
        let (status, answer) = upload(&server, &format!("7&attempt={attempt}"), stream.clone()).await;
        assert_eq!(status, 200, "{answer}");
        let has = json!({"weight_version": "7", "attempt": attempt, "digest": digest, "takes_delta": true});
        assert_eq!(server.get_json("/weight_info").await, has);
    }
    let (status, answer) = upload(&server, "8&attempt=1", stream.clone()).await;
    assert_eq!(status, 409);
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("attempt 2 of the actor"), "{message}");
    assert_eq!(server.get_json("/weight_info").await["weight_version"], "7");
    assert_eq!(upload(&server, "9", stream).await.0, 200);
    let has = json!({"weight_version": "9", "digest": digest, "takes_delta": true});
    assert_eq!(server.get_json("/weight_info").await, has);
}

#[tokio::test(flavor = "multi_thread")]
async fn streamed_weights_are_those_of_the_folder() {
    let (streamed, from_folder) = (Server::start().await, Server::start().await);
    let (folder, weights) = other(&streamed, 3);
    let (status, answer) = upload(&streamed, "7", stream_of(&weights)).await;
    assert_eq!(status, 200, "{answer}");
    let update = json!({"path": folder, "weight_version": 7});
    assert_eq!(from_folder.ok("/update_weights", update).await, answer);
    assert_eq!(answer["digest"], digest(&weights).unwrap().to_string());
    let tokens = streamed.ok("/v1/completions", long(50)).await["choices"][0].clone();
    assert_eq!(tokens, from_folder.ok("/v1/completions", long(50)).await["choices"][0]);
}
