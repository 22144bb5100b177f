//! `ppo-worker actor`: what the actor's pod runs.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Result;
use axum::Router;
use clap::Args;
use ppo_crds::listen::everywhere;
use ppo_crds::pod::{RUNS_FOLDER, port};
use ppo_crds::report::Outcome;
use ppo_crds::spec::Role;
use ppo_crds::status::Progress;

use super::follower;
use super::opening::{Options, Run};
use super::siblings::Siblings;
use crate::device::DeviceArgs;
use crate::outcome::{Ended, leave_word, or_interrupted, outcome};
use crate::place::Place;
use crate::ranks::{Meeting, Ranks};
use crate::stop::StopFlag;
use crate::telemetry::{OutputMode, RunDir, Server, Watched};

/// Arguments of `ppo-worker actor`; the operator's environment says the rest.
#[derive(Debug, Args)]
pub struct ActorArgs {
    /// Where /metrics, /healthz, /readyz and /report are served. Default: port 9400 of every address.
    #[arg(long, value_name = "ADDRESS")]
    metrics_addr: Option<SocketAddr>,
    #[command(flatten)]
    device: DeviceArgs,
}

/// Trains to the end, or until SIGTERM, saving a checkpoint then; leaves word of how it ended.
///
/// # Errors
/// [`Invalid`](crate::manifest::Invalid), [`Diverged`](crate::outcome::Diverged), or what failed in which role.
pub fn main(args: &ActorArgs, output: OutputMode) -> Result<Ended> {
    let mut progress = None;
    let ended = or_interrupted(train(args, output, &mut progress));
    if !Siblings::is_one() {
        leave_word(&Outcome {
            progress,
            ..outcome(&ended)
        });
    }
    ended
}

/// `progress` is how far the run was when it ended.
fn train(args: &ActorArgs, output: OutputMode, progress: &mut Option<Progress>) -> Result<Ended> {
    // First: until then the kernel ignores SIGTERM for a pod's first process, and a GPU takes seconds to settle.
    let stop = StopFlag::on_signals()?;
    let place = Place::read(Role::Actor)?;
    args.device.settle(&who(&place))?;
    let address = args
        .metrics_addr
        .unwrap_or_else(|| SocketAddr::new(everywhere(), port::METRICS));
    let _siblings = Siblings::start(&place)?;
    match place.meeting()? {
        Some(meeting) if meeting.rank > 0 => follow(&place, meeting, &stop, address),
        meeting => {
            let run = lead(place, meeting, stop, address, output)?;
            let live = run.live();
            let ended = run.complete();
            *progress = Some(live.report().progress);
            ended
        }
    }
}

/// The first rank, or the only one: everything that is not training is its.
fn lead(
    place: Place,
    meeting: Option<Meeting>,
    stop: StopFlag,
    address: SocketAddr,
    output: OutputMode,
) -> Result<Run> {
    let text = serde_json::to_string_pretty(&place.config)?;
    let folder = folder(&place);
    let options = Options {
        fresh: false,
        output,
        metrics_address: Some(address),
        owner: Some(place.owner()),
        stop,
        peers: Some(place.peers),
        meeting,
        grace: place.grace,
    };
    Run::open(place.config, &text, &folder, options)
}

/// Any other rank. Once they have met it is asked to stop by the first, after the checkpoint; it ends no more than a download by itself.
fn follow(place: &Place, meeting: Meeting, stop: &StopFlag, address: SocketAddr) -> Result<Ended> {
    let watched = Watched::new(&place.config.name, place.attempt)?;
    // One process of a pod answers its probes.
    let serve = || Server::start(address, watched.exposition.clone(), None, Router::new());
    let server = (place.ranks.local == 0).then(serve).transpose()?;
    let claim = place.config.checkpoint.path.clone();
    let checkpoints = claim.unwrap_or_else(|| RunDir::new(folder(place)).checkpoints());
    let ranks = Ranks::join(meeting, stop)?;
    let ended = follower::follow(&place.config, &ranks, &watched, (&checkpoints, place.owner()), stop);
    server.map_or(Ok(()), Server::stop)?;
    ended
}

/// As it is called in the log.
fn who(place: &Place) -> String {
    match place.ranks.count {
        1 => "the actor".to_owned(),
        _ => format!("rank {} of the actor", place.rank()),
    }
}

/// Records and the trained model go beside the checkpoints, where the next attempt and people find them.
fn folder(place: &Place) -> PathBuf {
    let claim = place.config.checkpoint.path.clone();
    claim.unwrap_or_else(|| Path::new(RUNS_FOLDER).join(&place.job))
}
