//! `kubectl ppo logs --follow`: looks for pods again and again, and reads the log of each beside the others'.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::stream::StreamExt as _;
use k8s_openapi::api::core::v1::{ContainerState, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use ppo_crds::status::Phase;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::{OPEN, Writer, is_chosen, open};
use crate::plugin::cli::LogsArgs;
use crate::plugin::connection::Connection;
use crate::plugin::merge::Line;
use crate::plugin::refusal::PATIENCE;
use crate::plugin::{job, pods, situation};

/// Pause between two looks for new pods.
const LOOK: Duration = Duration::from_secs(2);

/// What a task that reads one log sends.
enum Message {
    /// A line of the pod with this name, in this run of its container.
    Line(Run, String, Line),
    /// Nothing more is read of this run now, and whether that was the last of it.
    End(Run, bool),
}

/// A container's run: uid of the pod, and how often the container was restarted in it.
type Run = (String, i32);

/// How far the log of a run was read.
#[derive(Clone, Copy, Default)]
struct Reading {
    /// A task reads it, or waits for it to open.
    is_open: bool,
    /// Nothing comes after what was read.
    is_last: bool,
    /// Time of the last line.
    last: Option<Timestamp>,
}

impl Reading {
    /// Whether there may be lines that were not read.
    fn has_more(self, state: &ContainerState) -> bool {
        !self.is_open && !self.is_last && (state.running.is_some() || state.terminated.is_some())
    }
}

/// Logs that are being followed.
struct Followed {
    readings: HashMap<Run, Reading>,
    tasks: JoinSet<()>,
    sender: mpsc::Sender<Message>,
}

impl Followed {
    /// Notes what a task has read; the line to print, with the pod's name.
    fn note(&mut self, message: Message) -> Option<(String, Line)> {
        match message {
            Message::Line(run, pod, line) => {
                let reading = self.readings.entry(run).or_default();
                reading.last = reading.last.max(line.time);
                Some((pod, line))
            }
            Message::End(run, is_last) => {
                let reading = self.readings.entry(run).or_default();
                (reading.is_open, reading.is_last) = (false, is_last);
                None
            }
        }
    }
}

/// Prints the logs until the job ends.
///
/// # Errors
/// When there is no such job, or the API server was away for too long.
pub async fn main(connection: &Connection, args: &LogsArgs) -> Result<()> {
    follow(connection, args, Writer::new(args.timestamps, std::iter::empty())).await
}

async fn follow(connection: &Connection, args: &LogsArgs, mut writer: Writer) -> Result<()> {
    job::object(connection, &args.name).await?;
    let (sender, mut messages) = mpsc::channel(1024);
    let mut followed = Followed {
        readings: HashMap::new(),
        tasks: JoinSet::new(),
        sender,
    };
    let (mut answered, mut said) = (Instant::now(), String::new());
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
            },
            answer = &mut asked => {
                asked.set(ask(connection, args, LOOK));
                match answer {
                    Ok(found) => {
                        answered = Instant::now();
                        match look(connection, args, &mut followed, found) {
                            Look::Ended(phase) => {
                                anstream::eprintln!("{} has ended: {phase}.", args.name);
                                return writer.flush();
                            }
                            Look::Waits(what) if what != said => {
                                anstream::eprintln!("{what}");
                                said = what;
                            }
                            Look::Waits(_) | Look::Reads => {}
                        }
                    }
                    Err(error) if answered.elapsed() > PATIENCE => return Err(error),
                    Err(_) => {}
                }
            },
        }
    }
}

/// The job as it is after that pause; None: it was deleted.
async fn ask(connection: &Connection, args: &LogsArgs, pause: Duration) -> Result<Option<Found>> {
    sleep(pause).await;
    let found = timeout(OPEN, find(connection, args)).await;
    found.with_context(|| format!("{} did not answer within {} s", connection.url, OPEN.as_secs()))?
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
    for pod in pods.iter().filter(|pod| is_chosen(pod, args)) {
        let Some((run, state)) = run(pod, &args.container) else {
            continue;
        };
        let reading = followed.readings.entry(run.clone()).or_default();
        if !reading.has_more(state) {
            continue;
        }
        reading.is_open = true;
        // A node that does not answer holds up its own pods' logs alone.
        let (connection, args, sender) = (connection.clone(), args.clone(), followed.sender.clone());
        let (name, shown, after) = (pod.name_any(), pods::short_name(pod), reading.last);
        let (has_ended, job_has_ended) = (state.terminated.is_some(), phase.is_finished());
        followed.tasks.spawn(async move {
            let is_last = match open(&connection, &args, &name, after).await {
                Ok(log) => {
                    let mut log = Box::pin(log);
                    while let Some(line) = log.next().await {
                        let line = Message::Line(run.clone(), shown.clone(), line);
                        if sender.send(line).await.is_err() {
                            return;
                        }
                    }
                    has_ended
                }
                // A pod that has just started may refuse: the next look tries again, while the job goes on.
                Err(_) => job_has_ended,
            };
            // The receiver is gone only when the command ends.
            let _ = sender.send(Message::End(run, is_last)).await;
        });
    }
    let is_open = followed.readings.values().any(|reading| reading.is_open);
    match is_open {
        true => Look::Reads,
        false if phase.is_finished() => Look::Ended(format!("{phase:?}")),
        false => Look::Waits(awaited(args, phase, &pods)),
    }
}

/// What is waited for while no log is read, as a sentence.
fn awaited(args: &LogsArgs, phase: Phase, pods: &[Pod]) -> String {
    let (name, container) = (&args.name, &args.container);
    if phase == Phase::Suspended {
        return format!("{name} is suspended and has no pods; waiting for them.");
    }
    let chosen: Vec<&Pod> = pods.iter().filter(|pod| is_chosen(pod, args)).collect();
    if chosen.is_empty() && !pods.is_empty() {
        let role = args.role.map(|role| format!(" --role {}", role.name()));
        let index = args.index.map(|index| format!(" --index {index}"));
        let flags = [role, index].map(Option::unwrap_or_default).concat();
        return format!(
            "None of the {} pods of {name} ({phase:?}) is chosen by{flags}; waiting for one that is.",
            pods.len()
        );
    }
    let there: BTreeSet<&str> = chosen.iter().copied().flat_map(container_names).collect();
    if !chosen.is_empty() && !there.contains(container.as_str()) {
        let there: Vec<&str> = there.into_iter().collect();
        return format!(
            "None of the {} chosen pods of {name} ({phase:?}) has a container {container}, they have {}; waiting for one that has.",
            chosen.len(),
            there.join(", ")
        );
    }
    format!("{name} has no running pods ({phase:?}); waiting for them.")
}

/// Containers that the pod has or will have.
fn container_names(pod: &Pod) -> impl Iterator<Item = &str> {
    let containers = pod
        .spec
        .iter()
        .flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
    containers.map(|container| container.name.as_str())
}

/// The present run of a pod's container, and its state.
fn run<'a>(pod: &'a Pod, container: &str) -> Option<(Run, &'a ContainerState)> {
    let status = pods::containers(pod).find(|status| status.name == container)?;
    Some(((pod.uid()?, status.restart_count), status.state.as_ref()?))
}

#[cfg(test)]
mod tests;
