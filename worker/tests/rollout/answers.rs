//! What is generated, and how it is shown.

use serde_json::{Value, json};

use crate::support::{NAME, Server, VOCABULARY, Wanted, ids};

/// Prompts of several lengths, as token ids.
fn prompts(count: u32) -> Vec<Vec<u32>> {
    (0..count)
        .map(|prompt| {
            (0..1 + prompt * 3 % 40)
                .map(|at| (prompt * 31 + at * 7) % VOCABULARY)
                .collect()
        })
        .collect()
}

fn everything(prompt: Value, seeds: &[u64]) -> Value {
    json!({
        "model": NAME, "prompt": prompt, "n": 3, "seeds": seeds, "max_tokens": 40, "temperature": 0.9, "top_p": 0.95, "top_k": 50,
        "logprobs": 2, "prompt_logprobs": 1, "return_token_ids": true, "return_tokens_as_token_ids": true,
        "return_weight_versions": true,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_gives_what_each_prompt_gives_alone_on_any_server_to_the_bit() {
    let (one, other) = (Server::start().await, Server::start().await);
    let prompts = prompts(12);
    let seeds: Vec<u64> = (0..36).map(|seed| seed * 1_000_003).collect();
    let batch = one.ok("/v1/completions", everything(json!(prompts), &seeds)).await;
    let choices = batch["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 36);
    let mut prompt_tokens = 0;
    for (place, prompt) in prompts.iter().enumerate() {
        prompt_tokens += prompt.len();
        let alone = other
            .ok(
                "/v1/completions",
                everything(json!(prompt), &seeds[place * 3..place * 3 + 3]),
            )
            .await;
        for sample in 0..3 {
            let (batched, mut single) = (&choices[place * 3 + sample], alone["choices"][sample].clone());
            assert_eq!(single["index"], sample);
            single["index"] = json!(place * 3 + sample);
            assert_eq!(*batched, single);
            assert_eq!(batched["prompt_token_ids"], json!(prompt));
            let tokens = ids(batched);
            assert_eq!(batched["logprobs"]["tokens"][0], format!("token_id:{}", tokens[0]));
            assert_eq!(batched["prompt_logprobs"].as_array().unwrap().len(), prompt.len());
            assert_eq!(
                batched["weight_versions"],
                json!([{"version": "0", "start": 0, "end": tokens.len()}])
            );
        }
    }
    assert_eq!(batch["usage"]["prompt_tokens"], prompt_tokens);
}

#[tokio::test(flavor = "multi_thread")]
async fn bare_log_probabilities_are_the_same_numbers_and_nothing_beside_them() {
    let server = Server::start().await;
    let request = |bare: bool, logprobs: u32| {
        json!({
            "prompt": prompts(5), "n": 2, "seed": 5, "max_tokens": 20, "logprobs": logprobs, "return_token_ids": true,
            "prompt_logprobs": 0, "return_bare_logprobs": bare,
        })
    };
    let (bare, full) = (
        server.ok("/v1/completions", request(true, 0)).await,
        server.ok("/v1/completions", request(false, 0)).await,
    );
    for (bare, full) in bare["choices"]
        .as_array()
        .unwrap()
        .iter()
        .zip(full["choices"].as_array().unwrap())
    {
        assert_eq!(
            bare["logprobs"],
            json!({"token_logprobs": full["logprobs"]["token_logprobs"]})
        );
        for field in ["text", "token_ids", "prompt_logprobs"] {
            assert_eq!(bare[field], full[field], "{field}");
        }
    }
    let error = server.error("/v1/completions", request(true, 1), 400).await;
    assert!(error.contains("return_bare_logprobs"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_says_what_the_whole_answer_says() {
    let server = Server::start().await;
    // Stop strings of one and two letters end many of the samples, in the middle of tokens too.
    let request = |stream: bool, stop: Value| {
        json!({
            "model": NAME, "prompt": prompts(6), "n": 4, "seed": 11, "max_tokens": 60, "stop": stop, "logprobs": 1,
            "return_token_ids": true, "return_weight_versions": true, "stream": stream,
            "stream_options": {"include_usage": true},
        })
    };
    for stop in [json!(null), json!("e"), json!(["th", "an", " 北京", "\u{fffd}"])] {
        let whole = server.ok("/v1/completions", request(false, stop.clone())).await;
        let pieces = server.stream("/v1/completions", request(true, stop.clone())).await;
        let (usage, pieces) = pieces.split_last().unwrap();
        assert_eq!(usage["choices"], json!([]));
        assert_eq!(usage["usage"], whole["usage"]);
        for choice in whole["choices"].as_array().unwrap() {
            let of_choice: Vec<&Value> = pieces
                .iter()
                .map(|piece| &piece["choices"][0])
                .filter(|piece| piece["index"] == choice["index"])
                .collect();
            let text: String = of_choice.iter().map(|piece| piece["text"].as_str().unwrap()).collect();
            assert_eq!(choice["text"], text);
            let tokens: Vec<u64> = of_choice.iter().flat_map(|piece| ids(piece)).collect();
            assert_eq!(ids(choice), tokens);
            let logprobs = of_choice
                .iter()
                .flat_map(|piece| piece["logprobs"]["token_logprobs"].as_array().unwrap());
            assert_eq!(
                choice["logprobs"]["token_logprobs"],
                json!(logprobs.collect::<Vec<_>>())
            );
            let (last, before) = of_choice.split_last().unwrap();
            assert!(before.iter().all(|piece| piece["finish_reason"].is_null()));
            for field in ["finish_reason", "stop_reason", "weight_versions"] {
                assert_eq!(last[field], choice[field], "{field}");
            }
            if choice["finish_reason"] == "stop" && choice["stop_reason"].is_string() {
                assert!(!text.ends_with(choice["stop_reason"].as_str().unwrap()));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ends_a_response_is_told_and_left_out_of_the_text_unless_asked_for() {
    let server = Server::start().await;
    let plain = json!({"model": NAME, "prompt": "What is 12", "seed": 3, "max_tokens": 200, "ignore_eos": true, "return_token_ids": true});
    let with = |patch: Value| {
        let mut request = plain.clone();
        request
            .as_object_mut()
            .unwrap()
            .extend(patch.as_object().unwrap().clone());
        request
    };
    let whole = server.ok("/v1/completions", plain.clone()).await["choices"][0].clone();
    assert_eq!(
        (&whole["finish_reason"], &whole["stop_reason"]),
        (&json!("length"), &Value::Null)
    );
    let (text, tokens) = (whole["text"].as_str().unwrap(), ids(&whole));
    // A letter of the middle of the text, where it first occurs.
    let stop: String = text
        .chars()
        .skip(20)
        .find(char::is_ascii_alphabetic)
        .unwrap()
        .to_string();
    let cut = server.ok("/v1/completions", with(json!({"stop": stop}))).await["choices"][0].clone();
    assert_eq!(
        (&cut["finish_reason"], &cut["stop_reason"]),
        (&json!("stop"), &json!(stop))
    );
    assert_eq!(cut["text"], text.split(&stop).next().unwrap());
    assert!(tokens.starts_with(&ids(&cut)));
    let kept = server
        .ok(
            "/v1/completions",
            with(json!({"stop": [stop], "include_stop_str_in_output": true})),
        )
        .await["choices"][0]
        .clone();
    assert_eq!(kept["text"], format!("{}{stop}", cut["text"].as_str().unwrap()));

    let token = tokens[30];
    let first = tokens.iter().position(|id| *id == token).unwrap();
    let ended = server
        .ok("/v1/completions", with(json!({"stop_token_ids": [token]})))
        .await["choices"][0]
        .clone();
    assert_eq!(
        (&ended["finish_reason"], &ended["stop_reason"]),
        (&json!("stop"), &json!(token))
    );
    assert_eq!(ids(&ended), tokens[..=first]);
    let later = with(json!({"stop_token_ids": [token], "min_tokens": first + 2}));
    let later = server.ok("/v1/completions", later).await["choices"][0].clone();
    assert!(ids(&later).len() >= first + 2, "min_tokens holds the end off");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tokenizers_own_end_is_no_reason_that_is_told_and_the_models_other_ends_are() {
    let server = Server::start().await;
    // generation_config.json of the tokenizer's folder has both.
    let (own, other) = (2, 0);
    // Hot enough that each is drawn soon.
    let request = |patch: Value| {
        let mut request = json!({"prompt": [5, 6, 7], "n": 64, "seed": 1, "temperature": 100, "max_tokens": 4000,
                                 "return_token_ids": true});
        request
            .as_object_mut()
            .unwrap()
            .extend(patch.as_object().unwrap().clone());
        request
    };
    let told = |answer: Value| -> Vec<(Option<u64>, Value)> {
        let choices = answer["choices"].as_array().unwrap().iter();
        choices
            .map(|choice| (ids(choice).last().copied(), choice["stop_reason"].clone()))
            .collect()
    };
    let ends = told(server.ok("/v1/completions", request(json!({}))).await);
    for (last, reason) in [(own, Value::Null), (other, json!(other))] {
        let of_token: Vec<_> = ends.iter().filter(|(id, _)| *id == Some(last)).collect();
        assert!(!of_token.is_empty(), "token {last} ended none of {ends:?}");
        assert!(of_token.iter().all(|(_, told)| *told == reason), "{of_token:?}");
    }
    let asked_for = request(json!({"ignore_eos": true, "stop_token_ids": [own]}));
    let ends = told(server.ok("/v1/completions", asked_for).await);
    assert!(
        ends.iter().all(|(last, reason)| *last == Some(own) && *reason == own),
        "{ends:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn greedy_takes_the_likeliest_token_and_its_log_probability_is_the_models_own() {
    let server = Server::start().await;
    let request = json!({"model": NAME, "prompt": [[9, 8, 7], [3]], "temperature": 0, "max_tokens": 12, "logprobs": 3,
                         "return_tokens_as_token_ids": true, "return_token_ids": true, "ignore_eos": true});
    let answer = server.ok("/v1/completions", request).await;
    for (choice, prompt) in answer["choices"]
        .as_array()
        .unwrap()
        .iter()
        .zip([vec![9, 8, 7], vec![3]])
    {
        let logprobs = &choice["logprobs"];
        for (at, token) in ids(choice).iter().enumerate() {
            let own = logprobs["token_logprobs"][at].as_f64().unwrap();
            let top = logprobs["top_logprobs"][at].as_object().unwrap();
            assert_eq!(top.len(), 3);
            assert_eq!(top[&format!("token_id:{token}")].as_f64(), Some(own));
            assert!(top.values().all(|other| other.as_f64().unwrap() <= own) && own < 0.0);
        }
        // The same tokens given as a prompt are scored the same: one model computes both.
        let all: Vec<u64> = prompt.iter().copied().chain(ids(choice)).collect();
        let scored = json!({"model": NAME, "prompt": all, "max_tokens": 1, "prompt_logprobs": 0});
        let scored = server.ok("/v1/completions", scored).await["choices"][0]["prompt_logprobs"].clone();
        assert!(scored[0].is_null());
        for (at, token) in ids(choice).iter().enumerate() {
            let entry = &scored[prompt.len() + at][token.to_string()];
            assert_eq!(entry["rank"], 1);
            let difference = entry["logprob"].as_f64().unwrap() - logprobs["token_logprobs"][at].as_f64().unwrap();
            assert!(difference.abs() < 1e-5, "{difference}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_echo_shows_the_prompt_and_its_log_probabilities_before_the_response_or_alone() {
    let server = Server::start().await;
    let text = "What is 12";
    let asked = async |tokens: u32, how: &str, value: Value| {
        let mut request = json!({"prompt": text, "max_tokens": tokens, "logprobs": 1, "seed": 1, "ignore_eos": true,
                                 "return_token_ids": true, "return_tokens_as_token_ids": true});
        request[how] = value;
        server.ok("/v1/completions", request).await
    };
    let plain = asked(3, "prompt_logprobs", json!(1)).await["choices"][0].clone();
    let both = asked(3, "echo", json!(true)).await["choices"][0].clone();
    let alone = asked(0, "echo", json!(true)).await;
    assert_eq!(alone["usage"]["completion_tokens"], 0);
    let alone = alone["choices"][0].clone();
    assert_eq!(alone["text"], text);
    assert_eq!(both["text"], format!("{text}{}", plain["text"].as_str().unwrap()));
    assert_eq!((ids(&both), ids(&alone)), (ids(&plain), vec![]));

    let list = |choice: &Value, name: &str| choice["logprobs"][name].as_array().unwrap().clone();
    let prompt = plain["prompt_token_ids"].as_array().unwrap();
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let whole = list(&both, name);
        let (of_prompt, of_response) = whole.split_at(prompt.len());
        assert_eq!(list(&alone, name), of_prompt, "{name}");
        match name {
            "text_offset" => assert_eq!(of_response[0], text.chars().count()),
            _ => assert_eq!(of_response, list(&plain, name), "{name}"),
        }
    }
    let (own, top) = (list(&alone, "token_logprobs"), list(&alone, "top_logprobs"));
    assert!(own[0].is_null() && top[0].is_null(), "nothing is before it");
    for (at, id) in prompt.iter().enumerate().skip(1) {
        let score = &plain["prompt_logprobs"][at][id.to_string()]["logprob"];
        assert!(score.is_number());
        assert_eq!((&own[at], &top[at][format!("token_id:{id}")]), (score, score));
    }
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "echo": true});
    assert!(server.error("/v1/chat/completions", chat, 400).await.contains("echo"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_goes_through_the_chat_template() {
    let server = Server::start().await;
    let messages = json!([{"role": "user", "content": "What is 12 plus 30?"}]);
    let tokenized = server.ok("/tokenize", json!({"messages": messages})).await;
    let text = server.ok("/detokenize", json!({"tokens": tokenized["tokens"]})).await;
    let text = text["prompt"].as_str().unwrap();
    assert!(
        text.contains("<|im_start|>user\nWhat is 12 plus 30?<|im_end|>") && text.ends_with("<|im_start|>assistant\n"),
        "{text}"
    );
    let request = |stream: bool| {
        json!({"model": NAME, "messages": messages, "seed": 5, "max_completion_tokens": 30, "logprobs": true, "top_logprobs": 2,
               "return_token_ids": true, "stream": stream})
    };
    let whole = server.ok("/v1/chat/completions", request(false)).await;
    assert_eq!(whole["object"], "chat.completion");
    let choice = &whole["choices"][0];
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(whole["prompt_token_ids"], tokenized["tokens"]);
    assert_eq!(
        choice["logprobs"]["content"].as_array().unwrap().len(),
        ids(choice).len()
    );
    let pieces = server.stream("/v1/chat/completions", request(true)).await;
    assert!(pieces.iter().all(|piece| piece["object"] == "chat.completion.chunk"));
    assert_eq!(pieces[0]["choices"][0]["delta"]["role"], "assistant");
    let text: String = pieces
        .iter()
        .map(|piece| piece["choices"][0]["delta"]["content"].as_str().unwrap())
        .collect();
    assert_eq!(choice["message"]["content"], text);
    // What the request says to the template wins.
    let variables = json!({"messages": messages, "chat_template_kwargs": {"add_generation_prompt": false}});
    let asked = json!({"messages": messages, "add_generation_prompt": false});
    assert_eq!(
        server.ok("/tokenize", variables).await["tokens"],
        server.ok("/tokenize", asked).await["tokens"]
    );
    for path in ["/tokenize", "/v1/chat/completions"] {
        let other = json!({"messages": messages, "chat_template": "{{ messages }}"});
        assert!(server.error(path, other, 400).await.contains("chat_template"));
    }
    for (asked, words) in [
        (json!({"prompt": ["a", "b"]}), "give one text"),
        (json!({"prompt": "a", "messages": messages}), "one of them"),
        (json!({}), "one of them"),
    ] {
        assert!(server.error("/tokenize", asked, 400).await.contains(words));
    }
    // The same tokens as a completion draw the same: chat is a way to write a prompt.
    let completion =
        json!({"model": NAME, "prompt": tokenized["tokens"], "seed": 5, "max_tokens": 30, "return_token_ids": true});
    let completion = server.ok("/v1/completions", completion).await;
    assert_eq!(ids(&completion["choices"][0]), ids(choice));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_may_be_as_long_as_the_cache_holds_where_the_context_is_longer() {
    let longest = 5500;
    let server = Server::start_with(Wanted {
        max_length: Some(longest),
        cache_mebibytes: Some(1),
        ..Wanted::default()
    })
    .await;
    let held = server.get_json("/v1/models").await["data"][0]["max_model_len"]
        .as_u64()
        .unwrap();
    assert!((1000..longest as u64).contains(&held), "{held}");
    let request = json!({"messages": [{"role": "user", "content": "Hi"}], "ignore_eos": true});
    let answer = server.ok("/v1/chat/completions", request).await;
    assert_eq!(answer["usage"]["total_tokens"], held);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seed_of_minus_one_is_none() {
    let server = Server::start().await;
    let drawn = async |seed: i64| {
        let request =
            json!({"prompt": [1, 2, 3], "max_tokens": 30, "seed": seed, "return_token_ids": true, "ignore_eos": true});
        ids(&server.ok("/v1/completions", request).await["choices"][0])
    };
    assert_ne!(drawn(-1).await, drawn(-1).await);
    assert_eq!(drawn(-2).await, drawn(-2).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_counts_and_times_each_choice_by_itself() {
    let server = Server::start().await;
    let request = json!({
        "prompt": [[1, 2, 3], [4]], "n": 2, "max_tokens": 20, "ignore_eos": true, "stream": true, "return_token_ids": true,
        "stream_options": {"include_usage": true, "continuous_usage_stats": true},
    });
    let pieces = server.stream("/v1/completions", request).await;
    let (whole, pieces) = pieces.split_last().unwrap();
    assert_eq!(whole["usage"]["total_tokens"], 84);
    let mut counted = [0; 4];
    for piece in pieces {
        let choice = &piece["choices"][0];
        let index = choice["index"].as_u64().unwrap() as usize;
        let tokens = ids(choice).len();
        counted[index] += tokens;
        let prompt = [3, 3, 1, 1][index];
        assert_eq!(
            piece["usage"],
            json!({"prompt_tokens": prompt, "completion_tokens": counted[index], "total_tokens": prompt + counted[index]})
        );
    }
    assert_eq!(counted, [20; 4]);
    let first = server.metric("vllm:time_to_first_token_seconds_count").await;
    let next = server.metric("vllm:inter_token_latency_seconds_count").await;
    assert_eq!((first, next), (4.0, 76.0), "of each token, however many a piece has");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_served_is_refused_with_the_field_and_harms_no_other() {
    let server = Server::start().await;
    let with = |patch: Value| {
        let mut request = json!({"model": NAME, "prompt": [1, 2, 3], "max_tokens": 4});
        request
            .as_object_mut()
            .unwrap()
            .extend(patch.as_object().unwrap().clone());
        request
    };
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
        (json!({"max_tokens": 65536}), "prompt and response"),
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
        (json!({"stop": ""}), "stop"),
        (json!({"stop": 1}), "expected a text"),
        (json!({"guided_regex": "a+"}), "guided_regex"),
        (json!({"seeds": [1, 2]}), "one for each"),
        (json!({"seeds": [1], "seed": 1}), "not both"),
        (json!({"seed": 1.5}), "seed"),
        (json!({"echo": true, "stream": true}), "echo: not with stream"),
        (json!({"echo": true, "prompt_logprobs": 1}), "echo: "),
        (json!({"best_of": 3}), "best_of"),
        (json!({"logit_bias": {"5": 1}}), "logit_bias"),
        (json!({"repetition_penalty": 1.1}), "repetition_penalty"),
        (json!({"response_format": {"type": "json_object"}}), "response_format"),
    ] {
        let message = server.error("/v1/completions", with(patch.clone()), 400).await;
        assert!(message.contains(word), "{patch}: {message}");
    }
    assert!(
        server
            .error("/v1/completions", with(json!({"model": "gpt-9"})), 404)
            .await
            .contains("gpt-9")
    );
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
    assert_eq!(server.get("/health").await.status(), 200);
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
