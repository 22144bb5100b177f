//! Clients that are too many, too slow, or gone.

use std::io::{Read, Write};
use std::process::Command;
use std::time::{Duration, Instant};

use ppo_worker::serving::Limits;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{LONG, NAME, Server, Wanted, ids, long, make_model, serving, with_fields};

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
    assert_eq!(
        server.ok("/abort_requests", json!({})).await["aborted"],
        0,
        "nothing is left registered"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_whose_reader_stands_still_is_withdrawn_and_says_so_when_it_goes_on() {
    // With so many numbers beside each token little has to be drawn.
    let limits = Limits {
        logprobs: 300,
        write_timeout: LONG,
        ..Limits::default()
    };
    let server = Server::start_with(Wanted {
        limits,
        ..Wanted::default()
    })
    .await;
    let fields = json!({"n": 256, "stream": true, "logprobs": 300, "return_tokens_as_token_ids": true});
    let request = with_fields(long(1000), fields);
    let mut response = server.post("/v1/completions", request).send().await.unwrap();
    assert_eq!(response.status(), 200);
    let drawn = async || server.metric("vllm:generation_tokens_total").await;
    server.until("what fits", async || drawn().await > 20_000.0).await;
    server.until_idle().await;
    let drawn = drawn().await;
    assert!(
        drawn < 256_000.0,
        "{drawn} tokens were drawn for a reader that takes none"
    );
    let mut end = Vec::new();
    while let Some(piece) = response.chunk().await.unwrap() {
        end.extend_from_slice(&piece);
        end.drain(..end.len().saturating_sub(1000));
    }
    let end = String::from_utf8_lossy(&end);
    assert!(end.contains("the stream is read too slowly"), "{end}");
    assert!(end.ends_with("data: [DONE]\n\n"), "{end}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_nobody_reads_keeps_its_room_until_its_client_goes() {
    let limits = Limits {
        unread_bytes: 1 << 20,
        body_timeout: Duration::from_millis(300),
        write_timeout: LONG,
        ..Limits::default()
    };
    let server = Server::start_with(Wanted {
        limits,
        ..Wanted::default()
    })
    .await;
    let wide = |n: usize| {
        let prompt: Vec<u32> = (0..300).map(|at| 5 + at % 200).collect();
        json!({"prompt": prompt, "max_tokens": 1, "ignore_eos": true, "prompt_logprobs": 20, "n": n})
    };
    // Far more than sockets hold.
    let unread = server.post("/v1/completions", wide(60)).send().await.unwrap();
    assert_eq!(unread.status(), 200);
    let length = unread.content_length().unwrap();
    assert!(length > 16 << 20, "{length} bytes");
    let refused = server.error("/v1/completions", wide(1), 503).await;
    assert!(refused.contains("have not read yet"), "{refused}");
    server.ok("/v1/completions", long(5)).await;
    drop(unread);
    let answered = async || server.post("/v1/completions", wide(1)).send().await.unwrap().status() == 200;
    server.until("room", answered).await;
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
    let asked: Vec<_> = (0..40)
        .map(|_| tokio::spawn(server.post("/v1/completions", long(1500)).send()))
        .collect();
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
    let announced = head("content-length: 99999999999");
    assert_eq!(answer(&server, announced.as_bytes()).await, *b"HTTP/1.1 413");
    let piece = [b"4e20\r\n".to_vec(), vec![b' '; 20_000], b"\r\n".to_vec()].concat();
    let chunked = [head("transfer-encoding: chunked").into_bytes(), piece].concat();
    assert_eq!(answer(&server, &chunked).await, *b"HTTP/1.1 413");
    let heads = head(&format!("x-long: {}", "y".repeat(500_000)));
    assert_eq!(answer(&server, heads.as_bytes()).await, *b"HTTP/1.1 431");
}

/// The head of a request to generate, with one more line.
fn head(line: &str) -> String {
    format!("POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{line}\r\n\r\n")
}

async fn connect(server: &Server) -> TcpStream {
    TcpStream::connect(server.url.trim_start_matches("http://"))
        .await
        .unwrap()
}

/// How the answer to these bytes begins.
async fn answer(server: &Server, bytes: &[u8]) -> [u8; 12] {
    let mut stream = connect(server).await;
    // The server may close before it has read everything.
    let _ = stream.write_all(bytes).await;
    let mut answer = [0; 12];
    tokio::time::timeout(LONG, stream.read_exact(&mut answer))
        .await
        .unwrap()
        .unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_comes_before_the_body_says_that_the_connection_ends() {
    let server = Server::start().await;
    server.ok("/pause?mode=wait", json!({})).await;
    // Of the body only the first byte is there.
    let begun = head("content-length: 1000000") + "{";
    for (path, status) in [("/v1/completions", 503), ("/no/such/path", 404), ("/version", 405)] {
        let mut stream = connect(&server).await;
        let begun = begun.replace("/v1/completions", path);
        stream.write_all(begun.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // It ends without waiting for the rest; what is left unread may reset it behind the answer.
        let _ = tokio::time::timeout(LONG, stream.read_to_end(&mut answer))
            .await
            .unwrap();
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {answer}");
        assert!(answer.contains("connection: close\r\n"), "{path}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_that_no_context_holds_is_refused_before_it_is_split() {
    let server = Server::start_with(Wanted {
        max_length: Some(64),
        ..Wanted::default()
    })
    .await;
    let text = "so many words ".repeat(700_000);
    let messages = json!([{"role": "user", "content": text}]);
    for (path, body) in [
        ("/v1/completions", json!({"prompt": text})),
        ("/v1/completions", json!({"prompt": ["short", text]})),
        ("/v1/chat/completions", json!({"messages": messages})),
        ("/tokenize", json!({"prompt": text})),
    ] {
        let began = Instant::now();
        let error = server.error(path, body, 400).await;
        assert!(error.contains("maximum context length is 64 tokens"), "{path}: {error}");
        // To split it takes a minute here.
        assert!(
            began.elapsed() < Duration::from_secs(10),
            "{path}: {:?}",
            began.elapsed()
        );
    }
    server
        .ok("/v1/completions", json!({"prompt": "so many words", "max_tokens": 2}))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_lists_no_more_log_probabilities_than_it_may() {
    let limits = Limits {
        listed: 200,
        ..Limits::default()
    };
    let server = Server::start_with(Wanted {
        limits,
        ..Wanted::default()
    })
    .await;
    let asked = |n: usize, fields: serde_json::Value| {
        with_fields(json!({"prompt": vec![5; 20], "n": n, "max_tokens": 10}), fields)
    };
    for (n, fields, wrong) in [
        (2, json!({"prompt_logprobs": 4}), None),
        (
            3,
            json!({"prompt_logprobs": 4}),
            Some("prompt_logprobs: the answer may list 300 "),
        ),
        (2, json!({"logprobs": 9}), None),
        (3, json!({"logprobs": 9}), Some("logprobs: the answer may list 300 ")),
        // Bare numbers cost next to nothing.
        (30, json!({"logprobs": 0, "return_bare_logprobs": true}), None),
        (30, json!({"logprobs": 0}), Some("logprobs: ")),
    ] {
        let request = asked(n, fields);
        match wrong {
            None => drop(server.ok("/v1/completions", request).await),
            Some(words) => {
                let error = server.error("/v1/completions", request, 400).await;
                assert!(error.starts_with(words), "{error}");
            }
        }
    }
    // A chat without max_tokens goes on as long as the context lets it.
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "logprobs": true});
    let error = server.error("/v1/chat/completions", chat.clone(), 400).await;
    assert!(error.contains("at most 200: set max_tokens"), "{error}");
    // A stream sends each as it comes.
    let streamed = json!({"stream": true, "top_logprobs": 9, "ignore_eos": true, "max_tokens": 50});
    let pieces = server.stream("/v1/chat/completions", with_fields(chat, streamed)).await;
    let of_piece = |piece: &serde_json::Value| {
        let tokens = piece["choices"][0]["logprobs"]["content"].as_array();
        tokens.map_or(0, Vec::len)
    };
    assert_eq!(pieces.iter().map(of_piece).sum::<usize>(), 50);
}

#[test]
fn a_server_takes_more_connections_than_the_soft_limit_of_open_files_allows() {
    const CLIENTS: usize = 150;
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    make_model(&model, 0);
    let mut shell = Command::new("sh");
    let worker = env!("CARGO_BIN_EXE_ppo-worker");
    shell.args(["-c", "ulimit -Sn 64; exec \"$@\"", "sh", worker]);
    let (mut server, said) = serving(shell, &model);
    let address = said.split("rollout server on http://").nth(1).unwrap();
    let address = address.split_whitespace().next().unwrap();
    // All stay open, each has its answer.
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let mut client = std::net::TcpStream::connect(address).unwrap();
            client.set_read_timeout(Some(LONG)).unwrap();
            client
                .write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
                .unwrap();
            client
        })
        .collect();
    let answered = clients.iter().take_while(|client| {
        let mut answer = [0; 12];
        let mut client: &std::net::TcpStream = client;
        client.read_exact(&mut answer).is_ok() && answer == *b"HTTP/1.1 200"
    });
    let answered = answered.count();
    server.kill();
    assert_eq!(answered, CLIENTS);
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
    let mut begun = connect(&server).await;
    begun.write_all(b"GET /healthz HTTP/1.1\r\n").await.unwrap();
    let mut rest = Vec::new();
    tokio::time::timeout(LONG, begun.read_to_end(&mut rest))
        .await
        .unwrap()
        .unwrap();
    assert!(!rest.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&rest));

    let body = head("content-length: 100") + "{";
    assert_eq!(answer(&server, body.as_bytes()).await, *b"HTTP/1.1 408");

    // A client that reads nothing of a long stream: the sockets' buffers fill, then it is cut and its sequences are free.
    let mut reader = connect(&server).await;
    let mut request = long(60_000);
    request["stream"] = json!(true);
    request["n"] = json!(16);
    let request = request.to_string();
    let asked = head(&format!("content-length: {}", request.len())) + &request;
    reader.write_all(asked.as_bytes()).await.unwrap();
    server.until_busy().await;
    server.until_idle().await;
    assert!(server.metric("vllm:generation_tokens_total").await < 16.0 * 60_000.0);
}

/// Values that a field may be given by somebody who errs, or means harm.
fn odd(number: u64) -> serde_json::Value {
    let values = json!([
        null, true, 0, -1, 1, 7, 399, 400, 4294967295u64, 4294967296u64, u64::MAX, i64::MIN, 0.0, -0.0, 0.5, 1e-7, 1e39, 1e308, "", "a",
        "北京", [], [0], [[1, 2], []], [[1]], ["a", "b"], [1, "a"], {}, {"a": 1}, [[[1]]], [null], "\u{0}",
    ]);
    values[number as usize % values.as_array().unwrap().len()].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_a_client_sends_ends_the_server_or_costs_a_sequence() {
    let server = Server::start().await;
    let fields = [
        "prompt",
        "n",
        "max_tokens",
        "min_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "seeds",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "logprobs",
        "prompt_logprobs",
        "stream",
        "stream_options",
        "request_id",
        "messages",
        "detokenize",
        "skip_special_tokens",
        "return_token_ids",
        "top_logprobs",
        "model",
        "tokens",
        "path",
        "weight_version",
    ];
    let paths = [
        "/v1/completions",
        "/v1/completions",
        "/v1/chat/completions",
        "/tokenize",
        "/detokenize",
        "/update_weights",
        "/abort_requests",
    ];
    let mut random = 1u64;
    let mut next = move || {
        random = ppo_worker::engine::sample_seed(random, 0, 0, 0);
        random
    };
    for _ in 0..600 {
        let mut request = json!({"prompt": [1, 2, 3], "max_tokens": 5, "messages": [{"role": "user", "content": "a"}]});
        for _ in 0..1 + next() % 4 {
            request[fields[next() as usize % fields.len()]] = odd(next());
        }
        let path = paths[next() as usize % paths.len()];
        let response = server.post(path, request.clone()).send().await.unwrap();
        let status = response.status().as_u16();
        assert!(
            status == 200 || (400..500).contains(&status),
            "{path} {request}: {status}"
        );
        let _ = response.bytes().await.unwrap();
    }
    server.until_idle().await;
    assert_eq!(server.get("/healthz").await.status(), 200);
    let expected = server.ok("/v1/completions", long(20)).await["choices"][0].clone();
    assert_eq!(
        Server::start().await.ok("/v1/completions", long(20)).await["choices"][0],
        expected
    );
}
