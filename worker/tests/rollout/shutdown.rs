//! SIGTERM.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use ppo_worker::rollout::Ended;
use ppo_worker::serving::Limits;
use serde_json::Value;

use crate::process::{output, signal};
use crate::support::{LONG, Server, Wanted, ids, long, make_model, serving};

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_asked_to_end_finishes_what_it_has_and_takes_no_more() {
    let mut server = Server::start().await;
    let running = tokio::spawn(server.post("/v1/completions", long(4000)).send());
    server.until_busy().await;
    server.begin_stop();
    let (client, url) = (server.client.clone(), format!("{}/healthz", server.url));
    assert_eq!(server.ended().await, Ended::Finished);
    let answer: Value = running.await.unwrap().unwrap().json().await.unwrap();
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert!(client.get(url).send().await.unwrap_err().is_connect());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_finish_in_time_is_handed_back_with_its_tokens() {
    let limits = Limits {
        shutdown_grace: Duration::from_millis(50),
        ..Limits::default()
    };
    let mut server = Server::start_with(Wanted {
        limits,
        ..Wanted::default()
    })
    .await;
    let mut streamed = long(60_000);
    streamed["stream"] = true.into();
    let running = tokio::spawn(server.post("/v1/completions", long(60_000)).send());
    let stream = server.post("/v1/completions", streamed).send().await.unwrap();
    server
        .until("both", async || server.metric("vllm:num_requests_running").await == 2.0)
        .await;
    server.begin_stop();
    let text = tokio::spawn(stream.text());
    let answer: Value = running.await.unwrap().unwrap().json().await.unwrap();
    assert_eq!(answer["choices"][0]["finish_reason"], "abort");
    assert!(!ids(&answer["choices"][0]).is_empty());
    let text = text.await.unwrap().unwrap();
    assert!(text.contains("\"finish_reason\":\"abort\"") && text.trim_end().ends_with("[DONE]"));
    assert_eq!(server.ended().await, Ended::HandedBack);
}

#[test]
fn the_command_serves_until_sigterm_and_exits_0() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    make_model(&model, 0);
    let (mut server, said) = serving(Command::new(env!("CARGO_BIN_EXE_ppo-worker")), &model);
    assert!(said.contains("rollout server on http://127.0.0.1:"), "{said}");
    signal(&server, "-TERM");
    let status = server.ended("a server that was asked to end");
    assert!(status.success(), "{status}");
}

#[test]
fn ctrl_c_once_more_waits_for_nothing_that_is_in_flight() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    make_model(&model, 0);
    let (mut server, said) = serving(Command::new(env!("CARGO_BIN_EXE_ppo-worker")), &model);
    let address = said.split("rollout server on http://").nth(1).unwrap();
    let address = address.split_whitespace().next().unwrap();
    let mut request = long(60_000);
    request["model"] = Value::Null;
    request["n"] = 64.into();
    request["stream"] = true.into();
    let body = request.to_string();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json";
    let ask = || {
        let mut client = TcpStream::connect(address).unwrap();
        write!(client, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
        client.set_read_timeout(Some(LONG)).unwrap();
        let mut answer = [0; 12];
        client.read_exact(&mut answer).unwrap();
        (answer, client)
    };
    let began = Instant::now();
    // While its model loads it answers 503.
    let _client = loop {
        let (answer, client) = ask();
        if answer == *b"HTTP/1.1 200" {
            break client;
        }
        assert!(began.elapsed() < LONG, "{}", String::from_utf8_lossy(&answer));
        std::thread::sleep(Duration::from_millis(50));
    };
    let began = Instant::now();
    let status = loop {
        signal(&server, "-INT");
        if let Some(status) = server.try_wait().unwrap() {
            break status;
        }
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "it waits for its grace period"
        );
        std::thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(status.code(), Some(130), "{status}");
}

#[test]
fn a_model_that_is_not_there_is_said_before_any_address_and_is_bad_input() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ppo-worker"));
    command
        .args(["rollout", "--port", "0", "--model", "/nowhere/model"])
        .env_remove("PPO_LOG");
    let ended = output(&mut command);
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(2), "{said}");
    assert!(
        said.contains("model: /nowhere/model does not exist") && !said.contains("rollout server on"),
        "{said}"
    );
}
