//! How long prompts and responses may be.

use serde_json::{Value, json};

use crate::support::{Server, Wanted, ids, with_fields};

const CONTEXT: usize = 64;

async fn short() -> Server {
    Server::start_with(Wanted {
        max_length: Some(CONTEXT),
        ..Wanted::default()
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_response_of_a_request_ends_with_the_context_behind_its_own_prompt() {
    let server = short().await;
    let request = |fields: Value| {
        let request =
            json!({"prompt": [vec![5; CONTEXT - 4], vec![1, 2, 3]], "ignore_eos": true, "return_token_ids": true});
        with_fields(request, fields)
    };
    for (fields, lengths) in [
        (json!({"max_tokens": CONTEXT}), [4, CONTEXT - 3]),
        (json!({}), [4, 16]),
        (json!({"max_tokens": 2}), [2, 2]),
        (json!({"max_tokens": CONTEXT, "min_tokens": 4}), [4, CONTEXT - 3]),
    ] {
        let answer = server.ok("/v1/completions", request(fields.clone())).await;
        let choices = answer["choices"].as_array().unwrap().iter();
        let found: Vec<usize> = choices.clone().map(|choice| ids(choice).len()).collect();
        assert_eq!(found, lengths, "{fields}");
        assert!(choices.clone().all(|choice| choice["finish_reason"] == "length"));
    }
    let longer = request(json!({"max_tokens": CONTEXT, "min_tokens": 5}));
    let error = server.error("/v1/completions", longer, 400).await;
    assert!(error.starts_with("min_tokens: 5"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_context_does_not_hold_is_refused_in_words_by_which_clients_know_it() {
    let server = short().await;
    let longest = json!({"prompt": vec![5; CONTEXT], "max_tokens": 1});
    let text = json!({"prompt": "12 + 30 = ".repeat(CONTEXT)});
    let messages = json!({"messages": [{"role": "user", "content": "12 + 30 = ".repeat(CONTEXT)}]});
    let response = json!({"prompt": [5], "max_tokens": CONTEXT + 1});
    for (path, request) in [
        ("/v1/completions", longest),
        ("/v1/completions", text),
        ("/v1/chat/completions", messages),
        ("/v1/completions", response),
    ] {
        let error = server.error(path, request, 400).await;
        // LiteLLM falls back to a model of a longer context by these.
        assert!(
            error.contains("this model's maximum context length is 64 tokens"),
            "{error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_is_shortened_where_a_request_wants_that() {
    let server = short().await;
    let asked = async |fields: Value| {
        let request = json!({"prompt": [vec![1, 2, 3, 4, 5], vec![6]], "max_tokens": 1, "return_token_ids": true});
        let answer = server.ok("/v1/completions", with_fields(request, fields)).await;
        let prompts = answer["choices"].as_array().unwrap().iter();
        let prompts: Vec<Value> = prompts.map(|choice| choice["prompt_token_ids"].clone()).collect();
        (json!(prompts), answer["usage"]["prompt_tokens"].clone())
    };
    let last = asked(json!({"truncate_prompt_tokens": 2})).await;
    assert_eq!(last, (json!([[4, 5], [6]]), json!(3)));
    let first = asked(json!({"truncate_prompt_tokens": 2, "truncation_side": "right"})).await;
    assert_eq!(first.0, json!([[1, 2], [6]]));
    let content = "12 + 30 = ".repeat(20);
    let chat =
        json!({"messages": [{"role": "user", "content": content}], "truncate_prompt_tokens": -1, "ignore_eos": true});
    let answer = server.ok("/v1/chat/completions", chat).await;
    assert_eq!(
        answer["usage"],
        json!({"prompt_tokens": CONTEXT - 1, "completion_tokens": 1, "total_tokens": CONTEXT})
    );
    // One that is longer than any number of tokens that the context holds.
    let long = "12 + 30 = ".repeat(50_000);
    for request in [
        ("/v1/completions", json!({"prompt": long, "max_tokens": 1})),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": long}], "max_tokens": 1}),
        ),
    ] {
        let (path, request) = request;
        let shortened = with_fields(
            request,
            json!({"truncate_prompt_tokens": 20, "truncation_side": "left"}),
        );
        assert_eq!(server.ok(path, shortened).await["usage"]["prompt_tokens"], 20);
    }
    for wrong in [json!({"truncate_prompt_tokens": 0}), json!({"truncation_side": "up"})] {
        let request = with_fields(json!({"prompt": [1]}), wrong);
        assert!(server.error("/v1/completions", request, 400).await.starts_with("trunc"));
    }
}
