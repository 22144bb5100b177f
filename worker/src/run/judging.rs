//! How good a run's policy is: its answers to held-out prompts, or the scores of the samples that it drew.

use std::time::{Duration, Instant};

use anyhow::Result;
use ppo_crds::spec::Overlap;

use super::comparison::Before;
use super::opening::Run;
use super::places;
use crate::telemetry::{Metric, Stage, StepReport};
use crate::trainer::Step;

impl Run {
    pub(super) fn evaluates_after(&self, step: u64) -> bool {
        let trainer = &self.roles.trainer;
        let settings = trainer.config.evaluation.as_ref();
        settings.is_some_and(|it| step.is_multiple_of(it.every_steps) || step >= trainer.total_steps)
    }

    /// The policy's answers at step 0, kept in the folder for runs that resume.
    pub(super) fn evaluate_before(&mut self) -> Result<()> {
        let Some(settings) = self.roles.trainer.config.evaluation.clone() else {
            return Ok(());
        };
        let inputs = self.roles.inputs.clone();
        if self.roles.trainer.steps_done > 0 {
            self.before = Before::read(&self.folder, &settings, &inputs);
            return Ok(());
        }
        let mut stages = Vec::new();
        self.evaluate(&mut stages)?;
        // Shown with the first step.
        self.roles.trainer.stages.append(&mut stages);
        self.before = self.latest.clone();
        match &self.before {
            Some(before) => Before::write(&self.folder, &settings, &inputs, before),
            None => Ok(()),
        }
    }

    /// The evaluation of the step that this run goes on from, where the run before was asked to stop in it. After the last step
    /// it is made in any case: its answers are those that the first ones are compared with.
    pub(super) fn finish_interrupted_evaluation(&mut self) -> Result<()> {
        let trainer = &self.roles.trainer;
        let (done, last) = (trainer.steps_done, trainer.steps_done >= trainer.total_steps);
        if done == 0 || !self.evaluates_after(done) {
            return Ok(());
        }
        let mut stages = Vec::new();
        match self.recorder.has_evaluation(done)? {
            false => self.evaluate(&mut stages)?,
            true if last => self.answer_held_out(&mut stages)?,
            true => {}
        }
        // Shown with the next step, or at the end.
        self.roles.trainer.stages.append(&mut stages);
        // The checkpoint was made before anybody knew.
        let quality = self.quality().filter(|_| self.saved == Some(done));
        quality.map_or(Ok(()), |quality| self.judge(done, quality))
    }

    /// Says how good the checkpoint of `step` is, by what is asked now: when it was made that may have been something else.
    fn judge(&self, step: u64, quality: f64) -> Result<()> {
        let asked = serde_json::to_value(places::kept(&self.roles.trainer.config).evaluation)?;
        let held_out = &self.roles.inputs.held_out;
        self.checkpoints.judge(step, quality, |state| {
            if let Some(config) = state.run_config.as_object_mut() {
                config.insert("evaluation".to_owned(), asked);
            }
            if let Some(inputs) = &mut state.inputs {
                inputs.held_out.clone_from(held_out);
            }
        })
    }

    /// Answers the held-out prompts, where there are any, and records how well.
    pub(super) fn evaluate(&mut self, stages: &mut Vec<(Stage, Duration)>) -> Result<()> {
        self.answer_held_out(stages)?;
        let latest = self.latest.as_ref();
        latest.map_or(Ok(()), |latest| self.recorder.evaluation(&latest.report))
    }

    fn answer_held_out(&mut self, stages: &mut Vec<(Stage, Duration)>) -> Result<()> {
        let trainer = &self.roles.trainer;
        let (Some(settings), Some(held_out)) = (&trainer.config.evaluation, &self.roles.held_out) else {
            return Ok(());
        };
        let began = Instant::now();
        trainer.live.enter(Stage::Evaluate);
        trainer.ranks.enter(Stage::Evaluate.of_step(trainer.steps_done));
        let evaluated = trainer.evaluate(settings, held_out)?;
        stages.push((Stage::Evaluate, began.elapsed()));
        self.latest = Some(evaluated);
        Ok(())
    }

    /// How good the present weights are, where an evaluation says so. The score of the step that made them does not: an older version
    /// drew its samples.
    pub(super) fn quality(&self) -> Option<f64> {
        let done = self.roles.trainer.steps_done;
        let evaluated = self.latest.as_ref().map(|it| &it.report);
        evaluated.filter(|it| it.step == done).map(|it| it.score)
    }

    /// Without held-out prompts a checkpoint is judged by the samples that its weights drew, as soon as those have a score.
    pub(super) fn score_checkpoint_that_drew(&self, step: &Step) -> Result<()> {
        if self.roles.trainer.config.evaluation.is_some() {
            return Ok(());
        }
        match step.batch.scored.drawn.oldest_version() {
            Some((drawer, score)) if self.checkpoints.has(drawer) => self.judge(drawer, score),
            _ => Ok(()),
        }
    }

    /// The KL of a step is that of the weights that it began with. Where it is bounded, their checkpoint is told whether they are good.
    pub(super) fn measure_checkpoint(&self, step: &StepReport) -> Result<()> {
        let bounded = self.roles.trainer.config.algorithm.kl.stop_above.is_some();
        let before = self.roles.trainer.steps_done.saturating_sub(1);
        match step.get(Metric::Kl).filter(|_| bounded && self.checkpoints.has(before)) {
            Some(kl) => self.checkpoints.measured(before, kl),
            None => Ok(()),
        }
    }

    /// The step whose weights drew samples that are not scored yet, apart from the present ones: those of the next step, drawn ahead.
    pub(super) fn step_awaiting_score(&self) -> Option<u64> {
        let trainer = &self.roles.trainer;
        let ahead = trainer.config.overlap == Overlap::OneStep && trainer.steps_done < trainer.total_steps;
        let awaited = ahead && trainer.config.evaluation.is_none();
        awaited.then(|| trainer.steps_done.saturating_sub(1))
    }
}
