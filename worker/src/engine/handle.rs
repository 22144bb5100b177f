//! The engine as the rest of the process sees it: submit requests, wait for completions, exchange weights.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use parking_lot::Mutex;
use tch::Kind;
use tokio::sync::mpsc::Sender as EventSender;
use tokio::sync::{Semaphore, oneshot};

use super::refusal::Refusal;
use super::request::{Completion, Event, Request, Waited};
use super::runner::Runner;
use super::staging::{NewWeights, Staging};
use super::stats::Stats;
use super::stop::Detokenize;
use super::thread::{Command, Worker};
use super::ticket::{Answer, Ticket, block_on};
use crate::native::message::without_frames;

/// The usual [`pass_deadline`](EngineConfig::pass_deadline). The longest pass that we know of is a full one of a model of billions of
/// parameters on a few cores of a CPU, and takes minutes; on a GPU one that captures a graph takes seconds. It is half of what a run may
/// stand still (runPolicy.progressDeadlineSeconds), so that others have time to draw what the engine held.
pub const PASS_DEADLINE: Duration = Duration::from_secs(900);

/// How the engine batches. The cache's geometry is the runner's.
#[derive(Clone)]
pub struct EngineConfig {
    /// New tokens in one forward pass; longer prompts are computed in chunks.
    pub max_batch_tokens: usize,
    /// Sequences in the running set.
    pub max_sequences: usize,
    /// Requests inside the engine, waiting and running; further ones are refused with [`EngineError::QueueFull`].
    pub max_requests: usize,
    /// Version of the weights that the runner starts with.
    pub policy_version: u64,
    /// The model's own end tokens: none is drawn before a response's minimum.
    pub ends: Arc<[u32]>,
    /// Reads stop strings; without it requests with stop strings are refused.
    pub detokenize: Option<Detokenize>,
    /// Longest time to load the model.
    pub start_deadline: Duration,
    /// Longest time for one pass, or for new weights. A GPU that hangs ends neither: see [`Engine::failure`].
    pub pass_deadline: Duration,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            max_batch_tokens: 2048,
            max_sequences: 256,
            max_requests: 65_536,
            policy_version: 0,
            ends: Arc::default(),
            detokenize: None,
            start_deadline: Duration::from_secs(600),
            pass_deadline: PASS_DEADLINE,
        }
    }
}

/// Why there is no completion.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The request can never run.
    #[error("request refused: {0}")]
    Refused(#[from] Refusal),
    /// As many requests as allowed are inside already.
    #[error("the engine holds {limit} requests already: wait for some to end, or ask for a prompt's samples at once")]
    QueueFull {
        /// Requests that may be inside.
        limit: usize,
    },
    /// The engine takes no requests until it is resumed.
    #[error("the engine is paused: resume it first")]
    Paused,
    /// A pause that waits until nothing is inside was followed by a resume, or by one that freezes, before that.
    #[error("generation was resumed or frozen before the pause had come to its end: requests are still inside")]
    Overtaken,
    /// The engine gave its weights back and waits for new ones.
    #[error("the engine is asleep until it gets new weights")]
    Asleep,
    /// The model could not be loaded, or the runner failed; the engine is over.
    #[error("the rollout engine failed: {0}")]
    Failed(Arc<str>),
    /// No token could be drawn for a sample; the engine goes on with other requests.
    #[error(
        "the rollout engine failed: the forward pass failed: no token can be drawn for sequence {sample} of the request: its \
         logits are NaN or infinite (check the weights), or every token is a stop token suppressed by min_new_tokens"
    )]
    NoToken {
        /// Which of the request's.
        sample: usize,
    },
    /// The engine was shut down.
    #[error("the rollout engine was shut down")]
    Stopped,
    /// A wait ended without an answer.
    #[error("no answer from the rollout engine within {} s while waiting for {waited_for}", deadline.as_secs_f64())]
    Deadline {
        /// What was waited for.
        waited_for: &'static str,
        /// How long.
        deadline: Duration,
    },
}

