//! `ppo-worker run`: all roles of a PpoJob in one process.

mod adapted;
mod build;
mod capacity;
mod comparison;
mod continuation;
mod data;
mod folder;
mod follower;
mod fresh;
mod grace;
mod guard;
mod inputs;
mod judging;
mod learners;
mod models;
mod opening;
mod places;
pub mod pod;
mod reach;
mod records;
mod same_tokens;
mod seen;
mod siblings;
mod start;
mod trained;
mod training;

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use ppo_crds::spec::Engine;
use ppo_crds::warnings;

pub use data::check_stop_ids;
pub use learners::learners;
pub use opening::{Options, Run};

use crate::device::{DeviceArgs, Missing};
use crate::manifest::{Manifest, ManifestArgs};
use crate::outcome::{Ended, or_interrupted};
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
    /// Where the claims of a manifest for a cluster lie: claim `c` is the folder DIR/c. Paths are absolute then, as in a pod.
    #[arg(long, value_name = "DIR")]
    volumes: Option<PathBuf>,
    /// Start anew: delete what an earlier run left in the folder, and its checkpoints where `spec.checkpoint` puts them, instead of going
    /// on from the last one.
    #[arg(long)]
    fresh: bool,
    /// Serve /metrics, /healthz, /readyz and /report here, for example 127.0.0.1:9400.
    #[arg(long, value_name = "ADDRESS")]
    metrics_addr: Option<SocketAddr>,
    #[command(flatten)]
    device: DeviceArgs,
}

/// Runs the job to its end, or until SIGTERM or Ctrl-C, after which the same command goes on from where it stopped.
///
/// # Errors
/// [`Invalid`](crate::manifest::Invalid), [`Diverged`](crate::outcome::Diverged), or what failed in which role.
pub fn main(args: RunArgs, output: OutputMode) -> Result<Ended> {
    let manifest = Manifest::read(&args.manifest.file)?;
    let config = manifest.resolve_with(args.volumes.as_deref())?;
    for warning in warnings(&manifest.job) {
        tracing::warn!("{}: {}", warning.field, warning.message);
    }
    let settled = args.device.settle("every role")?;
    let roles = &manifest.job.spec.roles;
    let gpus = [
        (roles.actor.gpus_per_node, ["spec", "roles", "actor", "gpusPerNode"]),
        (
            roles.rollout.gpus_per_replica,
            ["spec", "roles", "rollout", "gpusPerReplica"],
        ),
    ];
    // A default asks for nothing.
    let asked = gpus.iter().any(|(gpus, field)| *gpus > 0 && manifest.writes(field));
    let gpus = gpus.iter().any(|(gpus, _)| *gpus > 0);
    if asked || roles.rollout.engine == Engine::Vllm {
        tracing::warn!(
            "GPUs, replicas and engine under spec.roles are for a cluster: here one process computes on {settled}"
        );
    }
    // Of all else that keeps a GPU from use the log has told.
    let driver = settled.missing.filter(|missing| matches!(missing, Missing::Driver(_)));
    if let Some(missing) = driver.filter(|_| gpus && asked) {
        tracing::warn!("no usable GPU: {missing}");
    }
    let folder = args
        .run_dir
        .clone()
        .unwrap_or_else(|| PathBuf::from("runs").join(&config.name));
    let options = Options {
        fresh: args.fresh,
        output,
        metrics_address: args.metrics_addr,
        owner: None,
        peers: None,
        meeting: None,
        grace: None,
        stop: StopFlag::on_signals()?,
    };
    or_interrupted(Run::open(config, &manifest.text, &folder, options).and_then(Run::complete))
}
