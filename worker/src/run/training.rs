//! A run from its first step to its last: resume, evaluation, checkpoints, the end.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ppo_crds::RunConfig;

use super::build::{self, Roles};
use super::comparison::compare;
use super::folder::Folder;
use super::grace;
use super::guard::Locks;
use super::learners::fetch;
use super::models::{write_adapter, write_models, write_policy};
use super::seen::Seen;
use super::start::{Around, Start};
use crate::actor::checkpoint::{Checkpoints, State, Verified};
use crate::actor::fence::{Owner, Superseded, Watch};
use crate::disk;
use crate::native::device::{Memory, memory};
use crate::outcome::{self, Ended};
use crate::place::Peers;
use crate::ranks::{Meeting, Ranks};
use crate::stop::{Interrupted, StopFlag};
use crate::telemetry::{Live, OutputMode, Recorder, RunDir, Server, Stage, StepReport, table};
use crate::trainer::{Evaluated, Step, Trainer, describe};

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
    server: Option<Server>,
    pub(super) folder: RunDir,
    output: OutputMode,
    /// Whether it was asked to delete what an earlier one left.
    fresh: bool,
    /// What the pod has to end in once it is asked to stop, until it is said whether that is enough.
    grace: Option<Duration>,
    /// The answers to held-out prompts at step 0.
    pub(super) before: Option<Evaluated>,
    /// The newest ones.
    pub(super) latest: Option<Evaluated>,
    /// Step of the newest checkpoint.
    pub(super) saved: Option<u64>,
    began: Instant,
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
        let policy = fetch(&config)?;
        let found = folder.checkpoint(&config, ranks, &seen.watched.live)?;
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

    /// What it tells of itself, also when it has ended.
    pub fn live(&self) -> Arc<Live> {
        self.roles.trainer.live.clone()
    }

    /// Trains to the end and leaves the model; or saves and stops when asked to.
    ///
    /// # Errors
    /// What ended the run before its end; the newest checkpoint stays.
    pub fn complete(self) -> Result<Ended> {
        let ranks = self.roles.trainer.ranks.clone();
        let ended = self.train_and_finish().map_err(disk::explain);
        let code = ended.as_ref().map_or_else(outcome::code, |_| 0);
        ranks.dismiss(outcome::outcome(&ended), code);
        ended
    }

    fn train_and_finish(mut self) -> Result<Ended> {
        let ended = match self.train() {
            Ok(()) => self.finish().map(|words| (Ended::Completed, words)),
            Err(error) if error.is::<Interrupted>() => self.interrupted().map(|words| (Ended::Interrupted, words)),
            Err(error) => Err(error),
        };
        match ended {
            Ok((ended, words)) => {
                self.recorder.finish(&words)?;
                self.server.map_or(Ok(()), Server::stop)?;
                Ok(ended)
            }
            // A newer one records here by now.
            Err(error) if error.is::<Superseded>() => Err(error),
            Err(error) => {
                let kind = if error.is::<crate::trainer::Diverged>() {
                    "diverged"
                } else {
                    "failed"
                };
                let stages = &self.roles.trainer.stages;
                let told = self.recorder.ended(kind, &format!("{error:#}"), stages);
                let kept = self
                    .saved
                    .map(|step| format!("; the checkpoint of step {step} is kept"))
                    .unwrap_or_default();
                let words = format!("{kind} after step {}{kept}", self.roles.trainer.steps_done);
                // What ended the run is what counts, also where a disk is full.
                if let Err(untold) = told.and(self.recorder.finish(&words)) {
                    tracing::warn!("{untold:#}");
                }
                Err(error)
            }
        }
    }

    fn train(&mut self) -> Result<()> {
        self.evaluate_before()?;
        self.finish_interrupted_evaluation()?;
        while self.roles.trainer.steps_done < self.roles.trainer.total_steps {
            let first = self.roles.trainer.steps_done == 0;
            let mut step = self.roles.trainer.step()?;
            self.after_step(&mut step)?;
            self.tell_of_memory(first)?;
        }
        Ok(())
    }

    /// What a step took of a GPU's memory: the first one for everybody, who may want greater micro-batches.
    fn tell_of_memory(&self, first: bool) -> Result<()> {
        let Some(Memory { now, most, held }) = memory(self.roles.trainer.actor.decoder.device())? else {
            return Ok(());
        };
        let gibibytes = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        let words = format!(
            "tensors take {:.1} GiB of the GPU, took {:.1} GiB at most in this step; {:.1} GiB are held for them",
            gibibytes(now),
            gibibytes(most),
            gibibytes(held)
        );
        match first {
            true => tracing::info!("{words}"),
            false => tracing::debug!("{words}"),
        }
        Ok(())
    }

    /// Says once, after the first checkpoint, where a stop would take longer than the pod has.
    fn tell_of_grace(&mut self, step: &StepReport, save: Duration) {
        let Some(grace) = self.grace.take() else { return };
        let overlap = self.roles.trainer.config.overlap;
        if let Some(words) = grace::too_short(grace, &step.stages, save, overlap) {
            tracing::warn!("{words}");
        }
    }

    /// Evaluation, checkpoint and records of a completed step.
    fn after_step(&mut self, step: &mut Step) -> Result<()> {
        let trainer = &self.roles.trainer;
        let done = trainer.steps_done;
        let last = done == trainer.total_steps;
        self.score_checkpoint_that_drew(step)?;
        if let Some(diverged) = step.diverged.take() {
            self.recorder.step(&step.report)?;
            return Err(diverged.into());
        }
        let evaluated = match self.evaluates_after(done) {
            true => self.evaluate(&mut step.report.stages),
            false => Ok(()),
        };
        // Records come before the checkpoint: a run that resumes cuts off what came after its checkpoint, and can not make
        // up for what is missing before; those of a step whose evaluation was broken off too.
        self.recorder.step(&step.report)?;
        if self.recorder.wants_samples(done) {
            let samples = describe(
                &step.batch,
                &self.roles.trainer.tokenizer,
                self.recorder.samples_wanted(),
            )?;
            self.recorder.samples(done, &samples)?;
        }
        evaluated?;
        let every = self.roles.trainer.config.checkpoint.every_steps;
        if last || (every > 0 && done.is_multiple_of(every)) {
            let took = self.save()?;
            self.tell_of_grace(&step.report, took);
        }
        let trainer = &self.roles.trainer;
        let exposition = &self.recorder.watched().exposition;
        let stats = trainer.rollout.stats();
        stats.map_or(Ok(()), |stats| exposition.engine(&trainer.config.name, &stats))
    }

    /// Commits a checkpoint of the present step, unless it is there already; how long that took.
    fn save(&mut self) -> Result<Duration> {
        let began = Instant::now();
        let trainer = &self.roles.trainer;
        let done = trainer.steps_done;
        if self.saved == Some(done) {
            return Ok(Duration::ZERO);
        }
        let state = State {
            step: done,
            draws: Some(trainer.draws),
            kl_coefficient: trainer.kl.coef,
            actor_updates: trainer.actor.learner.updates(),
            critic_updates: trainer.critic.as_ref().map_or(0, |critic| critic.learner.updates()),
            quality: self.quality(),
            run_config: serde_json::to_value(&trainer.config)?,
            inputs: Some(self.roles.inputs()),
        };
        trainer.live.enter(Stage::Checkpoint);
        self.checkpoints.awaits(self.step_awaiting_score());
        self.checkpoints
            .save(state, |folder| write_models(&self.roles, folder))?;
        self.saved = Some(done);
        self.roles.trainer.live.saved(done);
        let took = began.elapsed();
        // Shown with the next step, or at the end.
        self.roles.trainer.stages.push((Stage::Checkpoint, took));
        Ok(took)
    }

    /// Saves: the run's last words.
    fn interrupted(&mut self) -> Result<String> {
        // It may be the reason.
        self.checkpoints.check_fence()?;
        self.save()?;
        let done = self.roles.trainer.steps_done;
        let words = stopped(done, self.fresh);
        self.recorder.ended("stopped", &words, &self.roles.trainer.stages)?;
        Ok(words)
    }

    /// Leaves the trained model: the run's last words.
    fn finish(&mut self) -> Result<String> {
        let trainer = &self.roles.trainer;
        let target = self.folder.model();
        write_policy(&self.roles, &target)?;
        write_adapter(&self.roles, &self.folder.adapter())?;
        let comparison = compare(&self.roles, self.before.as_ref(), self.latest.as_ref());
        self.recorder.before_after(comparison.as_ref())?;
        let words = format!("{} steps", trainer.steps_done);
        self.recorder.ended("succeeded", &words, &trainer.stages)?;
        let seconds = self.began.elapsed().as_secs();
        let mut summary = String::new();
        if let Some(comparison) = comparison {
            // The table's last line says what the comparison comes to.
            match self.output {
                OutputMode::Auto => {
                    summary = format!(
                        "\n{}\n\n",
                        table::render(&comparison, table::terminal_width()).trim_end()
                    )
                }
                OutputMode::Quiet | OutputMode::Json => summary = format!("{}, ", comparison.summary()),
            }
        }
        summary += &format!(
            "{} steps in {}m{:02}s, model in {}",
            trainer.steps_done,
            seconds / 60,
            seconds % 60,
            target.display()
        );
        Ok(summary)
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
    std::fs::write(&path, manifest).with_context(|| format!("cannot write {}", path.display()))?;
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
    Ok(recorder)
}

/// The last words of a run that was asked to stop. With --fresh its command would delete what it has just saved.
fn stopped(step: u64, fresh: bool) -> String {
    let without = if fresh { " without --fresh" } else { "" };
    format!("stopped after step {step}, checkpoint saved; the same command{without} goes on from there")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_began_anew_is_not_told_to_begin_anew_once_more() {
        assert!(stopped(3, true).ends_with("the same command without --fresh goes on from there"));
        assert!(stopped(3, false).ends_with("the same command goes on from there"));
    }
}
