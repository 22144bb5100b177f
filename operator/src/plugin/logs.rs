//! `kubectl ppo logs`: the logs of all pods of a job as one.

use std::collections::HashMap;
use std::io::Write as _;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use anyhow::{Context as _, Result, bail};
use futures::stream::{self, StreamExt as _};
use k8s_openapi::api::core::v1::{ContainerState, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, LogParams};
use kube::{Error, ResourceExt as _};
use ppo_crds::status::Phase;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::cli::LogsArgs;
use super::connection::Connection;
use super::merge::{Line, by_time, lines};
use super::refusal::Request;
use super::{job, pods, situation};

/// Pause between two looks for new pods.
const LOOK: Duration = Duration::from_secs(2);
/// Longest wait for a log to open, and for the list of pods while following.
const OPEN: Duration = Duration::from_secs(30);
/// How long the API server may be away while following.
const PATIENCE: Duration = Duration::from_secs(120);
/// Logs opened at once.
const REQUESTS: usize = 16;
/// Colours of the pods in turn; red is left to what the pods say.
const COLOURS: [AnsiColor; 6] = [
    AnsiColor::Cyan,
    AnsiColor::Green,
    AnsiColor::Magenta,
    AnsiColor::Yellow,
    AnsiColor::Blue,
    AnsiColor::BrightCyan,
];

/// Prints the logs; with `--follow` until the job ends.
pub async fn main(connection: &Connection, args: &LogsArgs) -> Result<()> {
    match args.follow {
        true => follow(connection, args).await,
        false => print_all(connection, args).await,
    }
}

async fn print_all(connection: &Connection, args: &LogsArgs) -> Result<()> {
    let job = job::read(connection, &args.name).await?;
    let chosen = chosen(connection, args).await?;
    if chosen.is_empty() {
        let phase = job.status.and_then(|status| status.phase).unwrap_or_default();
        bail!(
            "{} has no such pods ({phase:?}); `kubectl ppo why {}` says why",
            args.name,
            args.name
        );
    }
    let opened = stream::iter(&chosen).map(|pod| async move { (pod, open(connection, args, pod, None).await) });
    let opened: Vec<_> = opened.buffered(REQUESTS).collect().await;
    let (mut names, mut logs, mut refusals) = (Vec::new(), Vec::new(), Vec::new());
    for (pod, log) in opened {
        match log {
            Ok(log) => {
                names.push(pods::short_name(pod));
                logs.push(Box::pin(log));
            }
            Err(error) => refusals.push(error.context(format!("no log of {}", pods::short_name(pod)))),
        }
    }
    // One pod that has not started yet is no reason to hide the others' logs.
    for refusal in &refusals {
        anstream::eprintln!("{refusal:#}");
    }
    if logs.is_empty() {
        bail!(
            "none of the {} pods has a log of container {}",
            chosen.len(),
            args.container
        );
    }
    let mut writer = Writer::new(args.timestamps, chosen.iter().map(pods::short_name));
    let mut merged = Box::pin(by_time(logs));
    while let Some((index, line)) = merged.next().await {
        writer.write(&names[index], &line)?;
    }
    writer.flush()
}

/// Pods that the flags choose.
async fn chosen(connection: &Connection, args: &LogsArgs) -> Result<Vec<Pod>> {
    let all = situation::read_pods(connection, &args.name).await?;
    let is_chosen = |pod: &Pod| {
        args.role.is_none_or(|role| pods::role(pod) == Some(role))
            && args.index.is_none_or(|index| pods::index(pod) == Some(index))
    };
    Ok(all.into_iter().filter(is_chosen).collect())
}

/// The log of a pod's container, from the end of an earlier reading on where there is one.
async fn open(
    connection: &Connection,
    args: &LogsArgs,
    pod: &Pod,
    after: Option<Timestamp>,
) -> Result<impl stream::Stream<Item = Line> + use<>> {
    let api: Api<Pod> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let parameters = LogParams {
        container: Some(args.container.clone()),
        follow: args.follow,
        previous: args.previous,
        since_time: after,
        tail_lines: args.tail.filter(|_| after.is_none()).map(i64::from),
        timestamps: true,
        ..LogParams::default()
    };
    let name = pod.name_any();
    let log = timeout(OPEN, api.log_stream(&name, &parameters)).await;
    let log = log.with_context(|| format!("the kubelet did not answer in {} s", OPEN.as_secs()))?;
    let log = log.map_err(|error| refused(connection, error))?;
    // A connection that breaks ends the log; following opens it again.
    let readable = lines(Box::pin(log)).take_while(|line| std::future::ready(line.is_ok()));
    let readable = readable.filter_map(|line| std::future::ready(line.ok()));
    // The API takes whole seconds, so lines of the last one come again.
    Ok(readable.filter(move |line| std::future::ready(after.is_none() || line.time > after)))
}

