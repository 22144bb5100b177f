//! What is not served, and what a server says of itself.

use serde_json::{Value, json};

use crate::support::{NAME, Server, VOCABULARY, with_fields};

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_served_is_refused_with_the_field_and_harms_no_other() {
    let server = Server::start().await;
    let with = |patch: Value| with_fields(json!({"model": NAME, "prompt": [1, 2, 3], "max_tokens": 4}), patch);
    for (patch, word) in [
        (json!({"prompt": null}), "prompt: is missing"),
        (json!({"prompt": []}), "empty"),
        (json!({"prompt": [[]]}), "no tokens"),
        (json!({"prompt": [VOCABULARY]}), "outside the vocabulary"),
        (
            json!({"prompt": [[1], "a"]}),
            "prompt[1]: invalid type: string \"a\", expected a sequence",
        ),
        (json!({"n": 0}), "n: "),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": 65537}), "prompt and response"),
        (json!({"max_tokens": -1}), "max_tokens: invalid value: integer `-1`"),
        (json!({"temperature": -0.5}), "temperature"),
        (json!({"temperature": 1e30}), "temperature"),
        (json!({"top_p": 0.0}), "top_p"),
        (json!({"top_k": -2}), "top_k"),
        (json!({"min_p": 1.5}), "min_p"),
        (json!({"min_tokens": 9}), "min_tokens"),
        (json!({"logprobs": 21}), "at most 20"),
        (json!({"prompt_logprobs": -1}), "prompt_logprobs"),
        (json!({"prompt_logprobs": 1, "stream": true}), "not with stream"),
        (
            json!({"stream_options": {"include_usage": true}}),
            "stream_options: needs stream",
        ),
        (json!({"stop_token_ids": vec![1; 1000]}), "stop_token_ids: 1000 ids"),
        (json!({"stop": ""}), "stop"),
        (json!({"stop": 1}), "expected a text"),
        (json!({"guided_regex": "a+"}), "guided_regex"),
        (json!({"seeds": [1, 2]}), "one for each"),
        (json!({"seeds": [1], "seed": 1}), "not both"),
        (json!({"seed": 1.5}), "seed"),
        (json!({"echo": true, "stream": true}), "echo: not with stream"),
        (json!({"tools": [{}]}), "with tool_choice \"none\""),
        (json!({"echo": true, "prompt_logprobs": 1}), "echo: "),
        (json!({"best_of": 3}), "best_of"),
        (json!({"logit_bias": {"5": 1}}), "logit_bias"),
        (json!({"repetition_penalty": 1.1}), "repetition_penalty"),
        (json!({"response_format": {"type": "json_object"}}), "response_format"),
    ] {
        let message = server.error("/v1/completions", with(patch.clone()), 400).await;
        assert!(message.contains(word), "{patch}: {message}");
    }
    let (status, other) = server.ask("/v1/completions", with(json!({"model": "gpt-9"}))).await;
    assert_eq!((status, &other["error"]["param"]), (404, &json!("model")));
    assert!(other["error"]["message"].as_str().unwrap().contains("gpt-9"));
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "logprobs": true, "top_logprobs": 21});
    let message = server.error("/v1/chat/completions", chat, 400).await;
    assert!(message.starts_with("top_logprobs: 21"), "{message}");
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "logprobs": 2});
    let message = server.error("/v1/chat/completions", chat, 400).await;
    assert!(message.starts_with("logprobs: want true or false"), "{message}");
    let message = server.error("/pause?mode=keep&mode=keep", json!({}), 400).await;
    assert!(message.contains("mode"), "{message}");
    let not_json = server
        .client
        .post(format!("{}/v1/completions", server.url))
        .header("content-type", "application/json")
        .body("{\"prompt\": ")
        .send()
        .await
        .unwrap();
    assert_eq!(not_json.status(), 400);
    let no_kind = server
        .client
        .post(format!("{}/v1/completions", server.url))
        .body("{}")
        .send()
        .await
        .unwrap();
    assert_eq!(
        no_kind.status(),
        415,
        "what a page in a browser can send without asking"
    );
    assert!(
        server
            .error("/v1/chat/completions", json!({"messages": []}), 400)
            .await
            .contains("empty")
    );
    assert_eq!(server.get("/nothing").await.status(), 404);
    assert_eq!(server.get("/v1/completions").await.status(), 405);
    // Neutral values of what is not supported, unknown fields and null are no reason to refuse.
    let fine = with(
        json!({"presence_penalty": 0, "repetition_penalty": 1.0, "cache_salt": "v1", "stop": null, "best_of": 1, "user": "x"}),
    );
    server.ok("/v1/completions", fine).await;
    let many: Vec<u32> = (0..257).collect();
    for fine in [
        json!({"stream_options": {}}),
        json!({"prompt": [1.0, 2, 3e0]}),
        // A job's 256, and the model's own, which it names too.
        json!({"stop_token_ids": many}),
    ] {
        server.ok("/v1/completions", with(fine)).await;
    }
    // An empty name is none.
    server.ok("/v1/completions", with(json!({"model": ""}))).await;
    for path in ["/health", "/ping"] {
        assert_eq!(server.get(path).await.status(), 200, "{path}");
    }
    assert_eq!(server.post("/ping", json!({})).send().await.unwrap().status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_names_its_model_and_its_version() {
    let server = Server::start().await;
    let models = server.get_json("/v1/models").await;
    assert_eq!(
        (&models["data"][0]["id"], &models["data"][0]["max_model_len"]),
        (&json!(NAME), &json!(65536))
    );
    let alone = server.get_json(&format!("/v1/models/{NAME}")).await;
    assert_eq!(alone, models["data"][0]);
    let other = server.get("/v1/models/some/other").await;
    assert_eq!(other.status(), 404);
    let other: Value = other.json().await.unwrap();
    assert_eq!(other["error"]["type"], "NotFoundError");
    assert!(server.get_json("/version").await["version"].is_string());
    server
        .ok(
            "/v1/completions",
            json!({"prompt": "hi", "max_tokens": 3, "ignore_eos": true}),
        )
        .await;
    assert_eq!(server.metric("vllm:generation_tokens_total").await, 3.0);
    assert_eq!(server.metric("vllm:e2e_request_latency_seconds_count").await, 1.0);
}
