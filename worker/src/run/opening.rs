//! A run is opened: its ranks meet, its folder is taken, every role is loaded, and the records go on where they were cut off.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use ppo_crds::RunConfig;

use super::build::{self, Roles};
use super::folder::Folder;
use super::guard::Locks;
use super::learners::fetch;
use super::seen::Seen;
use super::start::{Around, Start};
use crate::actor::checkpoint::Checkpoints;
use crate::actor::fence::Watch;
use crate::disk;
use crate::outcome;
use crate::place::{Owner, Peers};
use crate::ranks::{Meeting, Ranks};
use crate::run_state::Verified;
use crate::stop::StopFlag;
use crate::telemetry::run_dir::write_whole;
use crate::telemetry::{OutputMode, Recorder, RunDir, Server};
use crate::trainer::{Evaluated, Trainer};

/// How a run is done on this machine, as opposed to what runs.
#[derive(Debug)]
pub struct Options {
    /// Delete what an earlier run left.
    pub fresh: bool,
    /// Progress.
    pub output: OutputMode,
    /// Where to serve metrics.
    pub metrics_address: Option<SocketAddr>,
    /// The attempt that owns the checkpoints; None outside a cluster, where a lock on the folder does.
    pub owner: Option<Owner>,
    /// Set by SIGTERM.
    pub stop: StopFlag,
    /// The pods of the other roles; None: every role is in this process.
    pub peers: Option<Peers>,
    /// How the ranks meet that train together, of which this process leads; None: it trains alone.
    pub meeting: Option<Meeting>,
    /// How long the process has from SIGTERM until it is killed. None: nobody kills it, or nobody knows.
    pub grace: Option<Duration>,
}

/// Threads that wait for other roles at the most.
const MOST_THREADS: usize = 8;

/// Threads that wait for others: where there are engines in pods, weights go to all of them at once.
fn threads(have_pods: bool) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    match have_pods {
        true => cores.clamp(2, MOST_THREADS),
        false => 2,
    }
}

/// A run in its folder.
pub struct Run {
    pub(super) roles: Roles,
    pub(super) checkpoints: Checkpoints,
    pub(super) recorder: Recorder,
    pub(super) server: Option<Server>,
    pub(super) folder: RunDir,
    pub(super) output: OutputMode,
    /// Whether it was asked to delete what an earlier one left.
    pub(super) fresh: bool,
    /// What the pod has to end in once it is asked to stop, until it is said whether that is enough.
    pub(super) grace: Option<Duration>,
    /// The answers to held-out prompts at step 0.
    pub(super) before: Option<Evaluated>,
    /// The newest ones.
    pub(super) latest: Option<Evaluated>,
    /// Step of the newest checkpoint.
    pub(super) saved: Option<u64>,
    pub(super) began: Instant,
    _runtime: tokio::runtime::Runtime,
    /// Held as long as the run lives, outside a cluster: two processes in one folder would spoil both.
    _locks: Option<Locks>,
    /// Held as long as the run lives, in a pod: one that a newer attempt has succeeded is asked to stop.
    _watch: Option<Watch>,
}

impl Run {
    /// Meets the other ranks, opens the folder, resumes from its newest checkpoint or starts anew, and loads every role.
    ///
    /// # Errors
    /// When another process runs there, the checkpoint is of another configuration, or a role cannot be built.
    pub fn open(config: RunConfig, manifest: &str, root: &Path, mut options: Options) -> Result<Self> {
        // Probes and the operator are answered while ranks meet and models load.
        let seen = Seen::open(&config.name, &options)?;
        let ranks = match options.meeting.take() {
            Some(meeting) => Ranks::join(meeting, &options.stop)?,
            None => Ranks::alone(),
        };
        let opened = Self::load(config, manifest, root, options, seen, &ranks);
        opened
            .map_err(disk::explain)
            .inspect_err(|error| ranks.dismiss(outcome::failure(error), outcome::code(error)))
    }

    fn load(
        config: RunConfig,
        manifest: &str,
        root: &Path,
        options: Options,
        seen: Seen,
        ranks: &Ranks,
    ) -> Result<Self> {
        let began = Instant::now();
        let folder = Folder::take(&config, root, options.fresh, options.owner)?;
        ranks.enter("fetching models".into());
        let policy = fetch(&config, &options.stop)?;
        let found = folder.checkpoint(&config, ranks, &seen.watched.live)?;
        // Before the others are told to load: one that was asked to stop in its download has nothing to load.
        options.stop.check()?;
        let start = Start {
            checkpoint: found.as_ref(),
            afresh: folder.afresh(),
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads(options.peers.is_some()))
            .enable_all()
            .build()?;
        let around = Around {
            runtime: runtime.handle().clone(),
            stop: options.stop,
            live: seen.watched.live.clone(),
            peers: options.peers.as_ref(),
            ranks,
            publication: &seen.publication,
        };
        let roles = build::roles(config, policy, start, around)?;
        // Models take minutes to load: one that was asked to stop meanwhile deletes nothing, and has nothing to save.
        roles.trainer.stop.check()?;
        folder.clear_if_fresh()?;
        let recorder = records(&roles.trainer, manifest, &folder, found.as_ref(), &seen, options.output)?;
        let watch = folder.checkpoints.watch(&roles.trainer.stop)?;
        seen.watched.exposition.set_ready(true);
        Ok(Self {
            saved: found.map(|found| found.state.step),
            roles,
            checkpoints: folder.checkpoints,
            recorder,
            server: seen.server,
            folder: folder.dir,
            output: options.output,
            fresh: options.fresh,
            grace: options.grace,
            before: None,
            latest: None,
            began,
            _runtime: runtime,
            _locks: folder.locks,
            _watch: watch,
        })
    }
}

/// Opens the records of a run, and says in them what it goes on from, and what has changed since.
fn records(
    trainer: &Trainer,
    manifest: &str,
    folder: &Folder,
    found: Option<&Verified>,
    seen: &Seen,
    output: OutputMode,
) -> Result<Recorder> {
    let mut recorder = Recorder::open(
        folder.dir.root(),
        &trainer.config,
        seen.watched.clone(),
        trainer.total_steps,
        trainer.steps_done,
        output,
    )?;
    let path = folder.dir.manifest();
    // Whole: it may be the very file that the manifest was read from, on a disk that is full.
    write_whole(&path, manifest.as_bytes())?;
    if let Some(Verified { folder: from, state }) = found {
        recorder.event(
            "resumed",
            &format!("going on after step {} from {}", state.step, from.display()),
        )?;
        let continuation = folder.continuation(state, &trainer.config)?;
        for change in continuation.changes(trainer.prompts.prompts.len()) {
            recorder.event("changed", &change)?;
        }
    }
    let model = folder.dir.model();
    if trainer.steps_done < trainer.total_steps && model.is_dir() {
        tracing::warn!(
            "{} is the model of an earlier end until this run ends: newer ones are the folders `policy` of its checkpoints",
            model.display()
        );
    }
    Ok(recorder)
}
