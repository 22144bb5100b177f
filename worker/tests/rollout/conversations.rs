//! How messages become a prompt, and how an answer to them is streamed.

use serde_json::{Value, json};

use crate::support::{Server, ids, with_fields};

async fn tokens(server: &Server, request: Value) -> Value {
    server.ok("/tokenize", request).await["tokens"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_model_goes_on_with_the_last_message_where_a_request_wants_that() {
    let server = Server::start().await;
    let request = |begun: Value| {
        json!({"messages": [{"role": "user", "content": "12+30="}, {"role": "assistant", "content": begun}],
               "continue_final_message": true})
    };
    let begun = request(json!("The answer is "));
    let tokens = tokens(&server, begun.clone()).await;
    let text = server.ok("/detokenize", json!({"tokens": tokens})).await;
    let text = text["prompt"].as_str().unwrap();
    // This template trims what is said.
    assert!(text.ends_with("<|im_start|>assistant\nThe answer is"), "{text}");

    let more = json!({"max_tokens": 3, "ignore_eos": true, "return_token_ids": true, "add_generation_prompt": false});
    let answer = server
        .ok("/v1/chat/completions", with_fields(begun.clone(), more.clone()))
        .await;
    assert_eq!(answer["prompt_token_ids"], tokens);
    assert_eq!(ids(&answer["choices"][0]).len(), 3);
    let parts = request(json!([{"type": "text", "text": "The answer is"}]));
    let answer = server.ok("/v1/chat/completions", with_fields(parts, more)).await;
    assert_eq!(answer["prompt_token_ids"], tokens);
    let both = with_fields(begun, json!({"add_generation_prompt": true}));
    for path in ["/tokenize", "/v1/chat/completions"] {
        let error = server.error(path, both.clone(), 400).await;
        assert!(error.starts_with("continue_final_message: "), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_developer_is_the_system_to_a_template_that_knows_none() {
    let server = Server::start().await;
    let said =
        |role: &str| json!({"messages": [{"role": role, "content": "Be brief."}, {"role": "user", "content": "hi"}]});
    let (developer, system) = (tokens(&server, said("developer")), tokens(&server, said("system")));
    assert_eq!(developer.await, system.await);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_no_answer_of_the_assistant_begins_the_last_message_goes_on() {
    let server = Server::start().await;
    for (begins, role) in [(true, "assistant"), (false, "user")] {
        let request = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "ignore_eos": true,
                             "add_generation_prompt": begins});
        let whole = server.ok("/v1/chat/completions", request.clone()).await;
        assert_eq!(whole["choices"][0]["message"]["role"], role);
        let pieces = server
            .stream("/v1/chat/completions", with_fields(request, json!({"stream": true})))
            .await;
        assert_eq!(pieces[0]["choices"][0]["delta"]["role"], role);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn log_probabilities_of_a_chat_tell_the_bytes_of_the_text_however_tokens_are_named() {
    let server = Server::start().await;
    let content = async |more: Value| {
        let request = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 20, "seed": 3, "ignore_eos": true, "top_logprobs": 2});
        let answer = server.ok("/v1/chat/completions", with_fields(request, more)).await;
        answer["choices"][0]["logprobs"]["content"].as_array().unwrap().clone()
    };
    let texts = content(json!({"logprobs": true})).await;
    assert_eq!(content(json!({"logprobs": 1})).await, texts, "1 is true");
    let numbers = content(json!({"logprobs": true, "return_tokens_as_token_ids": true})).await;
    assert_eq!((texts.len(), numbers.len()), (20, 20));
    for (text, number) in texts.iter().zip(&numbers) {
        let tops = |token: &Value| token["top_logprobs"].as_array().unwrap().clone();
        let pairs = tops(text).into_iter().zip(tops(number));
        for (text, number) in pairs.chain([(text.clone(), number.clone())]) {
            assert_eq!(number["bytes"], text["bytes"]);
            assert_eq!(text["bytes"], json!(text["token"].as_str().unwrap().as_bytes()));
            assert!(number["token"].as_str().unwrap().starts_with("token_id:"), "{number}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streamed_chat_says_first_who_speaks() {
    let server = Server::start().await;
    let messages = json!([{"role": "user", "content": "hi"}]);
    let prompt = tokens(&server, json!({"messages": messages})).await;
    let request = json!({
        "messages": messages, "n": 2, "max_tokens": 5, "ignore_eos": true, "logprobs": true, "return_token_ids": true, "stream": true,
        "stream_options": {"include_usage": true, "continuous_usage_stats": true},
    });
    let pieces = server.stream("/v1/chat/completions", request).await;
    let (_, pieces) = pieces.split_last().unwrap();
    for index in 0..2 {
        let mut of_choice = pieces.iter().filter(|piece| piece["choices"][0]["index"] == index);
        let first = of_choice.next().unwrap();
        let choice = &first["choices"][0];
        assert_eq!(choice["delta"], json!({"role": "assistant", "content": ""}));
        assert_eq!(
            (&choice["logprobs"], &choice["finish_reason"]),
            (&Value::Null, &Value::Null)
        );
        assert_eq!(first["prompt_token_ids"], prompt);
        assert_eq!(first["usage"]["completion_tokens"], 0);
        let mut drawn = 0;
        for piece in of_choice {
            assert_eq!(piece["choices"][0]["delta"]["role"], Value::Null);
            assert_eq!(piece["prompt_token_ids"], Value::Null);
            drawn += ids(&piece["choices"][0]).len();
        }
        assert_eq!(drawn, 5);
    }
}
