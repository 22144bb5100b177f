//! `ppo-worker actor`: what the actor's pod runs.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use ppo_crds::pod::port;

use crate::local::{Options, Run};
use crate::outcome::{Ended, leave_word, outcome};
use crate::place::Place;
use crate::stop::StopFlag;
use crate::telemetry::OutputMode;

/// Scratch space of the pod, for the records of a run without a claim.
const RUNS: &str = "/runs";

/// Arguments of `ppo-worker actor`; the operator's environment says the rest.
#[derive(Debug, Args)]
pub struct ActorArgs {
    /// Where /metrics, /healthz, /readyz and /report are served.
    #[arg(long, value_name = "ADDRESS", default_value_t = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port::METRICS)))]
    metrics_addr: SocketAddr,
}

/// Trains to the end, or until SIGTERM, saving a checkpoint then; leaves word of how it ended.
///
/// # Errors
/// [`Invalid`](crate::manifest::Invalid), [`Diverged`](crate::trainer::Diverged), or what failed in which role.
pub fn main(args: &ActorArgs, output: OutputMode) -> Result<Ended> {
    let ended = train(args, output);
    leave_word(&outcome(&ended));
    ended
}

fn train(args: &ActorArgs, output: OutputMode) -> Result<Ended> {
    let place = Place::read()?;
    let text = serde_json::to_string_pretty(&place.config)?;
    let folder = folder(&place);
    let options = Options {
        fresh: false,
        output,
        metrics_address: Some(args.metrics_addr),
        owner: Some(place.owner()),
        stop: StopFlag::on_signals()?,
        peers: Some(place.peers),
    };
    Run::open(place.config, &text, &folder, options)?.complete()
}

/// Records and the trained model go beside the checkpoints, where the next attempt and people find them.
fn folder(place: &Place) -> PathBuf {
    let claim = place.config.checkpoint.path.clone();
    claim.unwrap_or_else(|| Path::new(RUNS).join(&place.job))
}