/// How a pause treats what is inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Freeze: requests in flight stop where they are, new ones queue.
    Keep,
    /// Drain: requests in flight are finished, new ones are refused.
    Wait,
    /// Empty: requests in flight end with the tokens they have, new ones are refused.
    Abort,
}

/// See [`Engine::time_tokens`].
type Timed = Box<dyn Fn(Waited) + Send + Sync>;

/// Seen by the thread and by every handle.
pub(super) struct Shared {
    stats: Mutex<Stats>,
    /// Hears how long tokens and samples were waited for.
    pub(super) timed: OnceLock<Timed>,
    failure: OnceLock<Arc<str>>,
    /// Since when the thread is at what it does now. None while it waits for something to do.
    busy_since: Mutex<Option<Instant>>,
    pass_deadline: Duration,
}

impl Shared {
    /// Notes why the engine is over; the first cause stands.
    pub(super) fn fail(&self, cause: String) -> EngineError {
        let cause = self.failure.get_or_init(|| without_frames(&cause).into());
        EngineError::Failed(cause.clone())
    }

    /// Why the engine answers no more.
    pub(super) fn ended(&self) -> EngineError {
        self.failure
            .get()
            .map_or(EngineError::Stopped, |cause| EngineError::Failed(cause.clone()))
    }

    pub(super) fn publish(&self, stats: Stats) {
        *self.stats.lock() = stats;
    }

    /// The thread begins with something, or waits for something to do.
    pub(super) fn set_busy(&self, busy: bool) {
        *self.busy_since.lock() = busy.then(Instant::now);
    }

    fn is_stuck(&self) -> bool {
        let since = *self.busy_since.lock();
        since.is_some_and(|since| since.elapsed() > self.pass_deadline)
    }
}

/// A handle on a running engine; clones speak to the same one. When the last is dropped the engine finishes what it has and ends.
#[derive(Clone)]
pub struct Engine {
    commands: Sender<Command>,
    shared: Arc<Shared>,
    places: Arc<Semaphore>,
    max_requests: usize,
    cache_tokens: usize,
    next_number: Arc<AtomicU64>,
    /// Disconnected once the thread has ended.
    ended: Receiver<()>,
}

impl Engine {
    /// Starts the engine's thread, makes the runner on it and waits until it is ready.
    ///
    /// # Errors
    /// [`EngineError::Failed`] with the cause when `make` fails, [`EngineError::Deadline`] when it takes too long.
    pub fn start<R, F>(make: F, config: EngineConfig) -> Result<Self, EngineError>
    where
        R: Runner,
        F: FnOnce() -> anyhow::Result<R> + Send + 'static,
    {
        let (commands, inbox) = crossbeam_channel::unbounded();
        let (ready, is_ready) = crossbeam_channel::bounded(1);
        let (ends, ended) = crossbeam_channel::bounded::<()>(0);
        let shared = Arc::new(Shared {
            stats: Mutex::new(Stats {
                policy_version: config.policy_version,
                ..Stats::default()
            }),
            timed: OnceLock::new(),
            failure: OnceLock::new(),
            busy_since: Mutex::default(),
            pass_deadline: config.pass_deadline,
        });
        let (deadline, max_requests) = (config.start_deadline, config.max_requests);
        let on_thread = shared.clone();
        let body = move || {
            let _ends = ends;
            match make() {
                Ok(runner) => {
                    let cache_tokens = runner.num_blocks().saturating_mul(runner.block_size());
                    let worker = Worker::new(runner, config, inbox, on_thread);
                    let _ = ready.send(cache_tokens);
                    worker.run();
                }
                Err(error) => drop(on_thread.fail(format!("cannot start: {error:#}"))),
            }
        };
        std::thread::Builder::new()
            .name("rollout-engine".to_owned())
            .spawn(body)
            .map_err(|error| shared.fail(format!("cannot start a thread: {error}")))?;
        let cache_tokens = match is_ready.recv_timeout(deadline) {
            Ok(cache_tokens) => cache_tokens,
            Err(RecvTimeoutError::Disconnected) => return Err(shared.ended()),
            Err(RecvTimeoutError::Timeout) => {
                return Err(EngineError::Deadline {
                    waited_for: "the model to load",
                    deadline,
                });
            }
        };
        let places = Arc::new(Semaphore::new(max_requests.min(Semaphore::MAX_PERMITS)));
        Ok(Self {
            commands,
            shared,
            places,
            max_requests,
            cache_tokens,
            next_number: Arc::default(),
            ended,
        })
    }

