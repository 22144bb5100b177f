//! Answers that come piece by piece.

use serde_json::{Value, json};

use crate::answers::prompts;
use crate::support::{NAME, Server, ids};

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_says_what_the_whole_answer_says() {
    let server = Server::start().await;
    // Stop strings of one and two letters end many of the samples, in the middle of tokens too.
    let request = |stream: bool, stop: Value| {
        json!({
            "model": NAME, "prompt": prompts(6), "n": 4, "seed": 11, "max_tokens": 60, "stop": stop, "logprobs": 1,
            "return_token_ids": true, "return_weight_versions": true, "stream": stream,
            "stream_options": stream.then(|| json!({"include_usage": true})),
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
            assert!(
                of_choice.iter().all(|piece| !ids(piece).is_empty()),
                "the end comes with the last token"
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
    let whole = json!({"prompt": [1, 2, 3], "n": 2, "max_tokens": 20, "ignore_eos": true});
    server.ok("/v1/completions", whole).await;
    let first = server.metric("vllm:time_to_first_token_seconds_count").await;
    let next = server.metric("vllm:inter_token_latency_seconds_count").await;
    assert_eq!((first, next), (6.0, 114.0), "and of an answer that is no stream");
}

#[tokio::test(flavor = "multi_thread")]
async fn where_the_time_of_samples_went_and_what_was_asked_for_is_counted_streamed_or_not() {
    let server = Server::start().await;
    let request = |stream: bool| {
        json!({
            "prompt": [[1, 2, 3], [4]], "n": 2, "max_tokens": 20, "ignore_eos": true, "stream": stream,
        })
    };
    server.stream("/v1/completions", request(true)).await;
    server.ok("/v1/completions", request(false)).await;
    let metric = async |name: &str| server.metric(&format!("vllm:request_{name}")).await;
    for time in ["queue", "prefill", "decode", "inference"] {
        let counted = metric(&format!("{time}_time_seconds_count")).await;
        assert_eq!(counted, 8.0, "{time}: of each sample");
    }
    for (name, counted, sum) in [
        ("prompt_tokens", 8.0, 16.0),
        ("generation_tokens", 8.0, 160.0),
        ("params_max_tokens", 8.0, 160.0),
        ("params_n", 4.0, 8.0),
    ] {
        let found = (
            metric(&format!("{name}_count")).await,
            metric(&format!("{name}_sum")).await,
        );
        assert_eq!(found, (counted, sum), "{name}");
    }
    let parts = metric("prefill_time_seconds_sum").await + metric("decode_time_seconds_sum").await;
    let inference = metric("inference_time_seconds_sum").await;
    assert!((parts - inference).abs() < 1e-6, "{parts} and {inference}");
    assert_eq!(server.metric("vllm:cache_config_info").await, 1.0);
}
