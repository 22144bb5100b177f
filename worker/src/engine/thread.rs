//! The thread that owns the runner, and does what handles ask of it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError};
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::blocks::Blocks;
use super::clock::Clock;
use super::handle::{EngineConfig, EngineError, Pause, Shared};
use super::request::{Completion, Event, News, Request, TokenLogprob, Waited};
use super::runner::{Output, Runner};
use super::scheduler::{Advance, Finished, Limits, Outcome, Pass, Scheduler};
use super::sequence::{SequenceId, StopRules};
use super::staging::NewWeights;
use super::stats::Stats;
use crate::native::packed::PackedWeights;
use crate::native::threads::release_team;

/// Answer to one call.
pub(super) type Reply<T> = oneshot::Sender<Result<T, EngineError>>;

/// What a handle asks of the thread.
pub(super) enum Command {
    Submit {
        number: u64,
        request: Request,
        /// When it was handed in.
        asked: Instant,
        reply: Reply<Vec<Completion>>,
        /// Hears of every token. A request whose channel is full is withdrawn.
        events: Option<Sender<Event>>,
        permit: OwnedSemaphorePermit,
    },
    Abort(Vec<u64>),
    Pause(Pause, Reply<()>),
    Resume,
    Sleep,
    Stage(Reply<Option<PackedWeights>>),
    UpdateWeights {
        weights: NewWeights,
        version: u64,
        reply: Reply<()>,
    },
    Shutdown,
}

/// Whether passes run and requests are let in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gate {
    Open,
    /// Requests queue, nothing runs.
    Frozen,
    /// Requests are refused; what was let in runs on.
    Closed,
}

/// A request whose samples are not all done.
struct Pending {
    samples: Vec<Option<Completion>>,
    missing: usize,
    prompt_tokens: usize,
    /// Of each sample.
    clocks: Vec<Clock>,
    reply: Reply<Vec<Completion>>,
    events: Option<Sender<Event>>,
    /// The request's place among `max_requests`; given back when this is dropped.
    _permit: OwnedSemaphorePermit,
}

/// Everything the engine's thread owns.
pub(super) struct Worker<R: Runner> {
    runner: R,
    scheduler: Scheduler,
    pending: HashMap<u64, Pending>,
    gate: Gate,
    /// The runner has no weights.
    asleep: bool,
    /// Callers of pause who wait until nothing runs.
    draining: Vec<Reply<()>>,
    commands: Receiver<Command>,
    shared: Arc<Shared>,
    stats: Stats,
}

/// Between two looks at who has left, where nothing runs.
const LOOK: Duration = Duration::from_secs(1);

/// What the loop does next.
enum Next {
    Pass,
    Stop,
}

impl<R: Runner> Worker<R> {
    pub(super) fn new(runner: R, config: EngineConfig, commands: Receiver<Command>, shared: Arc<Shared>) -> Self {
        let limits = Limits {
            max_batch_tokens: config.max_batch_tokens,
            max_sequences: config.max_sequences,
        };
        let rules = StopRules {
            max_positions: runner.max_positions(),
            ends: config.ends,
            detokenize: config.detokenize,
        };
        let blocks = Blocks::new(runner.num_blocks(), runner.block_size());
        let stats = Stats {
            policy_version: config.policy_version,
            cache_blocks: runner.num_blocks(),
            block_size: runner.block_size(),
            ..Stats::default()
        };
        shared.publish(stats);
        Self {
            scheduler: Scheduler::new(limits, rules, blocks),
            runner,
            pending: HashMap::new(),
            gate: Gate::Open,
            asleep: false,
            draining: Vec::new(),
            commands,
            shared,
            stats,
        }
    }

    /// Runs until told to stop, until every handle is gone and the work is done, or until the runner fails.
    pub(super) fn run(mut self) {
        while let Next::Pass = self.take_commands() {
            if self.pass().is_err() {
                break;
            }
        }
        self.fail_everything();
    }

