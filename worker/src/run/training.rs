//! A run from its first step to its last: resume, evaluation, checkpoints, the end.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use ppo_crds::RunConfig;
use ppo_crds::spec::Overlap;

use super::build::{self, Roles};
use super::comparison::{Before, compare};
use super::fresh;
use super::guard::{Afresh, Locks, lock, refuse_other_run};
use super::models::{write_adapter, write_models, write_policy};
use crate::actor::checkpoint::{Checkpoints, State};
use crate::actor::fence::{Owner, Superseded, Watch};
use crate::disk;
use crate::native::device::{Memory, memory};
use crate::outcome::{self, Ended};
use crate::place::Peers;
use crate::ranks::{Meeting, Ranks};
use crate::roles::{Publication, published};
use crate::stop::{Interrupted, StopFlag};
use crate::telemetry::{Live, Metric, OutputMode, Recorder, RunDir, Server, Stage, Watched, table};
use crate::trainer::{Evaluated, Step, describe};

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
}

/// A run in its folder.
pub struct Run {
    roles: Roles,
    checkpoints: Checkpoints,
    recorder: Recorder,
    server: Option<Server>,
    folder: RunDir,
    output: OutputMode,
    before: Option<Evaluated>,
    latest: Option<Evaluated>,
    /// Step of the newest checkpoint.
    saved: Option<u64>,
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
    pub fn open(config: RunConfig, manifest: &str, folder: &Path, mut options: Options) -> Result<Self> {
        let attempt = options.owner.as_ref().map_or(1, |owner| owner.attempt);
        let watched = Watched::new(&config.name, attempt)?;
        // Probes and the operator are answered while ranks meet and models load.
        let publication = Publication::new(attempt);
        let weights = options.peers.as_ref();
        let weights = weights.map(|peers| published::router(publication.clone(), &peers.token));
        let serve = |address| {
            let (exposition, live) = (watched.exposition.clone(), Some(watched.live.clone()));
            Server::start(address, exposition, live, weights.unwrap_or_default())
        };
        let server = options.metrics_address.map(serve).transpose()?;
        if let Some(server) = &server {
            tracing::info!("metrics on http://{}/metrics", server.address());
        }
        let ranks = match options.meeting.take() {
            Some(meeting) => Ranks::join(meeting, &options.stop)?,
            None => Ranks::alone(),
        };
        let opened = Self::load(
            config,
            manifest,
            folder,
            options,
            (watched, server, publication),
            &ranks,
        );
        opened
            .map_err(disk::explain)
            .inspect_err(|error| ranks.dismiss(outcome::failure(error), outcome::code(error)))
    }

