//! Requests to generate on their way through the door: one for each seed, and back as one answer with its version.

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Uri;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures::{StreamExt, TryStreamExt};
use reqwest::Method;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;

use super::abort::Noted;
use super::asked::Asked;
use super::service::{Held, Service};
use crate::serving::body;
use crate::serving::error::ApiError;

/// What a request holds until its last byte: weights, its name, and room for its samples.
type Holds = (Held, Option<Noted>, OwnedSemaphorePermit);

/// `/v1/completions` and `/v1/chat/completions`.
///
/// # Errors
/// What is wrong with the request, what vLLM says of it, or why it cannot be served: 429 when too many samples wait.
pub async fn generate(State(service): State<Service>, uri: Uri, request: Request) -> Result<Response, ApiError> {
    let longest = service.model()?.max_positions;
    let path = uri.path();
    let asked = Asked::new(body::json(&service.bodies, request).await?, path)?;
    asked.check(&service.limits, longest)?;
    let room = service.in_flight.enter(asked.samples())?;
    let (held, policy) = service.hold().await?;
    let name = asked.name.as_deref();
    let noted = name.map(|name| service.names.note(name, asked.parts(name)));
    let holds: Holds = (held, noted, room);
    if asked.streams {
        return stream(&service, path, &asked, holds).await;
    }
    let mut answer = match asked.split() {
        None => ask(&service, path, &asked.fields).await?,
        Some(questions) => ask_each(&service, path, &asked, questions).await?,
    };
    let choices = answer.get_mut("choices").and_then(Value::as_array_mut);
    for choice in choices.into_iter().flatten().filter_map(Value::as_object_mut) {
        if asked.versions {
            let tokens = choice.get("token_ids").and_then(Value::as_array).map_or(0, Vec::len);
            let span = json!([{"version": policy.version.to_string(), "start": 0, "end": tokens}]);
            choice.insert("weight_versions".into(), span);
        }
        if !asked.token_ids {
            choice.remove("token_ids");
            choice.remove("prompt_token_ids");
        }
    }
    drop(holds);
    Ok(Json(answer).into_response())
}

async fn ask(service: &Service, path: &str, asked: &(impl Serialize + Sync)) -> Result<Value, ApiError> {
    let call = service.vllm.request(Method::POST, path).json(asked);
    service.vllm.json(call, service.limits.request_timeout).await
}

/// vLLM's events as they are; what the request holds it holds until the last.
async fn stream(service: &Service, path: &str, asked: &Asked, holds: Holds) -> Result<Response, ApiError> {
    let call = service.vllm.request(Method::POST, path).json(&asked.fields);
    let answer = service.vllm.send(call, service.limits.request_timeout).await?;
    let events = answer.bytes_stream().map(move |event| {
        let _holds = &holds;
        event
    });
    Ok(([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(events)).into_response())
}

/// One request for each seed, many at once, and their choices in one answer.
async fn ask_each(service: &Service, path: &str, asked: &Asked, questions: usize) -> Result<Value, ApiError> {
    let asking = futures::stream::iter(0..questions).map(move |index| ask_one(service, path, asked, index));
    let answers = asking.buffer_unordered(service.room.at_once());
    let mut answers: Vec<(usize, Value)> = answers.try_collect().await?;
    answers.sort_unstable_by_key(|(index, _)| *index);
    merge(answers.into_iter().map(|(_, answer)| answer).collect())
}

/// What vLLM says of the choice `index`. Its question is written once there is room for it.
async fn ask_one(service: &Service, path: &str, asked: &Asked, index: usize) -> Result<(usize, Value), ApiError> {
    let question = asked.question(index);
    let question = question.ok_or_else(|| ApiError::internal(format!("there is no question for choice {index}")))?;
    let _room = service.room.enter(question.bytes()).await?;
    Ok((index, ask(service, path, &question).await?))
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
    use axum::http::StatusCode;

    use super::super::stand_in::door;
    use super::*;

    const COMPLETIONS: &str = "/v1/completions";

    fn post(body: &Value) -> Request {
        let request = Request::post(COMPLETIONS).header(CONTENT_TYPE, "application/json");
        request.body(Body::from(body.to_string())).unwrap()
    }

    async fn answer(service: &Service, body: Value) -> Result<Response, ApiError> {
        generate(State(service.clone()), Uri::from_static(COMPLETIONS), post(&body)).await
    }

    #[test]
    fn answers_to_several_questions_become_one() {
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

    #[tokio::test]
    async fn choices_come_back_in_the_order_of_their_seeds_however_many_there_are() {
        let folder = tempfile::tempdir().unwrap();
        let (service, _) = door(None, folder.path().into()).await;
        let seeds: Vec<u64> = (0..service.room.at_once() as u64 + 10).collect();
        let body = json!({"prompt": [1], "n": seeds.len(), "seeds": seeds});
        let answer = answer(&service, body).await.unwrap();
        let answer = axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        let answer: Value = serde_json::from_slice(&answer).unwrap();
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
        let answer = answer(&service, body).await;
        assert_eq!(answer.unwrap_err().param.as_deref(), Some("return_weight_versions"));
        assert!(asked.lock().is_empty());
    }

    #[tokio::test]
    async fn a_full_door_says_so_at_once_and_has_room_again_when_others_are_answered() {
        let folder = tempfile::tempdir().unwrap();
        let (service, asked) = door(None, folder.path().into()).await;
        let others = service.in_flight.enter(service.limits.samples - 1).unwrap();
        for body in [
            json!({"prompt": [1], "n": 2}),
            json!({"prompt": [1], "n": 2, "seeds": [1, 2]}),
        ] {
            let refused = answer(&service, body).await.unwrap_err();
            assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS, "{refused}");
        }
        assert!(asked.lock().is_empty());
        // A stream has its room until its last byte.
        let stream = answer(&service, json!({"prompt": [1], "stream": true})).await.unwrap();
        assert!(answer(&service, json!({"prompt": [1]})).await.is_err());
        drop(stream);
        answer(&service, json!({"prompt": [1]})).await.unwrap();
        drop(others);
        answer(&service, json!({"prompt": [1], "n": service.limits.samples}))
            .await
            .unwrap();
    }
}
