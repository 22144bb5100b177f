//! `kubectl ppo logs --follow`: looks for pods again and again, and reads the log of each beside the others'.

use std::collections::HashMap;
use std::io;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::stream::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::{ContainerState, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use ppo_crds::status::Phase;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::choice::{is_chosen, is_wanted, shown, unfit};
use super::open::{Refusal, open};
use super::writer::{Writer, whole};
use crate::plugin::cli::LogsArgs;
use crate::plugin::connection::Connection;
use crate::plugin::merge::Line;
use crate::plugin::printer::visible;
use crate::plugin::refusal::PATIENCE;
use crate::plugin::{job, pods, situation};

/// Pause between two looks for new pods.
const LOOK: Duration = Duration::from_secs(2);
/// After so long without a line a log is opened again: a connection that something on the way has dropped is as silent as a quiet pod.
const QUIET: Duration = Duration::from_secs(180);
/// How often the log of a job that has ended is asked for anew when its connection breaks.
const TRIES: u32 = 5;

/// What a task that reads one log sends.
enum Message {
    /// A line of this run, and what stands before it.
    Line(Run, String, Line),
    /// Nothing more is read of this run now, before whose lines that stands.
    Stop(Run, String, Stop),
}

/// Why a task reads no further.
enum Stop {
    /// The log came to its end, or there is none; whether that is the last of it.
    End(bool),
    /// No line came for long; whether the job had ended before.
    Quiet(bool),
    /// The connection broke; whether the job had ended before.
    Cut(bool),
    /// The log did not open; whether the job had ended before.
    Refused(Refusal, bool),
}

/// A container's run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Run {
    /// uid of its pod.
    pod: String,
    container: String,
    /// How often it was restarted in the pod.
    restarts: i32,
}

/// How far the log of a run was read.
#[derive(Clone, Copy, Default)]
struct Reading {
    /// A task reads it, or waits for it to open.
    is_open: bool,
    /// Nothing comes after what was read.
    is_last: bool,
    /// Time of the last line.
    last: Option<Timestamp>,
    /// How often in a row it did not open, or broke without a line.
    failures: u32,
    /// It broke off after the last line.
    is_cut: bool,
    /// It began while logs were followed already: `--tail` leaves none of its lines out.
    is_new: bool,
}

impl Reading {
    /// Whether there may be lines that were not read.
    fn has_more(self, state: &ContainerState) -> bool {
        !self.is_open && !self.is_last && (state.running.is_some() || state.terminated.is_some())
    }

    /// Whether there are lines, as far as is known, that nobody will read any more.
    fn is_lost(self) -> bool {
        self.is_last && self.failures > 0 && (self.is_cut || self.last.is_none())
    }

    fn stop(&mut self, stop: &Stop) {
        self.is_open = false;
        match *stop {
            Stop::End(is_last) => (self.is_last, self.failures, self.is_cut) = (is_last, 0, false),
            Stop::Quiet(job_has_ended) => {
                (self.is_last, self.failures, self.is_cut) = (job_has_ended, 0, false);
                // Without a time `--tail` would count from the end again, past the lines that come meanwhile.
                self.last = self.last.or_else(|| Timestamp::now().checked_sub(QUIET).ok());
            }
            Stop::Cut(job_has_ended) => {
                self.failures += 1;
                self.is_cut = true;
                self.is_last = job_has_ended && self.failures >= TRIES;
            }
            Stop::Refused(_, job_has_ended) => {
                self.failures += 1;
                self.is_last = job_has_ended;
            }
        }
    }
}

/// Logs that are being followed.
struct Followed {
    readings: HashMap<Run, Reading>,
    /// Pods were looked for before.
    has_looked: bool,
    /// Why no log will open.
    forbidden: Option<anyhow::Error>,
    tasks: JoinSet<()>,
    sender: mpsc::Sender<Message>,
}