    /// Takes what was asked since the last pass; waits when there is nothing to compute.
    fn take_commands(&mut self) -> Next {
        loop {
            self.shared.set_busy(true);
            self.answer_drained();
            let has_work = self.gate != Gate::Frozen && !self.scheduler.is_idle();
            let command = match self.commands.try_recv() {
                Ok(command) => command,
                Err(TryRecvError::Empty) if has_work => return Next::Pass,
                Err(TryRecvError::Disconnected) if has_work => return Next::Pass,
                Err(TryRecvError::Disconnected) => return Next::Stop,
                Err(TryRecvError::Empty) => {
                    release_team();
                    self.shared.set_busy(false);
                    let command = match self.commands.recv_timeout(self.patience()) {
                        Ok(command) => command,
                        Err(RecvTimeoutError::Timeout) => {
                            self.drop_abandoned();
                            continue;
                        }
                        Err(RecvTimeoutError::Disconnected) => return Next::Stop,
                    };
                    self.shared.set_busy(true);
                    command
                }
            };
            if let Next::Stop = self.obey(command) {
                return Next::Stop;
            }
            // What a pass changed it has published itself. To count looks at every sequence: of many commands that came at once it
            // follows the last.
            if self.commands.is_empty() {
                self.publish();
            }
        }
    }

    /// How long it may wait for a command: where it stands still with requests inside, it looks who of those that asked is still there.
    fn patience(&self) -> Duration {
        if self.pending.is_empty() { Duration::MAX } else { LOOK }
    }

    fn obey(&mut self, command: Command) -> Next {
        match command {
            Command::Submit {
                number,
                request,
                asked,
                reply,
                events,
                permit,
            } => {
                if let Some(reply) = self.submit(number, &request, reply) {
                    let samples = vec![None; request.seeds.len()];
                    self.pending.insert(
                        number,
                        Pending {
                            missing: samples.len(),
                            prompt_tokens: request.prompt.len(),
                            clocks: vec![Clock::new(asked); samples.len()],
                            samples,
                            reply,
                            events,
                            _permit: permit,
                        },
                    );
                }
            }
            Command::Abort(numbers) => numbers.into_iter().for_each(|number| self.abort(number)),
            Command::Pause(Pause::Keep, reply) => {
                self.gate = Gate::Frozen;
                self.overtake_drains();
                let _ = reply.send(Ok(()));
            }
            Command::Pause(pause, reply) => {
                self.gate = Gate::Closed;
                if pause == Pause::Abort {
                    let numbers: Vec<u64> = self.pending.keys().copied().collect();
                    numbers.into_iter().for_each(|number| self.abort(number));
                }
                self.draining.push(reply);
            }
            Command::Resume => {
                self.gate = Gate::Open;
                self.overtake_drains();
            }
            Command::Sleep if self.scheduler.is_idle() => {
                self.asleep = true;
                self.runner.sleep();
            }
            Command::Sleep => {}
            Command::Stage(reply) => drop(reply.send(Ok(self.stage()))),
            Command::UpdateWeights {
                weights,
                version,
                reply,
            } => {
                let updated = self.update_weights(weights, version);
                let is_lost = updated.is_err();
                let _ = reply.send(updated);
                if is_lost {
                    return Next::Stop;
                }
            }
            Command::Shutdown => return Next::Stop,
        }
        Next::Pass
    }

    /// Puts the request into the queue. One that is not let in, or has nothing to draw, is answered here.
    fn submit(
        &mut self,
        number: u64,
        request: &Request,
        reply: Reply<Vec<Completion>>,
    ) -> Option<Reply<Vec<Completion>>> {
        let answer = if self.gate == Gate::Closed {
            Err(EngineError::Paused)
        } else if self.asleep {
            Err(EngineError::Asleep)
        } else if let Err(refusal) = self.scheduler.submit(number, request) {
            Err(EngineError::Refused(refusal))
        } else if request.seeds.is_empty() {
            Ok(vec![])
        } else {
            return Some(reply);
        };
        let _ = reply.send(answer);
        None
    }

    fn abort(&mut self, number: u64) {
        let finished = self.scheduler.abort(number);
        self.publish();
        self.tell_withdrawn(&finished);
        self.deliver(finished);
    }

    /// None too where the runner's memory does not suffice: the weights it has are not touched, and new ones can still come as tensors.
    fn stage(&mut self) -> Option<PackedWeights> {
        self.runner.stage().unwrap_or_else(|error| {
            tracing::warn!("new weights are not packed as they arrive: {error:#}");
            None
        })
    }

