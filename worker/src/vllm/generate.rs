//! Requests to generate on their way through the door: one for each seed, and back as one answer with its version.

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Uri;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use reqwest::Method;
use serde_json::{Map, Value, json};

use super::service::{Service, Version};
use crate::rollout::body;
use crate::rollout::error::ApiError;
use crate::rollout::settings::POLICY;

/// What a request says beyond vLLM's own words.
struct Ours {
    /// The seed of each choice (our extension).
    seeds: Option<Vec<u64>>,
    /// Each choice tells its version: completions of vLLM 0.32 and 0.33 do not.
    versions: bool,
    /// Token ids are part of the answer.
    token_ids: bool,
}

impl Ours {
    /// Takes them out of a request.
    fn take(asked: &mut Map<String, Value>) -> Result<Self, ApiError> {
        let seeds = asked.remove("seeds").filter(|seeds| !seeds.is_null());
        let seeds = seeds.map(serde_json::from_value).transpose();
        let mut flag = |name: &str| asked.remove(name).is_some_and(|value| value == true);
        let ours = Self {
            seeds: seeds.map_err(|error| ApiError::field("seeds", error))?,
            versions: flag("return_weight_versions"),
            token_ids: flag("return_token_ids"),
        };
        // vLLM always decodes, and labels every log-probability.
        asked.remove("detokenize");
        asked.remove("return_bare_logprobs");
        asked.insert("model".into(), json!(POLICY));
        asked.insert("return_token_ids".into(), json!(ours.token_ids || ours.versions));
        Ok(ours)
    }
}

/// `/v1/completions` and `/v1/chat/completions`.
///
/// # Errors
/// What is wrong with the request, what vLLM says of it, or why it cannot be served.
pub async fn generate(State(service): State<Service>, uri: Uri, request: Request) -> Result<Response, ApiError> {
    service.model()?;
    let mut asked: Map<String, Value> = body::json(&service.bodies, request).await?;
    let ours = Ours::take(&mut asked)?;
    let (held, version) = service.hold().await?;
    let path = uri.path();
    if asked.get("stream") == Some(&Value::Bool(true)) {
        if ours.seeds.is_some() {
            return Err(ApiError::field(
                "seeds",
                "a stream has none here: ask without stream, or with seed",
            ));
        }
        return stream(&service, path, &asked, held).await;
    }
    let mut answer = match &ours.seeds {
        None => ask(&service, path, &asked).await?,
        Some(seeds) => ask_each(&service, path, &asked, seeds).await?,
    };
    let choices = answer.get_mut("choices").and_then(Value::as_array_mut);
    for choice in choices.into_iter().flatten().filter_map(Value::as_object_mut) {
        if ours.versions {
            let tokens = choice.get("token_ids").and_then(Value::as_array).map_or(0, Vec::len);
            let span = json!([{"version": version.to_string(), "start": 0, "end": tokens}]);
            choice.insert("weight_versions".into(), span);
        }
        if !ours.token_ids {
            choice.remove("token_ids");
            choice.remove("prompt_token_ids");
        }
    }
    drop(held);
    Ok(Json(answer).into_response())
}

async fn ask(service: &Service, path: &str, asked: &Map<String, Value>) -> Result<Value, ApiError> {
    let call = service.vllm.request(Method::POST, path).json(asked);
    service.vllm.json(call, service.limits.request_timeout).await
}