    fn load(
        config: RunConfig,
        manifest: &str,
        folder: &Path,
        options: Options,
        (watched, server, publication): (Watched, Option<Server>, Publication),
        ranks: &Ranks,
    ) -> Result<Self> {
        let began = Instant::now();
        let folder = RunDir::new(folder);
        folder.create()?;
        // A pod that is cut off would keep its successor out of a file system that both mount: there the attempt decides.
        let alone = options.owner.is_none();
        let saved_in = config.checkpoint.path.clone().unwrap_or_else(|| folder.checkpoints());
        let mut checkpoints = Checkpoints::open(saved_in.clone(), config.checkpoint.keep, config.checkpoint.keep_best)?;
        let locks = alone.then(|| lock(&folder, &saved_in)).transpose()?;
        let afresh = match alone {
            true => Afresh::Here,
            false => Afresh::InPod(&saved_in),
        };
        let refuse = |folder: &Path, state: &State| {
            refuse_other_run((&state.run_config, state.inputs.as_ref()), &config, afresh)
                .with_context(|| format!("cannot go on from {}", folder.display()))
        };
        // Whoever may not go on here does not take the folder from a job that does.
        if !options.fresh
            && let Some((folder, state)) = checkpoints.newest()?
        {
            refuse(&folder, &state)?;
        }
        if let Some(owner) = options.owner {
            checkpoints = checkpoints.fenced(owner)?;
        }
        if options.fresh {
            fresh::clear(&folder, &checkpoints, &config)?;
        }
        let found = checkpoints.latest(|problem| tracing::warn!("{problem}"))?;
        if let Some(found) = &found {
            refuse(&found.folder, &found.state)?;
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        let roles = build::roles(
            config,
            (found.as_ref(), afresh),
            runtime.handle().clone(),
            options.stop,
            watched.live.clone(),
            (options.peers.as_ref(), ranks),
            &publication,
        )?;
        let trainer = &roles.trainer;
        let mut recorder = Recorder::open(
            folder.root(),
            &trainer.config,
            watched.clone(),
            trainer.total_steps,
            trainer.steps_done,
            options.output,
        )?;
        std::fs::write(folder.manifest(), manifest)
            .with_context(|| format!("cannot write {}", folder.manifest().display()))?;
        if let Some(found) = &found {
            recorder.event(
                "resumed",
                &format!(
                    "going on after step {} from {}",
                    found.state.step,
                    found.folder.display()
                ),
            )?;
        }
        let watch = checkpoints.watch(&trainer.stop)?;
        watched.exposition.set_ready(true);
        Ok(Self {
            saved: found.map(|found| found.state.step),
            roles,
            checkpoints,
            recorder,
            server,
            folder,
            output: options.output,
            before: None,
            latest: None,
            began,
            _runtime: runtime,
            _locks: locks,
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
        let ended = self.train();
        match ended {
            Ok(()) => self.finish().map(|()| Ended::Completed),
            Err(error) if error.is::<Interrupted>() => self.interrupted().map(|()| Ended::Interrupted),
            // A newer one records here by now.
            Err(error) if error.is::<Superseded>() => Err(error),
            Err(error) => {
                let kind = if error.is::<crate::trainer::Diverged>() {
                    "diverged"
                } else {
                    "failed"
                };
                let told = self.recorder.event(kind, &format!("{error:#}"));
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
        self.evaluate_what_was_broken_off()?;
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

    /// Evaluation, checkpoint and records of a completed step.
    fn after_step(&mut self, step: &mut Step) -> Result<()> {
        let trainer = &self.roles.trainer;
        let done = trainer.steps_done;
        let last = done == trainer.total_steps;
        self.judge_who_drew(step)?;
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
            let began = Instant::now();
            self.save()?;
            // Shown with the next step.
            self.roles.trainer.stages.push((Stage::Checkpoint, began.elapsed()));
        }
        let trainer = &self.roles.trainer;
        let exposition = &self.recorder.watched().exposition;
        let stats = trainer.rollout.stats();
        stats.map_or(Ok(()), |stats| exposition.engine(&trainer.config.name, &stats))
    }

    fn evaluates_after(&self, step: u64) -> bool {
        let trainer = &self.roles.trainer;
        let settings = trainer.config.evaluation.as_ref();
        settings.is_some_and(|it| step.is_multiple_of(it.every_steps) || step == trainer.total_steps)
    }

    /// The policy's answers at step 0, kept in the folder for runs that resume.
    fn evaluate_before(&mut self) -> Result<()> {
        let Some(settings) = self.roles.trainer.config.evaluation.clone() else {
            return Ok(());
        };
        if self.roles.trainer.steps_done > 0 {
            self.before = Before::read(&self.folder, &settings);
            return Ok(());
        }
        self.evaluate(&mut Vec::new())?;
        self.before = self.latest.clone();
        match &self.before {
            Some(before) => Before::write(&self.folder, &settings, before),
            None => Ok(()),
        }
    }

    /// The evaluation of the step that this run goes on from, where the run before was asked to stop in it. After the last step
    /// it is made in any case: its answers are those that the first ones are compared with.
    fn evaluate_what_was_broken_off(&mut self) -> Result<()> {
        let trainer = &self.roles.trainer;
        let (done, last) = (trainer.steps_done, trainer.steps_done == trainer.total_steps);
        if done == 0 || !self.evaluates_after(done) {
            return Ok(());
        }
        let mut stages = Vec::new();
        match self.recorder.has_evaluation(done)? {
            false => self.evaluate(&mut stages)?,
            true if last => self.answer_held_out(&mut stages)?,
            true => {}
        }
        // Shown with the next step.
        self.roles.trainer.stages.append(&mut stages);
        // The checkpoint was made before anybody knew.
        let quality = self.quality().filter(|_| self.saved == Some(done));
        quality.map_or(Ok(()), |quality| self.checkpoints.judge(done, quality))
    }

    /// Answers the held-out prompts, where there are any, and records how well.
    fn evaluate(&mut self, stages: &mut Vec<(Stage, std::time::Duration)>) -> Result<()> {
        self.answer_held_out(stages)?;
        let latest = self.latest.as_ref();
        latest.map_or(Ok(()), |latest| self.recorder.evaluation(&latest.report))
    }

    fn answer_held_out(&mut self, stages: &mut Vec<(Stage, std::time::Duration)>) -> Result<()> {
        let trainer = &self.roles.trainer;
        let (Some(settings), Some(held_out)) = (&trainer.config.evaluation, &self.roles.held_out) else {
            return Ok(());
        };
        let began = Instant::now();
        trainer.live.enter(Stage::Evaluate);
        let evaluated = trainer.evaluate(settings, held_out)?;
        stages.push((Stage::Evaluate, began.elapsed()));
        self.latest = Some(evaluated);
        Ok(())
    }

    /// How good the present weights are, where an evaluation says so. The score of the step that made them does not: an older version
    /// drew its samples.
    fn quality(&self) -> Option<f64> {
        let done = self.roles.trainer.steps_done;
        let evaluated = self.latest.as_ref().map(|it| &it.report);
        evaluated.filter(|it| it.step == done).map(|it| it.score)
    }

    /// Without held-out prompts a checkpoint is judged by the samples that its weights drew, as soon as those have a score.
    fn judge_who_drew(&self, step: &Step) -> Result<()> {
        if self.roles.trainer.config.evaluation.is_some() {
            return Ok(());
        }
        let samples = &step.batch.scored.samples;
        let mut versions = samples.iter().flat_map(|sample| &sample.versions);
        let (Some(&drawer), Some(score)) = (versions.next(), step.report.get(Metric::Score)) else {
            return Ok(());
        };
        match versions.all(|version| *version == drawer) && self.checkpoints.has(drawer) {
            true => self.checkpoints.judge(drawer, score),
            false => Ok(()),
        }
    }

    /// The step whose weights drew samples that are not scored yet, apart from the present ones: those of the next step, drawn ahead.
    fn yet_to_be_judged(&self) -> Option<u64> {
        let trainer = &self.roles.trainer;
        let ahead = trainer.config.overlap == Overlap::OneStep && trainer.steps_done < trainer.total_steps;
        let awaited = ahead && trainer.config.evaluation.is_none();
        awaited.then(|| trainer.steps_done.saturating_sub(1))
    }

    /// Commits a checkpoint of the present step, unless it is there already.
    fn save(&mut self) -> Result<()> {
        let trainer = &self.roles.trainer;
        let done = trainer.steps_done;
        if self.saved == Some(done) {
            return Ok(());
        }
        let state = State {
            step: done,
            kl_coefficient: trainer.kl.coef,
            actor_updates: trainer.actor.learner.updates(),
            critic_updates: trainer.critic.as_ref().map_or(0, |critic| critic.learner.updates()),
            quality: self.quality(),
            run_config: serde_json::to_value(&trainer.config)?,
            inputs: Some(self.roles.inputs()),
        };
        trainer.live.enter(Stage::Checkpoint);
        self.checkpoints.awaits(self.yet_to_be_judged());
        self.checkpoints
            .save(state, |folder| write_models(&self.roles, folder))?;
        self.saved = Some(done);
        self.roles.trainer.live.saved(done);
        Ok(())
    }

    fn interrupted(mut self) -> Result<()> {
        // It may be the reason.
        self.checkpoints.check_fence()?;
        self.save()?;
        let done = self.roles.trainer.steps_done;
        let words = format!("stopped after step {done}, checkpoint saved; the same command goes on from there");
        self.recorder.event("stopped", &words)?;
        self.recorder.finish(&words)?;
        self.server.map_or(Ok(()), Server::stop)
    }

    fn finish(mut self) -> Result<()> {
        let trainer = &self.roles.trainer;
        let target = self.folder.model();
        write_policy(&self.roles, &target)?;
        write_adapter(&self.roles, &self.folder.adapter())?;
        self.recorder
            .event("succeeded", &format!("{} steps", trainer.steps_done))?;
        let seconds = self.began.elapsed().as_secs();
        let mut summary = String::new();
        let comparison = compare(&self.roles, self.before.as_ref(), self.latest.as_ref());
        self.recorder.before_after(comparison.as_ref())?;
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
        self.recorder.finish(&summary)?;
        self.server.map_or(Ok(()), Server::stop)
    }
}
