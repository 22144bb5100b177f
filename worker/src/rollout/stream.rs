//! Answers as server-sent events: a piece whenever tokens are there, then counts if they are wanted, then `[DONE]`.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use axum::response::sse::{Event as ServerEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::Stream;
use serde::Serialize;
use tokio::sync::mpsc::{Receiver, channel};

use super::choice::Choice;
use super::generate::{Running, submit};
use super::job::{Dialect, Job};
use super::response::{self, Answer, ShownChoice, Usage};
use super::service::Service;
use crate::engine::{Event, FinishReason, News, TokenLogprob};
use crate::serving::error::ApiError;

/// Events read at once.
const EVENTS: usize = 1024;
/// Bytes of events that wait for a client that reads slowly. It is seconds of what an engine draws at its fastest, and a client that is
/// this far behind does not catch up; without a bound one request could take all memory.
const BACKLOG: usize = 64 << 20;
/// A comment is sent when nothing was for this long, which also notices a client that is gone.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Answers `job` as a stream.
///
/// # Errors
/// 429 when there is no room.
pub fn answer(service: Service, job: Job) -> Result<Response, ApiError> {
    let model = service.admit()?;
    let began = Instant::now();
    let (sender, events) = channel(backlog(&job));
    let running = submit(&service, model, &job, Some(&sender))?;
    // The engine holds what is left of the senders: the channel closes when the last request ends.
    drop(sender);
    let mut choices = Vec::with_capacity(job.samples());
    for request in &job.requests {
        for _ in 0..job.n {
            choices.push(Choice::new(model, request, &job.shown)?);
        }
    }
    let pieces = Pieces {
        first: running.tickets.first().map_or(0, |ticket| ticket.number()),
        is_new: vec![true; choices.len()],
        unfinished: choices.len(),
        service,
        job,
        running: Some(running),
        events,
        choices,
        created: response::now(),
        began,
        ready: VecDeque::new(),
        is_over: false,
    };
    Ok(Sse::new(pieces.stream())
        .keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
        .into_response())
}

/// Events of `job` that may wait: those that fit, and in any case what two passes draw.
fn backlog(job: &Job) -> usize {
    let top = job.shown.logprobs.unwrap_or(0);
    let bytes = size_of::<Event>().saturating_add(top.saturating_mul(size_of::<TokenLogprob>()));
    (BACKLOG / bytes).max(2 * job.samples()).max(1)
}

/// The stream's state. Dropped with the connection, it withdraws the request.
struct Pieces {
    service: Service,
    job: Job,
    running: Option<Running>,
    /// The first ticket's number; those of one job need not follow each other.
    first: u64,
    events: Receiver<Event>,
    choices: Vec<Choice>,
    /// Choices of which nothing was sent.
    is_new: Vec<bool>,
    unfinished: usize,
    created: u64,
    began: Instant,
    ready: VecDeque<String>,
    is_over: bool,
}

impl Pieces {
    fn stream(self) -> impl Stream<Item = Result<ServerEvent, Infallible>> {
        futures::stream::unfold(self, |mut pieces| async move {
            loop {
                if let Some(data) = pieces.ready.pop_front() {
                    return Some((Ok(ServerEvent::default().data(data)), pieces));
                }
                if pieces.is_over {
                    return None;
                }
                if let Err(error) = pieces.advance().await {
                    pieces.ready.push_back(error.body().to_string());
                    pieces.end();
                }
            }
        })
    }

