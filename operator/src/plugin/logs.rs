//! `kubectl ppo logs`: the logs of all pods of a job as one.

mod follow;

use std::collections::HashMap;
use std::io::Write as _;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use anyhow::{Context as _, Result, bail};
use futures::stream::{self, StreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, LogParams};
use kube::{Error, ResourceExt as _};
use tokio::time::timeout;

use super::cli::LogsArgs;
use super::connection::Connection;
use super::merge::{Line, by_time, lines};
use super::refusal::Request;
use super::{job, pods, situation};

/// Longest wait for a log to open, and for the list of pods while following.
const OPEN: Duration = Duration::from_secs(30);
/// Logs opened at once, where all are read to their present end.
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
        true => follow::main(connection, args).await,
        false => print_all(connection, args).await,
    }
}

async fn print_all(connection: &Connection, args: &LogsArgs) -> Result<()> {
    let job = job::object(connection, &args.name).await?;
    let chosen = chosen(connection, args).await?;
    if chosen.is_empty() {
        let phase = job::phase(&job).unwrap_or_default();
        bail!(
            "{} has no such pods ({phase:?}); `kubectl ppo why {}` says why",
            args.name,
            args.name
        );
    }
    let opened =
        stream::iter(&chosen).map(|pod| async move { (pod, open(connection, args, &pod.name_any(), None).await) });
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
    let mut pods = situation::read_pods(connection, &args.name).await?;
    pods.retain(|pod| is_chosen(pod, args));
    Ok(pods)
}

fn is_chosen(pod: &Pod, args: &LogsArgs) -> bool {
    args.role.is_none_or(|role| pods::role(pod) == Some(role))
        && args.index.is_none_or(|index| pods::index(pod) == Some(index))
}

/// The log of the chosen container of the pod `name`, from the end of an earlier reading on where there is one.
async fn open(
    connection: &Connection,
    args: &LogsArgs,
    name: &str,
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
    let log = timeout(OPEN, api.log_stream(name, &parameters)).await;
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

/// Writes lines with the pod before each, in its colour.
struct Writer {
    output: std::io::BufWriter<Box<dyn std::io::Write + Send>>,
    timestamps: bool,
    width: usize,
    colours: HashMap<String, Style>,
}

impl Writer {
    fn new(timestamps: bool, pods: impl Iterator<Item = String>) -> Self {
        Self::onto(anstream::stdout(), timestamps, pods)
    }

    fn onto(
        output: impl std::io::Write + Send + 'static,
        timestamps: bool,
        pods: impl Iterator<Item = String>,
    ) -> Self {
        let mut writer = Self {
            output: std::io::BufWriter::new(Box::new(output)),
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
