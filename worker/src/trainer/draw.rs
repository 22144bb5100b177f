//! The generate stage: the samples of the step at hand, and with `overlap: oneStep` those of the next one beside the update.
//!
//! Step s learns from samples that version s drew, or, drawn ahead, version s - 1: they were asked for when step s - 1 had its
//! own samples and the engines had version s - 1, and were complete before version s was published. So an engine never gets
//! weights while it draws, and evaluations and checkpoints after a step find the engines idle, with its weights. What a step draws
//! on with dynamic sampling is of its own version.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use ppo_crds::spec::Overlap;

use super::{StepSamples, Trainer};
use crate::data::Prompt;
use crate::engine::{Completion, Details, Request, sample_seed};
use crate::roles::Pending;
use crate::serving::limits::GENERATION_DEADLINE;
use crate::stages::{Rollouts, Sample};
use crate::stop::Interrupted;
use crate::telemetry::Stage;

/// How long a process that is asked to stop waits for the samples of the next step: a checkpoint without them is right, but does
/// not go on with the bits of a run that was never stopped. Well below the actor pod's grace period.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// What was drawn, or is being drawn, before its step.
#[derive(Default)]
pub struct Ahead {
    /// With `overlap: oneStep` the samples of the step at hand, kept until its update is done, since a checkpoint before it
    /// holds them; then those of the next step.
    samples: Option<StepSamples>,
    /// Those of the next step, on their way.
    pending: Option<Pending>,
    /// How long the engines took for the samples of the step at hand.
    pub(super) took: Duration,
}

impl Ahead {
    /// A run that goes on with the samples of a checkpoint.
    pub fn of(samples: Option<StepSamples>) -> Self {
        Self {
            samples,
            ..Self::default()
        }
    }

    /// Writes the samples of `step` into its checkpoint, where they are known.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save(&self, step: u64, folder: &Path) -> Result<()> {
        let samples = self.samples.as_ref().filter(|samples| samples.step == step);
        samples.map_or(Ok(()), |samples| samples.save(folder))
    }
}

impl Trainer {
    /// The samples of the step at hand: those that were drawn ahead, or new ones.
    pub(super) fn draw(&mut self) -> Result<Rollouts> {
        self.stop.check()?;
        let step = self.steps_done;
        let ahead = self.ahead.samples.take();
        let samples = match ahead.filter(|samples| samples.step == step) {
            Some(samples) => samples,
            None => self.draw_now(self.draws)?,
        };
        samples.check(self.config.overlap)?;
        self.ahead.took = samples.took;
        let rollouts = self.rollouts(self.draws, &samples)?;
        // With dynamic sampling the step may draw on.
        if self.config.batch.max_draws.is_none() {
            self.rest();
        }
        self.ahead.samples = (self.config.overlap == Overlap::OneStep).then_some(samples);
        Ok(rollouts)
    }

    /// Further samples of the step at hand, whose draw this is.
    pub(super) fn draw_on(&mut self, draw: u64) -> Result<Rollouts> {
        let samples = self.draw_now(draw)?;
        samples.check(self.config.overlap)?;
        self.ahead.took += samples.took;
        self.rollouts(draw, &samples)
    }

    /// The engines are done until new weights come, but for what is drawn ahead.
    pub(super) fn rest(&self) {
        if self.config.overlap == Overlap::None {
            self.rollout.sleep();
        }
    }

    /// With `overlap: oneStep`: asks for the samples of the next step, if there is one, of the version that the engines have. The step
    /// at hand takes `draws`, so that the next one's is the draw behind them.
    pub(super) fn ask_ahead(&mut self, draws: u64) {
        let next = self.steps_done + 1;
        if self.config.overlap == Overlap::OneStep && next < self.total_steps {
            let requests = self.requests(self.draws + draws);
            let pending = self.rollout.start(requests, GENERATION_DEADLINE, &self.runtime);
            self.ahead.pending = Some(pending);
        }
    }

    /// Waits for what was asked for ahead; the step that it is for is at hand now.
    pub(super) fn collect_ahead(&mut self) -> Result<()> {
        let Some(pending) = self.ahead.pending.take() else {
            return Ok(());
        };
        let step = self.steps_done;
        let generated = self.timed(Stage::Generate, |it| pending.collect(&it.stop, PATIENCE, &it.live));
        let generated = match generated {
            Err(error) if error.is::<Interrupted>() => {
                tracing::warn!(
                    "asked to stop, and the engines did not finish the samples of step {} within {} s: a run that goes on from \
                     here draws them with the new weights, and its bits are not those of a run that never stopped",
                    step + 1,
                    PATIENCE.as_secs()
                );
                return Ok(());
            }
            generated => generated?,
        };
        let samples = StepSamples {
            step,
            completions: generated.completions,
            took: generated.took,
        };
        samples.check(self.config.overlap)?;
        self.ahead.samples = Some(samples);
        Ok(())
    }

    /// Completions of the present policy.
    pub(super) fn generate(&self, requests: Vec<Request>) -> Result<Vec<Vec<Completion>>> {
        self.stop.check()?;
        let pending = self.rollout.start(requests, GENERATION_DEADLINE, &self.runtime);
        Ok(pending.collect(&self.stop, Duration::ZERO, &self.live)?.completions)
    }

    fn draw_now(&self, draw: u64) -> Result<StepSamples> {
        let began = Instant::now();
        let completions = self.generate(self.requests(draw))?;
        Ok(StepSamples {
            step: self.steps_done,
            completions,
            took: began.elapsed(),
        })
    }

    fn prompts_of(&self, draw: u64) -> impl Iterator<Item = &Prompt> {
        let indices = self.order.batch(draw);
        indices.into_iter().map(|index| &self.prompts.prompts[index])
    }

    /// What is asked for in a draw: a function of seed and draw alone.
    fn requests(&self, draw: u64) -> Vec<Request> {
        let n = self.config.batch.n_samples_per_prompt as u64;
        // A prompt may occur twice in a draw; its place in it tells the two apart.
        let seed = |place: usize, sample: u64| sample_seed(self.config.seed, draw, place as u64, sample);
        let requests = self.prompts_of(draw).enumerate().map(|(place, prompt)| Request {
            prompt: prompt.ids.clone(),
            seeds: (0..n).map(|sample| seed(place, sample)).collect(),
            params: self.sampling.clone(),
            details: Details::default(),
        });
        requests.collect()
    }

    fn rollouts(&self, draw: u64, drawn: &StepSamples) -> Result<Rollouts> {
        let (prompts, n) = (
            self.config.batch.rollout_batch_size,
            self.config.batch.n_samples_per_prompt,
        );
        ensure!(
            drawn.completions.len() == prompts && drawn.completions.iter().all(|group| group.len() == n),
            "the samples are not {n} of each of {prompts} prompts"
        );
        let groups = self.prompts_of(draw).zip(&drawn.completions).enumerate();
        let samples = groups.flat_map(|(group, (prompt, completions))| {
            completions.iter().map(move |completion| Sample {
                prompt: prompt.clone(),
                group: group as i64,
                response: completion.tokens.clone(),
                rollout_logprobs: completion.logprobs.clone(),
                versions: completion.versions.clone(),
                finish_reason: completion.finish_reason,
            })
        });
        Ok(Rollouts {
            samples: samples.collect(),
        })
    }
}