    /// Tokens that the key/value cache holds; a longer sequence is refused.
    pub fn cache_tokens(&self) -> usize {
        self.cache_tokens
    }

    /// Hands in a request. The ticket is the answer to come; dropping it withdraws the request.
    ///
    /// # Errors
    /// [`EngineError::QueueFull`]. Every other error comes out of the ticket.
    pub fn submit(&self, request: Request) -> Result<Ticket, EngineError> {
        self.submit_to(request, None)
    }

    /// As [`submit`](Self::submit), and every token goes to `events` as it is drawn. Several requests may share a channel. When it is full
    /// they are withdrawn, all of them: nobody reads what they draw, and the engine waits for no reader.
    ///
    /// # Errors
    /// [`EngineError::QueueFull`].
    pub fn submit_streaming(&self, request: Request, events: EventSender<Event>) -> Result<Ticket, EngineError> {
        self.submit_to(request, Some(events))
    }

    fn submit_to(&self, request: Request, events: Option<EventSender<Event>>) -> Result<Ticket, EngineError> {
        let Ok(permit) = self.places.clone().try_acquire_owned() else {
            return Err(EngineError::QueueFull {
                limit: self.max_requests,
            });
        };
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let answer = self.ask(|reply| Command::Submit {
            number,
            request,
            asked: Instant::now(),
            reply,
            events,
            permit,
        });
        Ok(Ticket { number, answer })
    }

    /// [`draw`](Self::draw), waited for. Not for async code.
    ///
    /// # Errors
    /// The first request's that fails; [`EngineError::Deadline`] when they are not all done in time. What is unfinished is
    /// withdrawn.
    pub fn generate(&self, requests: Vec<Request>, deadline: Duration) -> Result<Vec<Vec<Completion>>, EngineError> {
        block_on(std::pin::pin!(self.draw(requests)), "completions", deadline)
    }

    /// Completions of all requests, in their order, one for each seed. More requests than `max_requests` are handed in as
    /// places come free. Dropped, it withdraws what is unfinished.
    ///
    /// # Errors
    /// The first request's that fails.
    pub async fn draw(&self, requests: Vec<Request>) -> Result<Vec<Vec<Completion>>, EngineError> {
        let mut completions = Vec::with_capacity(requests.len());
        let mut tickets = std::collections::VecDeque::new();
        for request in requests {
            let ticket = loop {
                match self.submit(request.clone()) {
                    Err(EngineError::QueueFull { limit }) => {
                        let oldest: Ticket = tickets.pop_front().ok_or(EngineError::QueueFull { limit })?;
                        completions.push(oldest.await?);
                    }
                    submitted => break submitted?,
                }
            };
            tickets.push_back(ticket);
        }
        for ticket in tickets {
            completions.push(ticket.await?);
        }
        Ok(completions)
    }

    /// Ends requests now, by ticket number: their tickets get the tokens so far, with finish reason abort. Numbers that are done
    /// already are passed over.
    pub fn abort(&self, numbers: Vec<u64>) {
        // A thread that is gone has no requests.
        let _ = self.commands.send(Command::Abort(numbers));
    }

