//! From a checked request to the engine, and from its completions to an answer.

use std::time::{Duration, Instant};

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedSender;

use super::choice::Choice;
use super::echo::{self, Echo};
use super::inflight::Registered;
use super::job::{Dialect, Job};
use super::model::Model;
use super::protocol::GenerateRequest;
use super::response::{self, Answer, PromptLogprobs, Usage};
use super::service::Service;
use super::stream;
use crate::engine::{Completion, Event, Ticket, TokenLogprob};
use crate::serving::error::ApiError;

/// A job in the engine. Dropped before its end it is withdrawn.
pub struct Running {
    /// One for each prompt.
    pub tickets: Vec<Ticket>,
    _registered: Registered,
    _room: OwnedSemaphorePermit,
}

/// Checks the request against the model, generates, and answers as the request wants.
///
/// # Errors
/// What is wrong with the request, or why it cannot be served.
pub async fn answer(
    service: &Service,
    headers: &HeaderMap,
    asked: GenerateRequest,
    dialect: Dialect,
    prompts: Vec<Vec<u32>>,
) -> Result<Response, ApiError> {
    let model = service.admit()?;
    let name = name(headers, &asked);
    let job = Job::new(model, &service.limits, &asked, dialect, prompts, name)?;
    drop(asked);
    if job.shown.stream {
        return stream::answer(service.clone(), job);
    }
    let began = Instant::now();
    let running = submit(service, model, &job, None)?;
    let completions = complete(running, service.limits.request_timeout).await?;
    service.metrics.answered(began.elapsed());
    let room = service.listing.enter(job.listed).await?;
    // Aside: the text of long responses must not hold up other requests.
    let service = service.clone();
    let write = move || {
        // It goes on when the client has gone.
        let _room = room;
        let answer = whole(service.model()?, &job, completions)?;
        serde_json::to_vec(&answer).map_err(ApiError::internal)
    };
    let written = tokio::task::spawn_blocking(write).await.map_err(ApiError::internal)??;
    Ok(([(CONTENT_TYPE, "application/json")], written).into_response())
}

/// The model's name must be the served one, where it is given.
///
/// # Errors
/// 404, as vLLM answers.
pub fn check_name(model: &Model, asked: Option<&str>) -> Result<(), ApiError> {
    match asked {
        Some(name) if name != model.name => Err(ApiError::new(
            StatusCode::NOT_FOUND,
            format!("the model {name:?} is not served here, {:?} is", model.name),
        )),
        _ => Ok(()),
    }
}

/// The request's name: in its body, in the header `X-Request-Id`, or one of our own.
fn name(headers: &HeaderMap, asked: &GenerateRequest) -> String {
    let header = || headers.get("x-request-id")?.to_str().ok().map(str::to_owned);
    asked
        .request_id
        .clone()
        .or_else(header)
        .unwrap_or_else(|| format!("{:032x}", rand::random::<u128>()))
}

/// Hands the job's prompts to the engine.
///
/// # Errors
/// 429 when there is no room.
pub fn submit(
    service: &Service,
    model: &Model,
    job: &Job,
    events: Option<&UnboundedSender<Event>>,
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
        _registered: service
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
    tokio::time::timeout(deadline, all).await.unwrap_or_else(|_| {
        Err(ApiError::new(
            StatusCode::GATEWAY_TIMEOUT,
            format!(
                "the request took longer than {} s and was withdrawn",
                deadline.as_secs_f64()
            ),
        ))
    })
}

fn whole(model: &Model, job: &Job, completions: Vec<Vec<Completion>>) -> Result<Answer, ApiError> {
    let mut answer = Answer::new(model, job, response::now(), false);
    let (mut tokens, mut index) = (0, 0);
    let echo = job.shown.echo;
    let most = if echo == Echo::Alone { 0 } else { usize::MAX };
    for (request, completions) in job.requests.iter().zip(completions) {
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
                    echoed = Some(echo::prompt(model, request, &job.shown, scores)?);
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
