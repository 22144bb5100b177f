//! From a checked request to the engine, and from its completions to an answer.

use std::time::{Duration, Instant};

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::Sender;

use super::choice::Choice;
use super::echo::{self, Echo};
use super::inflight::Registered;
use super::job::{Dialect, Job};
use super::model::Model;
use super::protocol::GenerateRequest;
use super::response::{self, Answer, PromptLogprobs, Usage};
use super::service::Service;
use super::stream;
use super::truncate::shortened;
use crate::engine::{Completion, Event, Ticket, TokenLogprob};
use crate::serving::error::ApiError;

/// The header that names a request.
pub const REQUEST_ID: &str = "x-request-id";

/// An answer of so many numbers is written sooner than another thread wakes.
const FEW: usize = 1024;

/// A job in the engine. Dropped before its end it is withdrawn.
pub struct Running {
    /// One for each prompt.
    pub tickets: Vec<Ticket>,
    registered: Registered,
    _room: OwnedSemaphorePermit,
}

impl Running {
    /// Its end: the engine has answered every ticket.
    pub fn answered(mut self) {
        self.registered.answered();
    }
}

/// Checks the request against the model, generates, and answers as the request wants. `texts` are those of the prompts where they are shown as
/// they were sent; `role` is who speaks, where that is not the assistant.
///
/// # Errors
/// What is wrong with the request, or why it cannot be served.
pub async fn answer(
    service: &Service,
    headers: &HeaderMap,
    asked: GenerateRequest,
    dialect: Dialect,
    prompts: Vec<Vec<u32>>,
    texts: Vec<String>,
    role: Option<String>,
) -> Result<Response, ApiError> {
    let model = service.admit()?;
    let response = asked.response_tokens().or(dialect.usual_tokens()).unwrap_or(1);
    let prompts = shortened(&asked, model.config.max_positions, response, prompts)?;
    let name = name(headers, asked.request_id.clone());
    let name = name.unwrap_or_else(|| format!("{:032x}", rand::random::<u128>()));
    let mut job = Job::new(model, &service.limits, &asked, dialect, prompts, name)?;
    (job.texts, job.role) = (texts, role);
    drop(asked);
    if job.shown.stream {
        return stream::answer(service.clone(), job);
    }
    let began = Instant::now();
    let running = submit(service, model, &job, None)?;
    let completions = complete(running, service.limits.request_timeout).await?;
    service.metrics.answered(began.elapsed(), &job.requests);
    let (tokens, patience) = (tokens(&job, &completions), service.limits.body_timeout);
    let room = service.listing.enter(job.listed, tokens, patience).await?;
    let is_short = is_short(&job, tokens);
    let (of_model, unread) = (service.clone(), &service.unread);
    let write = move || {
        let answer = whole(of_model.model()?, &job, completions)?;
        // It goes on when the client has gone, and has its room with it.
        Ok::<_, ApiError>((serde_json::to_vec(&answer).map_err(ApiError::internal)?, room))
    };
    let (written, room) = match is_short {
        true => write()?,
        // Aside: the text of long responses must not hold up other requests.
        false => tokio::task::spawn_blocking(write).await.map_err(ApiError::internal)??,
    };
    let body = unread.body(written, patience).await?;
    drop(room);
    Ok(([(CONTENT_TYPE, "application/json")], body).into_response())
}

/// The model's name must be the served one, where one is given; an empty one is none, as in vLLM.
///
/// # Errors
/// 404, as vLLM answers.
pub fn check_name(served: &str, asked: Option<&str>) -> Result<(), ApiError> {
    match asked {
        Some(name) if !name.is_empty() && name != served => Err(ApiError {
            param: Some("model".into()),
            ..ApiError::new(
                StatusCode::NOT_FOUND,
                format!("the model {name:?} is not served here, {served:?} is"),
            )
        }),
        _ => Ok(()),
    }
}

/// The name that the client gave its request: in the header `X-Request-Id`, else in its body, as in vLLM (`_base_request_id` in
/// `vllm/entrypoints/serve/engine/serving.py`).
pub fn name(headers: &HeaderMap, in_body: Option<String>) -> Option<String> {
    let header = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok());
    header.map(str::to_owned).or(in_body)
}

/// Hands the job's prompts to the engine.
///
/// # Errors
/// 429 when there is no room.
pub fn submit(
    service: &Service,
    model: &Model,
    job: &Job,
    events: Option<&Sender<Event>>,
) -> Result<Running, ApiError> {
    let room = service.in_flight.enter(job.samples())?;
    let mut tickets = Vec::with_capacity(job.requests.len());
    for request in &job.requests {
        let request = request.clone();
        tickets.push(match events {
            Some(events) => model.engine.submit_streaming(request, events.clone())?,
            None => model.engine.submit(request)?,
        });
    }
    let numbers = tickets.iter().map(Ticket::number).collect();
    Ok(Running {
        tickets,
        registered: service
            .in_flight
            .register(job.name.clone(), numbers, model.engine.clone()),
        _room: room,
    })
}

