//! `kubectl ppo logs`: the logs of all pods of a job as one.

mod choice;
mod follow;
mod open;
pub(super) mod since;
mod writer;

use anyhow::{Result, bail};
use futures::stream::{self, StreamExt as _};
use kube::ResourceExt as _;

use super::cli::LogsArgs;
use super::connection::Connection;
use super::merge::by_time;
use super::printer::visible;
use super::{job, refusal, situation};
use choice::sources;
use open::open;
use writer::{Writer, whole};

/// Logs opened at once, where all are read to their present end.
const REQUESTS: usize = 16;
/// Prints the logs; with `--follow` until the job ends.
pub async fn main(connection: &Connection, args: &LogsArgs) -> Result<()> {
    match args.follow {
        true => follow::main(connection, args).await,
        false => print_all(connection, args, Writer::new(args.timestamps)).await,
    }
}

async fn print_all(connection: &Connection, args: &LogsArgs, mut writer: Writer) -> Result<()> {
    let job = job::object(connection, &args.name).await?;
    let pods = situation::read_pods(connection, &args.name).await?;
    let sources = sources(&pods, args);
    if sources.is_empty() {
        bail!("{}", choice::none(args, job::phase(&job).unwrap_or_default(), &pods));
    }
    let opened = stream::iter(&sources).map(|(pod, container)| async move {
        let log = open(connection, args, &pod.name_any(), container, None).await;
        (choice::shown(pod, container, args), log)
    });
    let opened: Vec<_> = opened.buffered(REQUESTS).collect().await;
    let (mut names, mut logs, mut missing) = (Vec::new(), Vec::new(), 0);
    for (name, log) in opened {
        writer.colour(&name);
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
        match args.all_containers {
            true => bail!("none of the {} containers has a log", sources.len()),
            false => bail!(
                "none of the {} pods has a log of container {}",
                sources.len(),
                args.container
            ),
        }
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

#[cfg(test)]
mod tests;
