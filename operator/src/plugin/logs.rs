//! `kubectl ppo logs`: the logs of all pods of a job as one.

mod choice;
mod follow;
mod open;
mod since;

use std::collections::HashMap;
use std::io::Write as _;

use anstyle::{AnsiColor, Style};
use anyhow::{Result, bail};
use futures::stream::{self, StreamExt as _};
use kube::ResourceExt as _;

use super::cli::LogsArgs;
use super::connection::Connection;
use super::merge::{Line, by_time};
use super::printer::visible;
use super::{job, pods, refusal, situation};
use choice::{has_container, is_chosen};
use open::open;
pub use since::Since;

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
        false => print_all(connection, args, Writer::new(args.timestamps)).await,
    }
}

async fn print_all(connection: &Connection, args: &LogsArgs, mut writer: Writer) -> Result<()> {
    let job = job::object(connection, &args.name).await?;
    let mut chosen = situation::read_pods(connection, &args.name).await?;
    let phase = job::phase(&job).unwrap_or_default();
    let none = choice::none(args, phase, &chosen);
    chosen.retain(|pod| is_chosen(pod, args) && has_container(pod, args));
    if chosen.is_empty() {
        bail!("{none}");
    }
    let opened =
        stream::iter(&chosen).map(|pod| async move { (pod, open(connection, args, &pod.name_any(), None).await) });
    let opened: Vec<_> = opened.buffered(REQUESTS).collect().await;
    let (mut names, mut logs, mut missing) = (Vec::new(), Vec::new(), 0);
    for (pod, log) in opened {
        let name = pods::short_name(pod);
        match log {
            Ok(log) => {
                names.push(name);
                logs.push(Box::pin(log));
            }
            Err(refusal) if refusal.is_of_all() => return Err(refusal.error),
            // One pod that has not started yet is no reason to hide the others' logs.
            Err(refusal) => {
                missing += usize::from(!refusal.is_of_no_log());
                anstream::eprintln!("{}", visible(&format!("no log of {name}: {:#}", refusal.error)));
            }
        }
    }
    if logs.is_empty() {
        bail!(
            "none of the {} pods has a log of container {}",
            chosen.len(),
            args.container
        );
    }
    for pod in &chosen {
        writer.colour(&pods::short_name(pod));
    }
    let mut merged = Box::pin(by_time(logs));
    while let Some((index, line)) = merged.next().await {
        match line {
            Ok(line) => writer.write(&names[index], &line)?,
            Err(error) => {
                missing += 1;
                let words = format!("the log of {} broke off: {}", names[index], refusal::chain(&error));
                anstream::eprintln!("{}", visible(&words));
            }
        }
    }
    writer.flush()?;
    whole(missing, &args.name)
}

/// An error where logs are missing or broke off: what was printed is not all there is.
fn whole(missing: usize, job: &str) -> Result<()> {
    if missing > 0 {
        bail!("{missing} of the logs of {job} could not be read to the end; try again while its pods are there");
    }
    Ok(())
}

/// Writes lines with the pod before each, in its colour.
struct Writer {
    output: std::io::BufWriter<Box<dyn std::io::Write + Send>>,
    timestamps: bool,
    width: usize,
    colours: HashMap<String, Style>,
}

impl Writer {
    fn new(timestamps: bool) -> Self {
        Self::onto(anstream::stdout(), timestamps)
    }

    fn onto(output: impl std::io::Write + Send + 'static, timestamps: bool) -> Self {
        Self {
            output: std::io::BufWriter::new(Box::new(output)),
            timestamps,
            width: "reference-0".len(),
            colours: HashMap::new(),
        }
    }

    /// The pod's colour, which it has from now on, and room for its name in all further lines.
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
mod tests;