    /// Pauses generation. The answer comes once it has: at the next token boundary for [`Pause::Keep`], when nothing is in
    /// flight for the others, and is [`EngineError::Overtaken`] when it is resumed or frozen before.
    pub fn pause(&self, pause: Pause) -> Answer<()> {
        self.ask(|reply| Command::Pause(pause, reply))
    }

    /// Goes on after a pause.
    pub fn resume(&self) {
        // A thread that is gone has nothing to go on with.
        let _ = self.commands.send(Command::Resume);
    }

    /// A place where new weights gather while it draws with those that it has: what comes of it is for
    /// [`update_weights`](Self::update_weights). Tensors that it does not pack are kept in `kind`.
    ///
    /// # Errors
    /// When the engine is over.
    pub async fn stage(&self, kind: Kind) -> Result<Staging, EngineError> {
        Ok(Staging::new(self.ask(Command::Stage).await?, kind))
    }

    /// Takes new weights between two passes, paused or not. Sequences in flight are recomputed under them and go on; each token
    /// keeps the version that drew it. Abort or drain first (see [`Engine::pause`]) if no response may mix versions.
    ///
    /// A failure ends the engine: half the weights may be new.
    pub fn update_weights(&self, weights: impl Into<NewWeights>, version: u64) -> Answer<()> {
        let weights = weights.into();
        self.ask(|reply| Command::UpdateWeights {
            weights,
            version,
            reply,
        })
    }

    /// Lets the system have the memory of weights and cache when it is short of some, if nothing is inside: until new weights come,
    /// requests are refused with [`EngineError::Asleep`]. For whoever trains on the same machine, and is about to change the weights anyway.
    pub fn sleep(&self) {
        // A thread that is gone holds nothing.
        let _ = self.commands.send(Command::Sleep);
    }

    /// From now on `told` hears, on the engine's thread, how long each token was waited for, and where a sample's time went once it has ended.
    /// Only the first that is given here.
    pub fn time_tokens(&self, told: impl Fn(Waited) + Send + Sync + 'static) {
        self.shared.timed.get_or_init(|| Box::new(told));
    }

    /// The latest snapshot; never waits for a pass.
    pub fn stats(&self) -> Stats {
        *self.shared.stats.lock()
    }

    /// Why the engine is over; None while it runs. One whose pass does not end in time is: its process has to be made anew.
    pub fn failure(&self) -> Option<EngineError> {
        let has_ended = matches!(
            self.ended.try_recv(),
            Err(crossbeam_channel::TryRecvError::Disconnected)
        );
        if !has_ended && self.shared.is_stuck() {
            let seconds = self.shared.pass_deadline.as_secs_f64();
            return Some(
                self.shared
                    .fail(format!("a pass has not ended for {seconds} s: does its GPU hang?")),
            );
        }
        has_ended.then(|| self.shared.ended())
    }

    /// Ends the engine after the pass that runs now; unfinished requests get [`EngineError::Stopped`].
    ///
    /// # Errors
    /// [`EngineError::Deadline`] when the pass does not end in time.
    pub fn shutdown(&self, deadline: Duration) -> Result<(), EngineError> {
        // A thread that is gone is shut down already.
        let _ = self.commands.send(Command::Shutdown);
        match self.ended.recv_timeout(deadline) {
            Err(RecvTimeoutError::Timeout) => Err(EngineError::Deadline {
                waited_for: "the engine to shut down",
                deadline,
            }),
            Ok(()) | Err(RecvTimeoutError::Disconnected) => Ok(()),
        }
    }

    fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<Result<T, EngineError>>) -> Command) -> Answer<T> {
        let (reply, answer) = oneshot::channel();
        // If the thread is gone the command is dropped with its reply, and the answer says why.
        let _ = self.commands.send(command(reply));
        Answer {
            answer,
            shared: self.shared.clone(),
        }
    }
}

#[cfg(test)]
mod tests;
