//! What is generated, and how it is shown.

use serde_json::{Value, json};

use crate::support::{NAME, Server, VOCABULARY, Wanted, ids, with_fields};

/// Prompts of several lengths, as token ids.
pub fn prompts(count: u32) -> Vec<Vec<u32>> {
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
async fn what_ends_a_response_is_told_and_left_out_of_the_text_unless_asked_for() {
    let server = Server::start().await;
    let plain = json!({"model": NAME, "prompt": "What is 12", "seed": 3, "max_tokens": 200, "ignore_eos": true, "return_token_ids": true});
    let with = |patch: Value| with_fields(plain.clone(), patch);
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
        let request = json!({"prompt": [5, 6, 7], "n": 64, "seed": 1, "temperature": 100, "max_tokens": 4000,
                             "return_token_ids": true});
        with_fields(request, patch)
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
async fn the_models_ends_are_not_drawn_before_the_minimum_even_where_they_end_nothing() {
    let server = Server::start().await;
    let request = json!({"prompt": [5, 6, 7], "n": 16, "seed": 1, "temperature": 100, "max_tokens": 400, "min_tokens": 200,
                         "ignore_eos": true, "return_token_ids": true});
    let answer = server.ok("/v1/completions", request).await;
    let is_end = |id: &u64| [0, 2].contains(id);
    let (mut early, mut late) = (0, 0);
    for choice in answer["choices"].as_array().unwrap() {
        let ids = ids(choice);
        assert_eq!(ids.len(), 400);
        early += ids[..200].iter().filter(|id| is_end(id)).count();
        late += ids[200..].iter().filter(|id| is_end(id)).count();
    }
    assert_eq!(early, 0);
    assert!(late > 0, "hot enough that each is drawn");
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
async fn an_echo_has_the_special_tokens_of_its_prompt_whatever_the_response_leaves_out() {
    let server = Server::start().await;
    let text = "<|im_start|>user\nWhat is  12<|im_end|>";
    let ids = server.ok("/tokenize", json!({"prompt": text})).await["tokens"].clone();
    for prompt in [json!(text), ids] {
        let request = json!({"prompt": prompt, "max_tokens": 1, "echo": true, "logprobs": 0, "ignore_eos": true});
        let choice = server.ok("/v1/completions", request).await["choices"][0].clone();
        assert!(choice["text"].as_str().unwrap().starts_with(text), "{choice}");
        let offsets: Vec<u64> = serde_json::from_value(choice["logprobs"]["text_offset"].clone()).unwrap();
        assert_eq!(offsets[..2], [0, "<|im_start|>".len() as u64], "{choice}");
        assert_eq!(offsets.last(), Some(&(text.len() as u64)), "{choice}");
    }
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