    /// Waits for news and makes pieces of it.
    async fn advance(&mut self) -> Result<(), ApiError> {
        let limit = self.service.limits.request_timeout;
        let left = limit.saturating_sub(self.began.elapsed());
        let mut news = Vec::new();
        let heard = tokio::time::timeout(left, self.events.recv_many(&mut news, EVENTS)).await;
        if heard.is_err() {
            let status = StatusCode::GATEWAY_TIMEOUT;
            let message = format!(
                "the request took longer than {} s and was withdrawn",
                limit.as_secs_f64()
            );
            return Err(ApiError::new(status, message));
        }
        if news.is_empty() {
            return Err(self.failure().await);
        }
        let mut touched = Vec::new();
        for event in news {
            let index = self.take(event)?;
            if !touched.contains(&index) {
                touched.push(index);
            }
        }
        for index in touched {
            self.send(index)?;
        }
        if self.unfinished == 0 {
            self.service.metrics.answered(self.began.elapsed(), &self.job.requests);
            if self.job.shown.usage {
                let tokens = self.choices.iter().map(Choice::tokens).sum();
                let mut answer = self.piece()?;
                answer.usage = Some(Usage::of(&self.job, tokens));
                self.push(&answer)?;
            }
            if let Some(running) = self.running.take() {
                running.answered();
            }
            self.end();
        }
        Ok(())
    }

    /// Notes one event; the index of the choice it belongs to.
    fn take(&mut self, event: Event) -> Result<usize, ApiError> {
        let lost = || ApiError::internal("the engine told of a sample that nobody asked for");
        let tickets = self.running.as_ref().map_or(&[][..], |running| &running.tickets);
        let guess = usize::try_from(event.request.saturating_sub(self.first)).unwrap_or(usize::MAX);
        let prompt = match tickets.get(guess) {
            Some(ticket) if ticket.number() == event.request => guess,
            _ => tickets
                .iter()
                .position(|ticket| ticket.number() == event.request)
                .ok_or_else(lost)?,
        };
        let index = prompt * self.job.n + event.sample;
        let request = self.job.requests.get(prompt).ok_or_else(lost)?;
        let choice = self.choices.get_mut(index).ok_or_else(lost)?;
        let model = self.service.model()?;
        let shown = &self.job.shown;
        let ended = match event.news {
            News::Token {
                drawn,
                top,
                version,
                ended,
            } => {
                choice.push(model, request, shown, drawn, &top, version)?;
                ended
            }
            News::Withdrawn => Some(FinishReason::Abort),
        };
        if let Some(reason) = ended {
            choice.finish(model, request, shown, reason)?;
            self.unfinished -= 1;
        }
        Ok(index)
    }

    fn send(&mut self, index: usize) -> Result<(), ApiError> {
        let Some(choice) = self.choices.get_mut(index) else {
            return Ok(());
        };
        let (delta, tokens) = (choice.take(), choice.tokens());
        let mut is_first = self.is_new.get_mut(index).is_some_and(std::mem::take);
        if is_first && self.job.dialect == Dialect::Chat {
            self.push_choice(response::opening(&self.job, index), index, 0)?;
            is_first = false;
        }
        let choice = response::choice(&self.job, index, &self.choices[index], delta, true, is_first);
        self.push_choice(choice, index, tokens)
    }

    /// A piece of the choice `index`, which has so many tokens by now.
    fn push_choice(&mut self, choice: ShownChoice, index: usize, tokens: usize) -> Result<(), ApiError> {
        let mut answer = self.piece()?;
        answer.push(self.job.dialect, choice);
        if self.job.shown.running_usage {
            answer.usage = Some(Usage::of_choice(&self.job, index, tokens));
        }
        self.push(&answer)
    }

    fn piece(&self) -> Result<Answer, ApiError> {
        Ok(Answer::new(self.service.model()?, &self.job, self.created, true))
    }

    fn push(&mut self, piece: &impl Serialize) -> Result<(), ApiError> {
        self.ready
            .push_back(serde_json::to_string(piece).map_err(ApiError::internal)?);
        Ok(())
    }

    fn end(&mut self) {
        self.ready.push_back("[DONE]".to_owned());
        self.running = None;
        self.is_over = true;
    }

    /// Why the engine said no more before everything was finished.
    async fn failure(&mut self) -> ApiError {
        for ticket in self.running.iter_mut().flat_map(|running| &mut running.tickets) {
            if let Err(error) = ticket.await {
                return error.into();
            }
        }
        // The engine has answered all, and of some of it there was no room to tell.
        ApiError::new(
            StatusCode::REQUEST_TIMEOUT,
            "the stream is read too slowly: more waited for its reader than the server keeps, and the request was withdrawn",
        )
    }
}
