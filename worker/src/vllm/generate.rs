//! Requests to generate on their way through the door: one for each seed, and back as one answer with its version.

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Uri;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures::{StreamExt, TryStreamExt, stream};
use reqwest::Method;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;

use super::abort::Noted;
use super::asked::Asked;
use super::service::{Held, Service};
use crate::rollout::response::now;
use crate::rollout::settings::POLICY;
use crate::serving::body;
use crate::serving::error::ApiError;

/// What a request holds until its last byte.
struct Holds {
    /// The weights that it is answered by.
    _weights: Held,
    /// Its name.
    noted: Noted,
    /// For its samples.
    _room: OwnedSemaphorePermit,
    /// For the log-probabilities that its answer lists.
    _listing: OwnedSemaphorePermit,
    /// For its question, where it is one as it is.
    _question: Option<OwnedSemaphorePermit>,
}

/// `/v1/completions` and `/v1/chat/completions`.
///
/// # Errors
/// What is wrong with the request, what vLLM says of it, or why it cannot be served: 429 when too many samples wait.
pub async fn generate(State(service): State<Service>, uri: Uri, request: Request) -> Result<Response, ApiError> {
    let longest = service.model()?.max_positions;
    let path = uri.path();
    let headers = request.headers().clone();
    let mut asked = Asked::new(body::json(&service.bodies, request).await?, path)?;
    asked.named_by(&headers)?;
    asked.check(&service.limits, longest)?;
    let room = service.in_flight.enter(asked.samples())?;
    let name = asked.name.as_deref();
    let parts = name.map_or_else(Vec::new, |name| asked.parts(name));
    let noted = service.names.note(name, parts);
    let (held, policy) = noted.unless_aborted("vLLM's new weights", service.hold()).await?;
    let question = match asked.split() {
        // Each of them waits for room of its own.
        Some(_) => None,
        // As those do once it has the weights: who had room and waited for weights could hold up those that an update waits for.
        None => Some(
            noted
                .unless_aborted("others", service.room.enter(asked.bytes()))
                .await?,
        ),
    };
    let patience = service.limits.request_timeout;
    let listing = service.listing.enter(asked.listed(longest), 0, patience);
    let listing = noted.unless_aborted("others", listing).await?;
    noted.goes_to_vllm();
    let holds = Holds {
        _weights: held,
        noted,
        _room: room,
        _listing: listing,
        _question: question,
    };
    if asked.streams {
        return streamed(&service, path, &asked, holds).await;
    }
    let mut answer = match asked.split() {
        None => ask(&service, path, &asked, &asked.fields).await?,
        Some(questions) => ask_each(&service, path, &asked, questions, &holds.noted).await?,
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
    // In a conversation they stand beside the choices.
    if let Some(answer) = answer.as_object_mut().filter(|_| !asked.token_ids) {
        answer.remove("prompt_token_ids");
    }
    // Written before its room is given back.
    let answer = Json(answer).into_response();
    drop(holds);
    Ok(answer)
}

/// What vLLM says of `question`, which is all or a part of what was asked, as far as it is wanted.
async fn ask(
    service: &Service,
    path: &str,
    asked: &Asked,
    question: &(impl Serialize + Sync),
) -> Result<Value, ApiError> {
    let call = service.vllm.request(Method::POST, path).json(question);
    let mut answer = service.vllm.json(call, service.limits.request_timeout).await?;
    if asked.bare {
        // At once: it waits here for those to other seeds, and what goes takes many times the memory of what stays.
        keep_numbers(&mut answer);
    }
    Ok(answer)
}

/// Of the choices' log-probabilities the drawn tokens' numbers alone.
fn keep_numbers(answer: &mut Value) {
    let choices = answer.get_mut("choices").and_then(Value::as_array_mut);
    for choice in choices.into_iter().flatten() {
        if let Some(logprobs) = choice.get_mut("logprobs").and_then(Value::as_object_mut) {
            logprobs.retain(|name, _| name == "token_logprobs");
        }
    }
}

/// vLLM's events as they are; what the request holds it holds until the last.
async fn streamed(service: &Service, path: &str, asked: &Asked, holds: Holds) -> Result<Response, ApiError> {
    let call = service.vllm.request(Method::POST, path).json(&asked.fields);
    let answer = service.vllm.send(call, service.limits.request_timeout).await?;
    let mut events = Box::pin(answer.bytes_stream());
    let events = stream::poll_fn(move |context| {
        // All of them: a closure takes no more than it names.
        let holds: &Holds = &holds;
        let event = events.poll_next_unpin(context);
        // While an event waits for its client it is not vLLM that the request waits for.
        holds.noted.set_at_vllm(event.is_pending());
        event
    });
    Ok(([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(events)).into_response())
}

/// One request for each seed, many at once, and their choices in one answer.
async fn ask_each(
    service: &Service,
    path: &str,
    asked: &Asked,
    questions: usize,
    noted: &Noted,
) -> Result<Value, ApiError> {
    let asking = futures::stream::iter(0..questions).map(move |index| ask_one(service, path, asked, index, noted));
    let answers = asking.buffer_unordered(service.room.at_once());
    let mut answers: Vec<(usize, Value)> = answers.try_collect().await?;
    answers.sort_unstable_by_key(|(index, _)| *index);
    merge(answers.into_iter().map(|(_, answer)| answer).collect(), asked.n)
}

/// What vLLM says of the choice `index`. Its question is written once there is room for it, unless it is aborted before.
async fn ask_one(
    service: &Service,
    path: &str,
    asked: &Asked,
    index: usize,
    noted: &Noted,
) -> Result<(usize, Value), ApiError> {
    let question = asked.question(index);
    let question = question.ok_or_else(|| ApiError::internal(format!("there is no question for choice {index}")))?;
    let _room = tokio::select! {
        biased;
        () = noted.aborted(Some(index)) => return Ok((index, unasked(asked, index))),
        room = service.room.enter(question.bytes()) => room?,
    };
    Ok((index, ask(service, path, asked, &question).await?))
}

/// What vLLM would say of the choice `index` if it had it and was told to abort it before its first token.
fn unasked(asked: &Asked, index: usize) -> Value {
    let name = asked.name.as_deref().unwrap_or("aborted");
    let lists = json!({"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []});
    let logprobs = asked.fields.contains_key("logprobs").then_some(lists);
    let mut answer = json!({
        "id": format!("cmpl-{name}-{index}"), "object": "text_completion", "created": now(), "model": POLICY,
        "choices": [{"index": 0, "text": "", "token_ids": [], "logprobs": logprobs, "finish_reason": "abort", "stop_reason": null}],
    });
    if asked.bare {
        keep_numbers(&mut answer);
    }
    answer
}

/// The answers' choices, numbered, in the first answer. `n` of them follow each other for each prompt, whose tokens count once.
fn merge(answers: Vec<Value>, n: usize) -> Result<Value, ApiError> {
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
        if index.is_multiple_of(n) {
            prompt += count("/usage/prompt_tokens");
        }
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
    use std::time::Duration;

    use axum::http::StatusCode;
    use futures::FutureExt;

    use super::super::abort::abort_requests;
    use super::super::stand_in::{door, door_of};
    use super::*;
    use crate::rollout::weights::attempt::PolicyVersion;
    use crate::serving::limits::Limits;

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
        let merged = merge(vec![answer("a"), answer("b")], 1).unwrap();
        assert_eq!(
            merged["choices"],
            json!([{"index": 0, "text": "a"}, {"index": 1, "text": "b"}])
        );
        assert_eq!(merged["usage"]["total_tokens"], 10);
        let of_one_prompt = merge(vec![answer("a"), answer("b")], 2).unwrap();
        assert_eq!(
            of_one_prompt["usage"],
            json!({"prompt_tokens": 2, "completion_tokens": 6, "total_tokens": 8}),
            "as in vLLM's answer to n"
        );
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
    async fn whoever_wants_bare_log_probabilities_gets_no_labels_with_seeds_or_without() {
        let folder = tempfile::tempdir().unwrap();
        let (service, _) = door(None, folder.path().into()).await;
        let numbers = json!([-0.5]);
        let bare = json!({"token_logprobs": numbers});
        let labelled = json!({"token_logprobs": numbers, "tokens": ["a"], "top_logprobs": [{"a": -0.5}]});
        for seeds in [json!(null), json!([7])] {
            for (is_bare, wanted) in [(true, &bare), (false, &labelled)] {
                let body = json!({"prompt": [1], "seeds": seeds, "return_bare_logprobs": is_bare});
                let answer = answer(&service, body).await.unwrap();
                let answer = axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
                let answer: Value = serde_json::from_slice(&answer).unwrap();
                assert_eq!(&answer["choices"][0]["logprobs"], wanted);
            }
        }
    }

    #[tokio::test]
    async fn an_abort_by_the_name_in_the_headers_is_of_that_request() {
        let folder = tempfile::tempdir().unwrap();
        let (service, asked) = door(None, folder.path().into()).await;
        let _others = service.room.enter(usize::MAX).await.unwrap();
        let mut request = post(&json!({"prompt": [1], "seeds": [7]}));
        request.headers_mut().insert("x-request-id", "r".parse().unwrap());
        let asking = generate(State(service.clone()), Uri::from_static(COMPLETIONS), request);
        aborted(&service, &["r"], asking).await.unwrap();
        assert!(asked.lock().iter().all(|asked| asked.starts_with("/abort_requests")));
    }

    #[tokio::test]
    async fn a_conversation_that_wants_its_versions_gets_no_ids_that_nobody_asked_for() {
        let said = || async { Json(json!({"prompt_token_ids": [1, 2], "choices": [{"token_ids": [3]}]})) };
        let chat = "/v1/chat/completions";
        let router = axum::Router::new().route(chat, axum::routing::post(said));
        let service = door_of(router, Limits::default(), "unused".into()).await;
        for ids in [false, true] {
            let body = json!({"messages": [], "return_weight_versions": true, "return_token_ids": ids});
            let answer = generate(State(service.clone()), Uri::from_static(chat), post(&body))
                .await
                .unwrap();
            let answer = axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
            let answer: Value = serde_json::from_slice(&answer).unwrap();
            assert_eq!(answer.get("prompt_token_ids").is_some(), ids);
            assert_eq!(answer["choices"][0].get("token_ids").is_some(), ids);
            assert_eq!(answer["choices"][0]["weight_versions"][0]["end"], 1);
        }
    }

    /// What `asking` comes to when the requests `names` are aborted while it waits at the door.
    async fn aborted(
        service: &Service,
        names: &[&str],
        asking: impl Future<Output = Result<Response, ApiError>>,
    ) -> Result<Response, ApiError> {
        let mut asking = std::pin::pin!(asking);
        let early = tokio::time::timeout(Duration::from_millis(100), &mut asking).await;
        assert!(early.is_err(), "it waits");
        let request = post(&json!({"request_ids": names}));
        drop(abort_requests(State(service.clone()), request).await.unwrap());
        tokio::time::timeout(Duration::from_secs(20), asking).await.unwrap()
    }

    #[tokio::test]
    async fn a_question_that_is_aborted_while_it_waits_for_room_is_never_asked_and_answered_without_tokens() {
        let folder = tempfile::tempdir().unwrap();
        let (service, asked) = door(None, folder.path().into()).await;
        let _others = service.room.enter(usize::MAX).await.unwrap();
        for names in [&["r"][..], &["cmpl-r-0-0", "cmpl-r-1-0"], &[]] {
            let body = json!({"prompt": [1], "n": 2, "seeds": [7, 8], "request_id": "r", "logprobs": 0,
                              "return_bare_logprobs": true, "return_token_ids": true});
            let answer = aborted(&service, names, answer(&service, body)).await.unwrap();
            let answer = axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
            let answer: Value = serde_json::from_slice(&answer).unwrap();
            for choice in answer["choices"].as_array().unwrap() {
                assert_eq!(choice["finish_reason"], "abort");
                assert_eq!(choice["token_ids"], json!([]));
                assert_eq!(choice["logprobs"], json!({"token_logprobs": []}));
            }
            assert_eq!(answer["choices"].as_array().unwrap().len(), 2);
        }
        let asked = asked.lock();
        assert!(
            asked.iter().all(|asked| asked.starts_with("/abort_requests")),
            "{asked:?}"
        );
    }

    #[tokio::test]
    async fn a_question_that_goes_on_as_it_is_waits_for_room_too_and_a_stream_has_it_until_its_last_byte() {
        let folder = tempfile::tempdir().unwrap();
        let (service, asked) = door(None, folder.path().into()).await;
        let others = service.room.enter(usize::MAX).await.unwrap();
        for streams in [false, true] {
            let body = json!({"prompt": [1], "request_id": "r", "stream": streams});
            let refused = aborted(&service, &["r"], answer(&service, body)).await.unwrap_err();
            assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE, "{refused}");
        }
        assert_eq!(asked.lock().len(), 2, "to abort, and nothing else");
        drop(others);
        let body = json!({"prompt": [1], "stream": true});
        let stream = answer(&service, body).await.unwrap();
        assert!(service.room.enter(usize::MAX).now_or_never().is_none());
        drop(stream);
        assert!(service.room.enter(usize::MAX).now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_request_that_is_aborted_while_it_waits_for_new_weights_is_never_asked() {
        let folder = tempfile::tempdir().unwrap();
        let (service, asked) = door(None, folder.path().into()).await;
        let policy = PolicyVersion {
            attempt: None,
            version: 7,
        };
        let mut loading = std::pin::pin!(service.change(policy, std::future::pending()));
        let early = tokio::time::timeout(Duration::from_millis(10), &mut loading).await;
        assert!(early.is_err());
        for names in [&["r"][..], &[]] {
            let body = json!({"prompt": [1], "request_id": "r"});
            let refused = aborted(&service, names, answer(&service, body)).await.unwrap_err();
            assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE, "{refused}");
        }
        assert_eq!(asked.lock().len(), 2, "to abort, and nothing else");
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

    #[tokio::test]
    async fn while_an_event_waits_for_its_client_a_stream_does_not_wait_for_vllm() {
        let folder = tempfile::tempdir().unwrap();
        let (service, _) = door(None, folder.path().into()).await;
        let stream = answer(&service, json!({"prompt": [1], "stream": true})).await.unwrap();
        assert_eq!(service.names.at_vllm(), 1);
        let mut events = stream.into_body().into_data_stream();
        events.next().await.unwrap().unwrap();
        assert_eq!(service.names.at_vllm(), 0, "its client has an event to read");
    }

    #[tokio::test]
    async fn an_answer_that_lists_log_probabilities_waits_while_others_list_as_many_as_may_be_listed() {
        let folder = tempfile::tempdir().unwrap();
        let (service, asked) = door(None, folder.path().into()).await;
        let all = service.limits.listed;
        let others = service.listing.enter(all, 0, Duration::from_secs(1)).await.unwrap();
        let listing = json!({"prompt": [1], "logprobs": 1});
        let early = tokio::time::timeout(Duration::from_millis(100), answer(&service, listing.clone())).await;
        assert!(early.is_err() && asked.lock().is_empty());
        answer(&service, json!({"prompt": [1]})).await.unwrap();
        drop(others);
        answer(&service, listing).await.unwrap();
    }
}
