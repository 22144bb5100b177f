//! The log: human text or JSON lines on stderr. `RUST_LOG` filters it as tracing's `EnvFilter` understands.

use std::io::IsTerminal as _;

use anyhow::Context as _;
use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

/// How it is written.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For log collectors.
    Json,
}

/// Starts the log.
///
/// # Errors
/// When `RUST_LOG` is no filter: one with a typing mistake would hide just what somebody looks for.
pub fn init(format: LogFormat) -> anyhow::Result<()> {
    let filter = filter(std::env::var("RUST_LOG").ok().as_deref())?;
    // A collector of logs would keep the colours' escapes, and find no level behind them.
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(colours)
        // It would tell of a line that cannot be written where that cannot be written either, and panic.
        .log_internal_errors(false)
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Text => builder.init(),
        LogFormat::Json => builder.json().init(),
    }
    Ok(())
}

fn filter(wanted: Option<&str>) -> anyhow::Result<EnvFilter> {
    let directives = wanted
        .filter(|text| !text.trim().is_empty())
        .unwrap_or("info,kube=warn");
    EnvFilter::try_new(directives).with_context(|| {
        format!("RUST_LOG={directives:?} is not a log filter; write a level such as \"debug\", or \"ppo_operator=trace,warn\"")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_makes_no_sense_is_an_error_that_quotes_it_and_an_empty_one_is_none() {
        assert_eq!(
            filter(None).unwrap().to_string(),
            filter(Some(" ")).unwrap().to_string()
        );
        assert_eq!(filter(Some("debug")).unwrap().to_string(), "debug");
        let error = filter(Some("ppo_operator=loud")).unwrap_err();
        assert!(error.to_string().contains("ppo_operator=loud"), "{error}");
    }
}
