//! Clients that are too many, too slow, or gone.

use std::time::Duration;

use ppo_worker::rollout::Limits;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{LONG, NAME, Server, Wanted, ids, long};

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_frees_its_sequences_streaming_or_not_frozen_or_not() {
    let server = Server::start().await;
    for stream in [false, true] {
        for frozen in [false, true] {
            let mut request = long(60_000);
            request["stream"] = json!(stream);
            request["n"] = json!(4);
            let running = tokio::spawn(server.post("/v1/completions", request).send());
            if stream {
                // The answer's head is there at once; its body goes with the response.
                let response = running.await.unwrap().unwrap();
                server.until_busy().await;
                if frozen {
                    server.ok("/pause?mode=keep", json!({})).await;
                }
                drop(response);
            } else {
                server.until_busy().await;
                if frozen {
                    server.ok("/pause?mode=keep", json!({})).await;
                }
                running.abort();
            }
            server.until_idle().await;
            server.ok("/resume", json!({})).await;
        }
    }
    assert_eq!(server.ok("/abort_requests", json!({})).await["aborted"], 0, "nothing is left registered");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_says_so_at_once_and_loses_nothing() {
    let limits = Limits {
        samples: 8,
        ..Limits::default()
    };
    let server = Server::start_with(Wanted {
        limits,
        ..Wanted::default()
    })
    .await;
    let expected = ids(&server.ok("/v1/completions", long(1500)).await["choices"][0]);
    let asked: Vec<_> = (0..40).map(|_| tokio::spawn(server.post("/v1/completions", long(1500)).send())).collect();
    let (mut served, mut refused) = (0, 0);
    for answer in asked {
        let response = answer.await.unwrap().unwrap();
        match response.status().as_u16() {
            200 => {
                let answer: serde_json::Value = response.json().await.unwrap();
                assert_eq!(ids(&answer["choices"][0]), expected);
                served += 1;
            }
            429 => {
                assert_eq!(response.headers()["retry-after"], "1");
                refused += 1;
            }
            other => panic!("status {other}"),
        }
    }
    assert_eq!(served + refused, 40);
    assert!(served >= 8 && refused > 0, "{served} served, {refused} refused");
    server.until_idle().await;
    // All places are free again: as many as there are fit, one more never does.
    let mut all = long(1);
    all["n"] = json!(8);
    server.ok("/v1/completions", all.clone()).await;
    all["n"] = json!(9);
    assert!(server.error("/v1/completions", all, 400).await.contains("at most 8"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_large_is_refused_before_it_is_read() {
    let limits = Limits {
        body_bytes: 10_000,
        request_tokens: 5000,
        ..Limits::default()
    };
    let server = Server::start_with(Wanted {
        limits,
        ..Wanted::default()
    })
    .await;
    let large = json!({"model": NAME, "prompt": "x".repeat(20_000)});
    assert!(server.error("/v1/completions", large, 413).await.contains("10000"));
    assert!(server.error("/v1/completions", long(6000), 400).await.contains("5000"));
    let mut many = long(1000);
    many["n"] = json!(6);
    assert!(server.error("/v1/completions", many, 400).await.contains("5000"));
    // A length that is announced is believed before a byte of it arrives; one that is not is counted.
    let mut announced = TcpStream::connect(server.url.trim_start_matches("http://")).await.unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n";
    announced.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![0; 12];
    tokio::time::timeout(LONG, announced.read_exact(&mut answer)).await.unwrap().unwrap();
    assert_eq!(answer, b"HTTP/1.1 413");
    let mut chunked = TcpStream::connect(server.url.trim_start_matches("http://")).await.unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
    chunked.write_all(head.as_bytes()).await.unwrap();
    let piece = [b"4e20\r\n".to_vec(), vec![b' '; 20_000], b"\r\n".to_vec()].concat();
    chunked.write_all(&piece).await.unwrap();
    tokio::time::timeout(LONG, chunked.read_exact(&mut answer)).await.unwrap().unwrap();
    assert_eq!(answer, b"HTTP/1.1 413");
    let mut heads = TcpStream::connect(server.url.trim_start_matches("http://")).await.unwrap();
    let head = format!("GET /healthz HTTP/1.1\r\nhost: x\r\nx-long: {}\r\n\r\n", "y".repeat(100_000));
    // The server may close before it has read everything.
    let _ = heads.write_all(head.as_bytes()).await;
    tokio::time::timeout(LONG, heads.read_exact(&mut answer)).await.unwrap().unwrap();
    assert_eq!(answer, b"HTTP/1.1 431");
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_clients_are_cut() {
    let limits = Limits {
        header_timeout: Duration::from_millis(300),
        body_timeout: Duration::from_millis(300),
        write_timeout: Duration::from_millis(300),
        ..Limits::default()
    };
    let server = Server::start_with(Wanted {
        limits,
        ..Wanted::default()
    })
    .await;
    let address = server.url.trim_start_matches("http://");
    let mut head = TcpStream::connect(address).await.unwrap();
    head.write_all(b"GET /healthz HTTP/1.1\r\n").await.unwrap();
    let mut rest = Vec::new();
    tokio::time::timeout(LONG, head.read_to_end(&mut rest)).await.unwrap().unwrap();
    assert!(!rest.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&rest));

    let mut body = TcpStream::connect(address).await.unwrap();
    body.write_all(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{").await.unwrap();
    let mut answer = vec![0; 12];
    tokio::time::timeout(LONG, body.read_exact(&mut answer)).await.unwrap().unwrap();
    assert_eq!(answer, b"HTTP/1.1 408");

    // A client that reads nothing of a long stream: the sockets' buffers fill, then it is cut and its sequences are free.
    let mut reader = TcpStream::connect(address).await.unwrap();
    let mut request = long(60_000);
    request["stream"] = json!(true);
    request["n"] = json!(16);
    let request = request.to_string();
    let head = format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", request.len());
    reader.write_all((head + &request).as_bytes()).await.unwrap();
    server.until_busy().await;
    server.until_idle().await;
    assert!(server.metric("vllm:generation_tokens_total").await < 16.0 * 60_000.0);
}