    /// Runs between two passes. Sequences in flight go on with the tokens they have: their keys and values are recomputed
    /// under the new weights, and each token keeps the version that drew it.
    fn update_weights(&mut self, weights: NewWeights, version: u64) -> Result<(), EngineError> {
        self.scheduler.preempt_all();
        let loaded = match weights {
            NewWeights::Tensors(tensors) => self.runner.load(&tensors),
            NewWeights::Packed(packed) => self.runner.swap(packed),
            NewWeights::Changes(changes) => self.runner.change(&changes),
        };
        match loaded {
            Ok(()) => {
                self.asleep = false;
                self.stats.policy_version = version;
                self.publish();
                Ok(())
            }
            // Some tensors may be new and some old: nothing drawn from them would be of any version.
            Err(error) => Err(self
                .shared
                .fail(format!("cannot load the weights of version {version}: {error:#}"))),
        }
    }

    /// One forward over whatever runs next.
    fn pass(&mut self) -> Result<(), EngineError> {
        self.drop_abandoned();
        let pass = self.scheduler.schedule();
        if pass.batch.chunks.is_empty() {
            return Ok(());
        }
        let expected: usize = pass.batch.chunks.iter().map(|chunk| chunk.draws.len()).sum();
        let began = Instant::now();
        self.note_begun(&pass.admitted, began);
        let output = match self.compute(&pass) {
            Ok(output) if output.drawn.len() == expected => output,
            Ok(output) => {
                return Err(self
                    .shared
                    .fail(format!("the runner drew {} tokens of {expected}", output.drawn.len())));
            }
            Err(error) => return Err(self.shared.fail(format!("the forward pass failed: {error:#}"))),
        };
        self.stats.passes += 1;
        self.stats.forward_seconds += began.elapsed().as_secs_f64();
        let outcome = self.scheduler.complete(output, self.stats.policy_version);
        let Outcome {
            advances,
            finished,
            failed,
        } = outcome;
        // Before anything is told, so that whoever has an answer finds it counted.
        self.publish();
        self.tell(advances);
        self.deliver(finished);
        self.fail(failed);
        Ok(())
    }

    fn note_begun(&mut self, admitted: &[SequenceId], now: Instant) {
        for id in admitted {
            if let Some(pending) = self.pending.get_mut(&id.request) {
                pending.clocks[id.sample].begin(now);
            }
        }
    }

    fn compute(&mut self, pass: &Pass) -> anyhow::Result<Output> {
        for &(from, to) in &pass.copies {
            let copied = self.runner.copy_block(from, to);
            copied.with_context(|| format!("block {from} of the cache was not copied to {to}"))?;
        }
        self.runner.forward(&pass.batch)
    }

    /// A ticket nobody holds any more frees its sequences.
    fn drop_abandoned(&mut self) {
        let abandoned: Vec<u64> = self
            .pending
            .iter()
            .filter(|(_, pending)| pending.reply.is_closed())
            .map(|(number, _)| *number)
            .collect();
        abandoned.into_iter().for_each(|number| self.abort(number));
    }

    /// Tells those who listen of their tokens, and how long they were waited for. A listener that is gone is noticed by its ticket.
    fn tell(&mut self, advances: Vec<Advance>) {
        let (timed, now) = (self.shared.timed.get(), Instant::now());
        let mut unheard = Vec::new();
        for Advance { id, drawn, top, ended } in advances {
            let Some(pending) = self.pending.get_mut(&id.request) else {
                continue;
            };
            let clock = &mut pending.clocks[id.sample];
            let waited = clock.token(now);
            if let Some(told) = timed {
                told(waited);
                if ended.is_some() {
                    told(Waited::All(clock.spent(pending.prompt_tokens)));
                }
            }
            let Some(events) = &pending.events else { continue };
            let drawn = TokenLogprob {
                token: drawn.token,
                logprob: drawn.logprob,
            };
            let sent = events.try_send(Event {
                request: id.request,
                sample: id.sample,
                news: News::Token {
                    drawn,
                    top: top.unwrap_or_default(),
                    version: self.stats.policy_version,
                    ended,
                },
            });
            if let Err(TrySendError::Full(_)) = sent {
                // No later token may follow on one that was not told.
                unheard.extend(pending.events.take().map(|events| (id.request, events)));
            }
        }
        for (request, events) in unheard {
            self.withdraw_unheard(request, &events);
        }
    }