impl Followed {
    /// Notes what a task has read; the line to print, and what stands before it.
    fn note(&mut self, message: Message) -> Option<(String, Line)> {
        match message {
            Message::Line(run, pod, line) => {
                let reading = self.readings.entry(run).or_default();
                (reading.last, reading.failures) = (reading.last.max(line.time), 0);
                Some((pod, line))
            }
            Message::Stop(run, pod, stop) => {
                let reading = self.readings.entry(run).or_default();
                reading.stop(&stop);
                let (is_again, is_last) = (reading.failures == 2, reading.is_last);
                if let Stop::Refused(refusal, _) = stop {
                    if is_again || is_last {
                        let words = format!("no log of {pod}: {:#}", refusal.error);
                        anstream::eprintln!("{}", visible(&words));
                    }
                    if refusal.is_of_all() {
                        self.forbidden = Some(refusal.error);
                    }
                }
                None
            }
        }
    }

    /// How many logs were not read to their end.
    fn lost(&self) -> usize {
        self.readings.values().filter(|reading| reading.is_lost()).count()
    }
}

/// Prints the logs until the job ends.
///
/// # Errors
/// When there is no such job, its logs may not be read, some of them were not read to the end, or the API server was away for too long.
pub async fn main(connection: &Connection, args: &LogsArgs) -> Result<()> {
    follow(connection, args, Writer::new(args.timestamps)).await
}

async fn follow(connection: &Connection, args: &LogsArgs, mut writer: Writer) -> Result<()> {
    let job = timeout(connection.answer, job::object(connection, &args.name)).await;
    job.with_context(|| silence(connection))??;
    let (sender, mut messages) = mpsc::channel(1024);
    let mut followed = Followed {
        readings: HashMap::new(),
        has_looked: false,
        forbidden: None,
        tasks: JoinSet::new(),
        sender,
    };
    // Whoever may not list pods is told so at once; later answers may fail for a while.
    let (mut answered, mut said): (Option<Instant>, _) = (None, String::new());
    // Beside the logs: however slow the API server is to say which pods there are, lines of those that are known are printed.
    let mut asked = Box::pin(ask(connection, args, Duration::ZERO));
    loop {
        tokio::select! {
            Some(message) = messages.recv() => {
                if let Some((pod, line)) = followed.note(message) {
                    writer.write(&pod, &line)?;
                }
                if messages.is_empty() {
                    writer.flush()?;
                }
                if let Some(forbidden) = followed.forbidden.take() {
                    writer.flush()?;
                    return Err(forbidden);
                }
            },
            answer = &mut asked => {
                asked.set(ask(connection, args, LOOK));
                match answer {
                    Ok(found) => {
                        answered = Some(Instant::now());
                        match look(connection, args, &mut followed, found) {
                            Look::Ended(phase) => {
                                anstream::eprintln!("{} has ended: {phase}.", args.name);
                                writer.flush()?;
                                return whole(followed.lost(), &args.name);
                            }
                            Look::Waits(what) if what != said => {
                                anstream::eprintln!("{what}");
                                said = what;
                            }
                            Look::Waits(_) | Look::Reads => {}
                        }
                    }
                    Err(error) if answered.is_none_or(|answered| answered.elapsed() > PATIENCE) => return Err(error),
                    Err(_) => {}
                }
            },
        }
    }
}

/// The job as it is after that pause; None: it was deleted.
async fn ask(connection: &Connection, args: &LogsArgs, pause: Duration) -> Result<Option<Found>> {
    sleep(pause).await;
    let found = timeout(connection.answer, find(connection, args)).await;
    found.with_context(|| silence(connection))?
}

fn silence(connection: &Connection) -> String {
    format!(
        "{} did not answer within {} s",
        connection.url,
        connection.answer.as_secs_f64()
    )
}

/// A job's phase, and its pods.
type Found = (Phase, Vec<Pod>);

async fn find(connection: &Connection, args: &LogsArgs) -> Result<Option<Found>> {
    let job = connection.jobs().get_opt(&args.name).await;
    let job = job.map_err(|error| job::request(connection, "get").refused(error))?;
    let Some(job) = job else { return Ok(None) };
    let phase = job::phase(&job).unwrap_or_default();
    Ok(Some((phase, situation::read_pods(connection, &args.name).await?)))
}

#[derive(Debug, PartialEq, Eq)]
enum Look {
    Reads,
    Waits(String),
    Ended(String),
}

