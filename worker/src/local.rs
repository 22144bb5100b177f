//! `ppo-worker run`: all roles of a PpoJob in one process.

mod build;
mod engine;
mod run;

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

pub use build::{kind, reward_model};
pub use engine::{PolicyEngine, start as start_engine};

use crate::cli::ManifestArgs;
use crate::manifest::Manifest;
use crate::stop::StopFlag;
use crate::telemetry::OutputMode;

/// Arguments of `ppo-worker run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    manifest: ManifestArgs,
    /// Folder for checkpoints, metrics and the trained model. Default: runs/<name of the job>.
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Start anew: delete what an earlier run left in the folder instead of going on from its last checkpoint.
    #[arg(long)]
    fresh: bool,
    /// Serve /metrics, /healthz, /readyz and /report here, for example 127.0.0.1:9400.
    #[arg(long, value_name = "ADDRESS")]
    metrics_addr: Option<SocketAddr>,
}

/// Runs the job to its end, or until SIGTERM or Ctrl-C, after which the same command goes on from where it stopped.
///
/// # Errors
/// [`Invalid`](crate::manifest::Invalid), [`Diverged`](crate::trainer::Diverged), or what failed in which role.
pub fn main(args: RunArgs, output: OutputMode) -> Result<()> {
    let manifest = Manifest::read(&args.manifest.file)?;
    let config = manifest.resolve()?;
    let folder = args
        .run_dir
        .clone()
        .unwrap_or_else(|| PathBuf::from("runs").join(&config.name));
    let options = run::Options {
        fresh: args.fresh,
        output,
        metrics_address: args.metrics_addr,
        stop: StopFlag::on_signals()?,
    };
    run::Run::open(config, &manifest.text, &folder, options)?.complete()
}