    /// Withdraws a request whose listener has fallen too far behind, and all others that it listens to. What they still draw would be
    /// kept for a reader that may never come.
    fn withdraw_unheard(&mut self, request: u64, events: &Sender<Event>) {
        let mut numbers = vec![request];
        for (&number, pending) in &mut self.pending {
            if pending.events.take_if(|its| its.same_channel(events)).is_some() {
                numbers.push(number);
            }
        }
        for number in numbers {
            self.abort(number);
        }
    }

    /// Tells those who listen that no token follows: the last one was told without its end.
    fn tell_withdrawn(&self, samples: &[Finished]) {
        for Finished { id, .. } in samples {
            let pending = self.pending.get(&id.request);
            let Some(events) = pending.and_then(|pending| pending.events.as_ref()) else {
                continue;
            };
            // A channel that is full says it by its end.
            let _ = events.try_send(Event {
                request: id.request,
                sample: id.sample,
                news: News::Withdrawn,
            });
        }
    }

    fn deliver(&mut self, finished: Vec<Finished>) {
        for Finished { id, completion } in finished {
            let Some(pending) = self.pending.get_mut(&id.request) else {
                continue;
            };
            pending.samples[id.sample] = Some(completion);
            pending.missing -= 1;
            if pending.missing > 0 {
                continue;
            }
            if let Some(pending) = self.pending.remove(&id.request) {
                let _ = pending.reply.send(Ok(pending.samples.into_iter().flatten().collect()));
            }
        }
    }

    /// Ends the requests of samples that no token could be drawn for. Their other samples nobody would hear of.
    fn fail(&mut self, failed: Vec<SequenceId>) {
        for SequenceId { request, sample } in failed {
            let Some(pending) = self.pending.remove(&request) else {
                continue;
            };
            self.scheduler.abort(request);
            self.publish();
            let error = EngineError::NoToken { sample };
            tracing::warn!("{error}");
            let _ = pending.reply.send(Err(error));
        }
    }

    fn answer_drained(&mut self) {
        if self.draining.is_empty() || !self.scheduler.is_idle() {
            return;
        }
        for reply in self.draining.drain(..) {
            let _ = reply.send(Ok(()));
        }
    }

    /// What is inside goes on beside new requests, or stands still: nobody may be told that the engine is empty.
    fn overtake_drains(&mut self) {
        for reply in self.draining.drain(..) {
            let _ = reply.send(Err(EngineError::Overtaken));
        }
    }

    fn publish(&mut self) {
        let counters = self.scheduler.counters();
        let blocks = self.scheduler.blocks();
        self.stats = Stats {
            running: self.scheduler.running_sequences(),
            waiting: self.scheduler.waiting_sequences(),
            kv_cache_usage: blocks.used() as f64 / blocks.total().max(1) as f64,
            counters,
            ..self.stats
        };
        self.shared.publish(self.stats);
    }

    /// Answers everyone who still waits, those whose command was not yet read included.
    fn fail_everything(mut self) {
        let error = self.shared.ended();
        for (_, pending) in self.pending.drain() {
            let _ = pending.reply.send(Err(error.clone()));
        }
        for reply in self.draining.drain(..) {
            let _ = reply.send(Err(error.clone()));
        }
        for command in self.commands.try_iter() {
            match command {
                Command::Submit { reply, .. } => drop(reply.send(Err(error.clone()))),
                Command::Pause(_, reply) | Command::UpdateWeights { reply, .. } => drop(reply.send(Err(error.clone()))),
                Command::Stage(reply) => drop(reply.send(Err(error.clone()))),
                Command::Abort(_) | Command::Resume | Command::Sleep | Command::Shutdown => {}
            }
        }
        self.shared.publish(Stats {
            running: 0,
            waiting: 0,
            kv_cache_usage: 0.0,
            ..self.stats
        });
    }
}
