//! Requests to generate on their way through the door: one for each seed, and back as one answer with its version.

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Uri;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures::{StreamExt, TryFutureExt, TryStreamExt};
use reqwest::Method;
use serde_json::{Map, Value, json};

use super::abort::Noted;
use super::service::{Service, Version};
use crate::rollout::body;
use crate::rollout::error::ApiError;
use crate::rollout::settings::POLICY;

/// Samples of one request that vLLM is asked for at once: each is a connection, and vLLM computes 256 sequences at once unless it is told
/// otherwise.
const AT_ONCE: usize = 256;

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
    let path = uri.path();
    let streams = asked.get("stream") == Some(&Value::Bool(true));
    if streams && ours.seeds.is_some() {
        return Err(ApiError::field(
            "seeds",
            "a stream has none here: ask without stream, or with seed",
        ));
    }
    if streams && ours.versions {
        return Err(ApiError::field(
            "return_weight_versions",
            "a stream does not tell them here: ask without stream",
        ));
    }
    let (seeds, most) = (ours.seeds.as_ref().map_or(0, Vec::len), service.limits.samples);
    if seeds > most {
        return Err(ApiError::field(
            "seeds",
            format!("{seeds} in one request, at most {most}"),
        ));
    }
    let (held, version) = service.hold().await?;
    let name = asked.get("request_id").and_then(Value::as_str);
    let noted = name.map(|name| {
        service
            .names
            .note(name, names(path, &asked, name, ours.seeds.as_deref()))
    });
    if streams {
        return stream(&service, path, &asked, (held, noted)).await;
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
    drop((held, noted));
    Ok(Json(answer).into_response())
}

async fn ask(service: &Service, path: &str, asked: &Map<String, Value>) -> Result<Value, ApiError> {
    let call = service.vllm.request(Method::POST, path).json(asked);
    service.vllm.json(call, service.limits.request_timeout).await
}

/// What vLLM calls a request and its parts (0.32: `create_completion` in `entrypoints/openai/completion/serving.py`, and the same of chat).
fn names(path: &str, asked: &Map<String, Value>, name: &str, seeds: Option<&[u64]>) -> Vec<String> {
    if path.ends_with("/chat/completions") {
        return vec![format!("chatcmpl-{name}")];
    }
    match seeds {
        Some(seeds) => (0..seeds.len()).map(|index| format!("cmpl-{name}-{index}-0")).collect(),
        None => (0..prompts(asked).len())
            .map(|index| format!("cmpl-{name}-{index}"))
            .collect(),
    }
}

/// vLLM's events as they are; the version is held until the last.
async fn stream(
    service: &Service,
    path: &str,
    asked: &Map<String, Value>,
    held: (Version, Option<Noted>),
) -> Result<Response, ApiError> {
    let call = service.vllm.request(Method::POST, path).json(asked);
    let answer = service.vllm.send(call, service.limits.request_timeout).await?;
    let events = answer.bytes_stream().map(move |event| {
        let _held = &held;
        event
    });
    Ok(([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(events)).into_response())
}

/// One request for each seed, many at once, and their choices in one answer.
async fn ask_each(service: &Service, path: &str, asked: &Map<String, Value>, seeds: &[u64]) -> Result<Value, ApiError> {
    let questions = split(asked, seeds)?;
    let answers = questions.iter().enumerate();
    let answers: Vec<_> = answers
        .map(|(index, question)| ask(service, path, question).map_ok(move |answer| (index, answer)))
        .collect();
    let answers = futures::stream::iter(answers).buffer_unordered(AT_ONCE);
    let mut answers: Vec<(usize, Value)> = answers.try_collect().await?;
    answers.sort_unstable_by_key(|(index, _)| *index);
    merge(answers.into_iter().map(|(_, answer)| answer).collect())
}

/// The prompts of a request; a conversation has none.
fn prompts(asked: &Map<String, Value>) -> &[Value] {
    match asked.get("prompt") {
        Some(Value::Array(list)) if list.iter().any(|item| !item.is_number()) => list,
        Some(prompt) => std::slice::from_ref(prompt),
        None => &[],
    }
}

/// A request for each choice: prompt by prompt, the samples of one prompt together.
fn split(asked: &Map<String, Value>, seeds: &[u64]) -> Result<Vec<Map<String, Value>>, ApiError> {
    let n = asked.get("n").and_then(Value::as_u64).unwrap_or(1).max(1) as usize;
    let prompts = prompts(asked);
    if prompts.is_empty() {
        return Err(ApiError::field("seeds", "a conversation has none here: use seed"));
    }
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
    use super::super::stand_in::door;
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
    fn a_request_is_known_by_the_names_that_vllm_makes_of_its_own() {
        let asked = object(json!({"prompt": [[1, 2], [3]]}));
        let of = |path: &str, seeds: Option<&[u64]>| names(path, &asked, "r", seeds);
        assert_eq!(of("/v1/completions", None), ["cmpl-r-0", "cmpl-r-1"]);
        assert_eq!(of("/v1/completions", Some(&[7, 8])), ["cmpl-r-0-0", "cmpl-r-1-0"]);
        assert_eq!(of("/v1/chat/completions", None), ["chatcmpl-r"]);
    }

    #[tokio::test]
    async fn choices_come_back_in_the_order_of_their_seeds_however_many_there_are() {
        let folder = tempfile::tempdir().unwrap();
        let (service, _) = door(None, folder.path().into()).await;
        let seeds: Vec<u64> = (0..2 * AT_ONCE as u64).collect();
        let asked = object(json!({"prompt": [1], "n": seeds.len()}));
        let answer = ask_each(&service, "/v1/completions", &asked, &seeds).await.unwrap();
        let choices = answer["choices"].as_array().unwrap();
        assert_eq!(choices.len(), seeds.len());
        for (seed, choice) in choices.iter().enumerate() {
            let sent: Value = serde_json::from_str(choice["text"].as_str().unwrap()).unwrap();
            assert_eq!((&sent["seed"], &choice["index"]), (&json!(seed), &json!(seed)));
        }
    }

    #[tokio::test]
    async fn a_stream_that_could_not_tell_its_versions_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (service, asked) = door(None, folder.path().into()).await;
        let body = json!({"prompt": [1], "stream": true, "return_weight_versions": true});
        let request = axum::http::Request::post("/v1/completions").header(CONTENT_TYPE, "application/json");
        let request = request.body(Body::from(body.to_string())).unwrap();
        let answer = generate(State(service), Uri::from_static("/v1/completions"), request).await;
        assert_eq!(answer.unwrap_err().param, Some("return_weight_versions"));
        assert!(asked.lock().unwrap().is_empty());
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