/// Begins to read the logs of pods that have started since the last look.
fn look(connection: &Connection, args: &LogsArgs, followed: &mut Followed, found: Option<Found>) -> Look {
    let Some((phase, pods)) = found else {
        return Look::Ended("it was deleted".into());
    };
    while followed.tasks.try_join_next().is_some() {}
    let chosen = pods.iter().filter(|pod| is_chosen(pod, args));
    let runs = chosen.flat_map(|pod| runs(pod, args).map(move |(run, state)| (pod, run, state)));
    let is_first = !std::mem::replace(&mut followed.has_looked, true);
    for (pod, run, state) in runs {
        let had_begun = is_first && (state.running.is_some() || state.terminated.is_some());
        let unread = Reading {
            is_new: !had_begun,
            ..Reading::default()
        };
        let reading = followed.readings.entry(run.clone()).or_insert(unread);
        if !reading.has_more(state) {
            continue;
        }
        reading.is_open = true;
        // A node that does not answer holds up its own pods' logs alone.
        let (connection, mut args, sender) = (connection.clone(), args.clone(), followed.sender.clone());
        args.tail = args.tail.filter(|_| !reading.is_new);
        let (name, shown, after) = (pod.name_any(), shown(pod, &run.container, &args), reading.last);
        let (has_ended, job_has_ended) = (state.terminated.is_some(), phase.is_finished());
        followed.tasks.spawn(async move {
            let stop = match open(&connection, &args, &name, &run.container, after).await {
                Ok(log) => match pass_on(log, &run, &shown, &sender).await {
                    Ok(Passed::All) => Stop::End(has_ended),
                    Ok(Passed::Quiet) => Stop::Quiet(job_has_ended),
                    Err(_) => Stop::Cut(job_has_ended),
                },
                // Its pod went meanwhile, or has just started: the next look tries again, while the job goes on.
                Err(refusal) if refusal.is_of_no_log() => Stop::End(job_has_ended),
                Err(refusal) => Stop::Refused(refusal, job_has_ended),
            };
            // The receiver is gone only when the command ends.
            let _ = sender.send(Message::Stop(run, shown, stop)).await;
        });
    }
    let is_open = followed.readings.values().any(|reading| reading.is_open);
    match is_open {
        true => Look::Reads,
        false if phase.is_finished() => Look::Ended(format!("{phase:?}")),
        false => Look::Waits(awaited(args, phase, &pods)),
    }
}

/// How far a log was passed on.
enum Passed {
    /// To its end.
    All,
    /// As far as it went before it fell silent.
    Quiet,
}

/// Sends the lines of a log, until it ends, breaks or falls silent.
async fn pass_on(
    log: impl Stream<Item = io::Result<Line>>,
    run: &Run,
    pod: &str,
    sender: &mpsc::Sender<Message>,
) -> io::Result<Passed> {
    let mut log = pin!(log);
    loop {
        let Ok(next) = timeout(QUIET, log.next()).await else {
            return Ok(Passed::Quiet);
        };
        let Some(line) = next else { return Ok(Passed::All) };
        // As above.
        let _ = sender.send(Message::Line(run.clone(), pod.to_owned(), line?)).await;
    }
}

/// What is waited for while no log is read, as a sentence.
fn awaited(args: &LogsArgs, phase: Phase, pods: &[Pod]) -> String {
    let name = &args.name;
    if phase == Phase::Suspended {
        return format!("{name} is suspended and has no pods; waiting for them.");
    }
    if let Some(unfit) = unfit(args, phase, pods) {
        return format!("{unfit}; waiting for such a one.");
    }
    format!("{name} has no running pods ({phase:?}); waiting for them.")
}

/// The present runs of a pod's containers that are asked for, each with its state.
fn runs<'a>(pod: &'a Pod, args: &LogsArgs) -> impl Iterator<Item = (Run, &'a ContainerState)> {
    let status = pod.status.iter();
    let of_debugging = status.flat_map(|status| status.ephemeral_container_statuses.iter().flatten());
    let wanted = pods::containers(pod).chain(of_debugging);
    let wanted = wanted.filter(move |status| is_wanted(&status.name, args));
    wanted.filter_map(move |status| {
        let run = Run {
            pod: pod.uid()?,
            container: status.name.clone(),
            restarts: status.restart_count,
        };
        Some((run, status.state.as_ref()?))
    })
}

#[cfg(test)]
mod tests;
