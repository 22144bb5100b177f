//! A run from its first step to its last: evaluation, checkpoints, the end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::comparison::compare;
use super::grace;
use super::models::{write_adapter, write_models, write_policy};
use super::opening::Run;
use super::places;
use crate::actor::fence::Superseded;
use crate::disk;
use crate::native::device::{Memory, memory};
use crate::outcome::{self, Ended};
use crate::roles::Rollout;
use crate::run_state::State;
use crate::stop::Interrupted;
use crate::telemetry::{Live, OutputMode, Server, Stage, StepReport, table};
use crate::trainer::{Step, describe};

impl Run {
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
                self.recorder.finish(&words);
                self.server.map_or(Ok(()), Server::stop)?;
                Ok(ended)
            }
            // A newer one records here by now.
            Err(error) if error.is::<Superseded>() => Err(error),
            Err(error) => {
                let kind = if error.is::<crate::outcome::Diverged>() {
                    "diverged"
                } else {
                    "failed"
                };
                let stages = &self.roles.trainer.stages;
                let told = self.recorder.ended(kind, &outcome::words(&error), stages);
                // Not the one whose policy is why it diverged.
                let goes_on_from = self.saved.and_then(|saved| self.checkpoints.newest_good(saved));
                let kept = goes_on_from
                    .map(|step| format!("; the checkpoint of step {step} is kept"))
                    .unwrap_or_default();
                let words = format!("{kind} after step {}{kept}", self.roles.trainer.steps_done);
                self.recorder.finish(&words);
                // What ended the run is what counts, also where a disk is full.
                if let Err(untold) = told {
                    tracing::warn!("{untold:#}");
                }
                Err(error)
            }
        }
    }

    fn train(&mut self) -> Result<()> {
        self.show_engine();
        // As the run before knew when it made its checkpoint.
        self.checkpoints.awaits(self.step_awaiting_score());
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

    /// An engine of this process is looked at whenever somebody asks: between two steps it is idle.
    fn show_engine(&self) {
        let trainer = &self.roles.trainer;
        if let Rollout::Here(engine) = &trainer.rollout {
            let engine = engine.clone();
            let exposition = &self.recorder.watched().exposition;
            exposition.watch_engine(&trainer.config.name, move || engine.stats());
        }
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
        // A newer attempt may be the reason: it records here by now.
        if trainer.stop.requested() {
            self.checkpoints.check_fence()?;
        }
        // First whether its policy is good: one beyond the limit is not kept for its score.
        self.measure_checkpoint(&step.report)?;
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
        Ok(())
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
            kl: None,
            run_config: serde_json::to_value(places::kept(&trainer.config))?,
            inputs: Some(self.roles.inputs()),
        };
        trainer.live.enter(Stage::Checkpoint);
        self.recorder.settle()?;
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

/// The last words of a run that was asked to stop. With --fresh its command would delete what it has just saved.
fn stopped(step: u64, fresh: bool) -> String {
    let without = if fresh { " without --fresh" } else { "" };
    format!("stopped after step {step}, checkpoint saved; the same command{without} goes on from there")
}