fn refused(connection: &Connection, error: Error) -> anyhow::Error {
    match error {
        // The kubelet's own words: `container "worker" in pod "a-actor-0" is waiting to start: ContainerCreating`.
        Error::Api(status) if status.code == 400 => anyhow::anyhow!("{}", status.message),
        error => Request {
            verb: "get",
            resource: "pods/log",
            namespace: &connection.namespace,
            url: &connection.url,
        }
        .refused(error),
    }
}

/// What a task that reads one log sends.
enum Message {
    /// A line of the pod with this name, in this run of its container.
    Line(Run, String, Line),
    /// The log of this run ended.
    End(Run),
}

/// A container's run: uid of the pod, and how often the container was restarted in it.
type Run = (String, i32);

/// How far the log of a run was read.
#[derive(Clone, Copy, Default)]
struct Reading {
    is_open: bool,
    /// The container had ended when the log was last opened, so its end is the end.
    is_last: bool,
    /// Time of the last line.
    last: Option<Timestamp>,
}

impl Reading {
    /// Whether there may be lines that were not read.
    fn has_more(self, state: &ContainerState) -> bool {
        !self.is_open && (state.running.is_some() || (state.terminated.is_some() && !self.is_last))
    }
}

/// Logs that are being followed.
struct Followed {
    readings: HashMap<Run, Reading>,
    tasks: JoinSet<()>,
    sender: mpsc::Sender<Message>,
}

async fn follow(connection: &Connection, args: &LogsArgs) -> Result<()> {
    job::read(connection, &args.name).await?;
    let (sender, mut messages) = mpsc::channel(1024);
    let mut followed = Followed {
        readings: HashMap::new(),
        tasks: JoinSet::new(),
        sender,
    };
    let mut writer = Writer::new(args.timestamps, std::iter::empty());
    let (mut looks, mut answered, mut said) = (interval(LOOK), Instant::now(), String::new());
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            Some(message) = messages.recv() => match message {
                Message::Line(run, pod, line) => {
                    writer.write(&pod, &line)?;
                    let reading = followed.readings.entry(run).or_default();
                    reading.last = reading.last.max(line.time);
                    if messages.is_empty() {
                        writer.flush()?;
                    }
                }
                Message::End(run) => followed.readings.entry(run).or_default().is_open = false,
            },
            _ = looks.tick() => match timeout(OPEN, look(connection, args, &mut followed)).await {
                Ok(Ok(Look::Ended(phase))) => {
                    anstream::eprintln!("{} has ended: {phase}.", args.name);
                    return writer.flush();
                }
                Ok(Ok(Look::Waits(what))) => {
                    answered = Instant::now();
                    if what != said {
                        anstream::eprintln!("{what}");
                        said = what;
                    }
                }
                Ok(Ok(Look::Reads)) => answered = Instant::now(),
                Ok(Err(error)) if answered.elapsed() > PATIENCE => return Err(error),
                Err(late) if answered.elapsed() > PATIENCE => {
                    return Err(late).with_context(|| format!("{} has not answered for {} s", connection.url, PATIENCE.as_secs()));
                }
                Ok(Err(_)) | Err(_) => {}
            },
        }
    }
}

enum Look {
    Reads,
    Waits(String),
    Ended(String),
}