async fn complete(mut running: Running, deadline: Duration) -> Result<Vec<Vec<Completion>>, ApiError> {
    let all = async {
        let mut completions = Vec::with_capacity(running.tickets.len());
        for ticket in &mut running.tickets {
            completions.push(ticket.await?);
        }
        Ok(completions)
    };
    let completions = tokio::time::timeout(deadline, all).await.unwrap_or_else(|_| {
        Err(ApiError::new(
            StatusCode::GATEWAY_TIMEOUT,
            format!(
                "the request took longer than {} s and was withdrawn",
                deadline.as_secs_f64()
            ),
        ))
    })?;
    running.answered();
    Ok(completions)
}

/// Whether the answer is nothing but a few token ids and log-probabilities.
fn is_short(job: &Job, tokens: usize) -> bool {
    !job.shown.text && job.listed == 0 && tokens <= FEW
}

/// Tokens that the answer may show, a prompt's for each of its samples.
fn tokens(job: &Job, completions: &[Vec<Completion>]) -> usize {
    let of_prompts: usize = job.requests.iter().map(|request| request.prompt.len() * job.n).sum();
    let drawn = completions.iter().flatten().map(|completion| completion.tokens.len());
    of_prompts + drawn.sum::<usize>()
}

fn whole(model: &Model, job: &Job, completions: Vec<Vec<Completion>>) -> Result<Answer, ApiError> {
    let mut answer = Answer::new(model, job, response::now(), false);
    let (mut tokens, mut index) = (0, 0);
    let echo = job.shown.echo;
    let most = if echo == Echo::Alone { 0 } else { usize::MAX };
    for (at, (request, completions)) in job.requests.iter().zip(completions).enumerate() {
        let text = job.texts.get(at).map(String::as_str);
        let (mut of_prompt, mut echoed) = (None, None);
        for completion in completions {
            let mut choice = Choice::new(model, request, &job.shown)?;
            let drawn = completion.tokens.iter().zip(&completion.logprobs);
            let mut tops = completion.top_logprobs.iter();
            for ((&token, &logprob), &version) in drawn.zip(&completion.versions).take(most) {
                let top = tops.next().map_or(&[][..], Vec::as_slice);
                let drawn = TokenLogprob { token, logprob };
                choice.push(model, request, &job.shown, drawn, top, version)?;
            }
            choice.finish(model, request, &job.shown, completion.finish_reason)?;
            tokens += choice.tokens();
            let mut delta = choice.take();
            let scores = completion.prompt_logprobs;
            if echo != Echo::Nothing {
                if echoed.is_none() {
                    let scores = scores.as_deref().unwrap_or_default();
                    echoed = Some(echo::prompt(model, request, &job.shown, text, scores)?);
                }
                delta = echoed.clone().unwrap_or_default().then(delta);
            }
            // An echo has them among its own.
            let scores = scores.filter(|_| echo == Echo::Nothing);
            if let (None, Some(scores)) = (&of_prompt, &scores) {
                of_prompt = Some(PromptLogprobs::new(model, job, &request.prompt, scores)?);
            }
            let of_prompt = of_prompt.clone().filter(|_| scores.is_some());
            let shown = response::choice(job, index, &choice, delta, false, true).with_prompt_logprobs(of_prompt);
            answer.push(job.dialect, shown);
            index += 1;
        }
    }
    answer.usage = Some(Usage::of(job, tokens));
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::FinishReason;
    use crate::engine::hash_runner::request;
    use crate::rollout::job::Shown;

    /// One prompt of five tokens and two samples, of which only numbers are wanted.
    fn numbers() -> Job {
        Job {
            name: "r".to_owned(),
            dialect: Dialect::Completions,
            requests: vec![request(5, 0..2, 1000)],
            n: 2,
            texts: Vec::new(),
            role: None,
            shown: Shown {
                stream: false,
                usage: false,
                running_usage: false,
                text: false,
                echo: Echo::Nothing,
                logprobs: Some(0),
                token_ids: true,
                tokens_as_ids: false,
                bytes: false,
                bare_logprobs: true,
                weight_versions: true,
                include_stop: false,
                usual_end: None,
                skip_special: true,
            },
            listed: 0,
        }
    }

    /// Two samples of so many tokens.
    fn drawn(tokens: usize) -> Vec<Vec<Completion>> {
        let completion = Completion {
            tokens: vec![1; tokens],
            logprobs: vec![0.0; tokens],
            finish_reason: FinishReason::Length,
            versions: vec![0; tokens],
            top_logprobs: vec![],
            prompt_logprobs: None,
        };
        vec![vec![completion; 2]]
    }

    #[test]
    fn an_answer_of_a_few_numbers_is_short_and_one_with_text_or_of_many_is_not() {
        let is_short = |job: Job, drawn_of_each: usize| is_short(&job, tokens(&job, &drawn(drawn_of_each)));
        let most = FEW / 2 - 5;
        assert!(is_short(numbers(), most));
        assert!(!is_short(numbers(), most + 1), "tokens and prompts count");
        let (mut text, mut listing) = (numbers(), numbers());
        text.shown.text = true;
        listing.listed = 1;
        for job in [text, listing] {
            assert!(!is_short(job, 1));
        }
    }
}
