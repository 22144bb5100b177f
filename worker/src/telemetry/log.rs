//! The log: human text or JSON lines on stderr. `PPO_LOG` filters it as tracing's `EnvFilter` understands.

use std::io::{IsTerminal as _, Write};

use anyhow::{Result, anyhow};
use clap::ValueEnum;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use super::OutputMode;
use super::progress::screen;
use crate::manifest::Invalid;

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line, for log collectors.
    Json,
}

/// Starts the log for this process. Our own crates speak from `info` on, others from `warn`; `--quiet` leaves errors.
///
/// # Errors
/// [`Invalid`] when `PPO_LOG` cannot be parsed; when the log was started before.
pub fn init(format: LogFormat, output: OutputMode) -> Result<()> {
    let filter = filter(std::env::var("PPO_LOG").ok().as_deref(), output)?;
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(colours)
        // It would tell of a line that cannot be written where that cannot be written either, and panic.
        .log_internal_errors(false)
        .with_writer(BesideTheBar);
    let started = match format {
        LogFormat::Text => log.with_target(false).compact().try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| anyhow!("cannot start the log: {error}"))
}

fn filter(wanted: Option<&str>, output: OutputMode) -> Result<EnvFilter> {
    let default = match output {
        OutputMode::Quiet => "error",
        OutputMode::Auto | OutputMode::Json => "warn,ppo_worker=info,ppo_crds=info",
    };
    let directives = wanted.filter(|text| !text.trim().is_empty()).unwrap_or(default);
    EnvFilter::try_new(directives).map_err(|error| {
        let words = format!(
            "PPO_LOG={directives:?} is not a log filter ({error}); write a level such as \"debug\", or \"ppo_worker=trace,warn\""
        );
        Invalid::new(words).into()
    })
}

/// Prints to stderr with the progress bar out of the way.
struct BesideTheBar;

impl<'a> MakeWriter<'a> for BesideTheBar {
    type Writer = BesideTheBar;

    fn make_writer(&'a self) -> BesideTheBar {
        BesideTheBar
    }
}

impl Write for BesideTheBar {
    /// The subscriber formats a whole line before it writes, so one call is one line.
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        screen().suspend(|| std::io::stderr().write_all(line))?;
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_info_for_our_crates_and_errors_when_quiet() {
        assert!(
            filter(None, OutputMode::Auto)
                .unwrap()
                .to_string()
                .contains("ppo_worker=info")
        );
        assert_eq!(filter(Some(" "), OutputMode::Quiet).unwrap().to_string(), "error");
        assert_eq!(filter(Some("debug"), OutputMode::Quiet).unwrap().to_string(), "debug");
    }

    #[test]
    fn a_filter_that_makes_no_sense_is_an_error_that_quotes_it() {
        let error = filter(Some("ppo_worker=loud"), OutputMode::Auto).unwrap_err();
        assert!(error.to_string().contains("ppo_worker=loud"), "{error}");
        assert!(error.is::<Invalid>(), "nobody can run it again with success: {error}");
    }
}