/// vLLM's events as they are; the version is held until the last.
async fn stream(
    service: &Service,
    path: &str,
    asked: &Map<String, Value>,
    held: Version,
) -> Result<Response, ApiError> {
    let call = service.vllm.request(Method::POST, path).json(asked);
    let answer = service.vllm.send(call, service.limits.request_timeout).await?;
    let events = answer.bytes_stream().map(move |event| {
        let _held = &held;
        event
    });
    Ok(([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(events)).into_response())
}

/// One request for each seed, all at once, and their choices in one answer.
async fn ask_each(service: &Service, path: &str, asked: &Map<String, Value>, seeds: &[u64]) -> Result<Value, ApiError> {
    let questions = split(asked, seeds)?;
    if questions.len() > service.limits.samples {
        let words = format!("{} in one request, at most {}", questions.len(), service.limits.samples);
        return Err(ApiError::field("seeds", words));
    }
    let answers = questions.iter().map(|question| ask(service, path, question));
    merge(futures::future::try_join_all(answers).await?)
}

/// A request for each choice: prompt by prompt, the samples of one prompt together.
fn split(asked: &Map<String, Value>, seeds: &[u64]) -> Result<Vec<Map<String, Value>>, ApiError> {
    let n = asked.get("n").and_then(Value::as_u64).unwrap_or(1).max(1) as usize;
    let prompts: Vec<Value> = match asked.get("prompt") {
        Some(Value::Array(list)) if list.iter().any(|item| !item.is_number()) => list.clone(),
        Some(prompt) => vec![prompt.clone()],
        None => return Err(ApiError::field("seeds", "a conversation has none here: use seed")),
    };
    if Some(seeds.len()) != prompts.len().checked_mul(n) {
        let words = format!("{} for {} prompts of {n} samples", seeds.len(), prompts.len());
        return Err(ApiError::field("seeds", words));
    }
    let name = asked.get("request_id").and_then(Value::as_str);
    let question = |(index, seed): (usize, &u64)| {
        let mut question = asked.clone();
        question.insert("prompt".into(), prompts[index / n].clone());
        question.insert("n".into(), json!(1));
        // vLLM's seeds are signed, and -1 is none.
        question.insert("seed".into(), json!(seed & (u64::MAX >> 1)));
        if let Some(name) = name {
            question.insert("request_id".into(), json!(format!("{name}-{index}")));
        }
        question
    };
    Ok(seeds.iter().enumerate().map(question).collect())
}

/// The answers' choices, numbered, in the first answer.
fn merge(answers: Vec<Value>) -> Result<Value, ApiError> {
    let mut choices = Vec::with_capacity(answers.len());
    let (mut prompt, mut completion) = (0, 0);
    for (index, answer) in answers.iter().enumerate() {
        let choice = answer.pointer("/choices/0").filter(|choice| choice.is_object());
        let mut choice = choice
            .ok_or_else(|| ApiError::internal("vLLM's answer has no choice"))?
            .clone();
        choice["index"] = json!(index);
        choices.push(choice);
        let count = |name: &str| answer.pointer(name).and_then(Value::as_u64).unwrap_or(0);
        prompt += count("/usage/prompt_tokens");
        completion += count("/usage/completion_tokens");
    }
    let mut merged = answers
        .into_iter()
        .next()
        .ok_or_else(|| ApiError::field("seeds", "there is none"))?;
    merged["choices"] = Value::Array(choices);
    merged["usage"] = json!({
        "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
    });
    Ok(merged)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn each_seed_is_a_request_of_its_own_and_their_choices_come_back_in_order() {
        let asked = object(json!({"prompt": [[1, 2], [3]], "n": 2, "max_tokens": 4, "request_id": "v3-7"}));
        let questions = split(&asked, &[5, 6, u64::MAX, 8]).unwrap();
        let told: Vec<Value> = questions
            .iter()
            .map(|question| {
                json!([
                    question["prompt"],
                    question["n"],
                    question["seed"],
                    question["request_id"]
                ])
            })
            .collect();
        assert_eq!(
            json!(told),
            json!([
                [[1, 2], 1, 5, "v3-7-0"],
                [[1, 2], 1, 6, "v3-7-1"],
                [[3], 1, i64::MAX, "v3-7-2"],
                [[3], 1, 8, "v3-7-3"]
            ])
        );
        let answer = |text: &str| {
            json!({"id": "x", "choices": [{"index": 0, "text": text}],
                   "usage": {"prompt_tokens": 2, "completion_tokens": 3}})
        };
        let merged = merge(vec![answer("a"), answer("b")]).unwrap();
        assert_eq!(
            merged["choices"],
            json!([{"index": 0, "text": "a"}, {"index": 1, "text": "b"}])
        );
        assert_eq!(merged["usage"]["total_tokens"], 10);
    }

    #[test]
    fn one_prompt_of_ids_or_of_text_is_one_prompt() {
        for prompt in [json!([1, 2, 3]), json!("abc")] {
            let asked = object(json!({"prompt": prompt}));
            assert_eq!(split(&asked, &[1]).unwrap()[0]["prompt"], prompt);
            assert!(split(&asked, &[1, 2]).is_err(), "two seeds for one choice");
        }
        assert!(split(&object(json!({"messages": []})), &[1]).is_err());
    }

    #[test]
    fn what_only_we_understand_does_not_reach_vllm() {
        let mut asked = object(json!({
            "seeds": [1], "return_weight_versions": true, "return_bare_logprobs": true, "detokenize": false, "model": "m",
        }));
        let ours = Ours::take(&mut asked).unwrap();
        assert_eq!(json!(asked), json!({"model": POLICY, "return_token_ids": true}));
        assert!(ours.versions && !ours.token_ids && ours.seeds == Some(vec![1]));
    }
}