/// Opens the logs of pods that have started since the last look.
async fn look(connection: &Connection, args: &LogsArgs, followed: &mut Followed) -> Result<Look> {
    let job = match connection.jobs().get_opt(&args.name).await {
        Ok(Some(job)) => job,
        Ok(None) => return Ok(Look::Ended("it was deleted".into())),
        Err(error) => return Err(job::request(connection, "get").refused(error)),
    };
    let phase = job.status.and_then(|status| status.phase).unwrap_or_default();
    while followed.tasks.try_join_next().is_some() {}
    let pods = chosen(connection, args).await?;
    for pod in &pods {
        let Some((run, state)) = run(pod, &args.container) else {
            continue;
        };
        let reading = followed.readings.get(&run).copied().unwrap_or_default();
        if !reading.has_more(state) {
            continue;
        }
        // A pod that has just started may refuse; the next look tries again.
        let Ok(log) = open(connection, args, pod, reading.last).await else {
            continue;
        };
        let (is_open, is_last) = (true, state.terminated.is_some());
        followed.readings.insert(
            run.clone(),
            Reading {
                is_open,
                is_last,
                ..reading
            },
        );
        let (sender, name) = (followed.sender.clone(), pods::short_name(pod));
        followed.tasks.spawn(async move {
            let mut log = Box::pin(log);
            while let Some(line) = log.next().await {
                if sender
                    .send(Message::Line(run.clone(), name.clone(), line))
                    .await
                    .is_err()
                {
                    return;
                }
            }
            // The receiver is gone only when the command ends.
            let _ = sender.send(Message::End(run)).await;
        });
    }
    let is_open = followed.readings.values().any(|reading| reading.is_open);
    Ok(match is_open {
        true => Look::Reads,
        false if phase.is_finished() => Look::Ended(format!("{phase:?}")),
        false if phase == Phase::Suspended => {
            Look::Waits(format!("{} is suspended and has no pods; waiting for them.", args.name))
        }
        false => Look::Waits(format!(
            "{} has no running pods ({phase:?}); waiting for them.",
            args.name
        )),
    })
}

/// The present run of a pod's container, and its state.
fn run<'a>(pod: &'a Pod, container: &str) -> Option<(Run, &'a ContainerState)> {
    let status = pods::containers(pod).find(|status| status.name == container)?;
    Some(((pod.uid()?, status.restart_count), status.state.as_ref()?))
}

/// Writes lines with the pod before each, in its colour.
struct Writer {
    output: std::io::BufWriter<anstream::Stdout>,
    timestamps: bool,
    width: usize,
    colours: HashMap<String, Style>,
}

impl Writer {
    fn new(timestamps: bool, pods: impl Iterator<Item = String>) -> Self {
        let mut writer = Self {
            output: std::io::BufWriter::new(anstream::stdout()),
            timestamps,
            width: "reference-0".len(),
            colours: HashMap::new(),
        };
        for pod in pods {
            writer.colour(&pod);
        }
        writer
    }

    fn colour(&mut self, pod: &str) -> Style {
        self.width = self.width.max(pod.len());
        let next = COLOURS[self.colours.len() % COLOURS.len()].on_default();
        *self.colours.entry(pod.into()).or_insert(next)
    }

    fn write(&mut self, pod: &str, line: &Line) -> Result<()> {
        let style = self.colour(pod);
        write!(self.output, "{style}{pod:<width$}{style:#}  ", width = self.width)?;
        if let Some(time) = line.time.filter(|_| self.timestamps) {
            write!(self.output, "{time} ")?;
        }
        writeln!(self.output, "{}", line.text)?;
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(self.output.flush()?)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn state(value: serde_json::Value) -> ContainerState {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_log_is_opened_again_while_its_container_runs_and_once_more_after_it_ended() {
        let (running, ended) = (
            state(json!({"running": {}})),
            state(json!({"terminated": {"exitCode": 0}})),
        );
        let read = Reading::default();
        assert!(read.has_more(&running) && read.has_more(&ended));
        assert!(!Reading { is_open: true, ..read }.has_more(&running));
        assert!(!Reading { is_last: true, ..read }.has_more(&ended));
        assert!(!read.has_more(&state(json!({"waiting": {"reason": "ContainerCreating"}}))));
    }

    #[test]
    fn a_container_that_was_restarted_in_its_pod_has_a_log_of_its_own() {
        let pod = |restarts: i32| -> Pod {
            serde_json::from_value(json!({
                "metadata": {"uid": "u"},
                "status": {"containerStatuses": [{"name": "worker", "image": "", "imageID": "", "ready": true,
                                                  "restartCount": restarts, "state": {"running": {}}}]},
            }))
            .unwrap()
        };
        assert_ne!(run(&pod(0), "worker").unwrap().0, run(&pod(1), "worker").unwrap().0);
        assert!(run(&pod(0), "vllm").is_none());
    }
}
