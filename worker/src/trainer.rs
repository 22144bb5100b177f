//! The trainer: prompts -> rollout -> score -> forward -> shape -> advantage -> update -> publish.
//!
//! [`Trainer::step`] is the whole algorithm; each line consumes the stage before (`crate::stages`). PPO and the critic-less
//! estimators differ in `advantage` and in having a critic, nowhere else.

mod draw;
mod evaluate;
mod extremes;
mod forward;
mod measure;
mod samples;
mod score;
mod step_samples;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ppo_crds::RunConfig;
use tch::Tensor;

pub use draw::{Ahead, PATIENCE};
pub use evaluate::Evaluated;
pub use samples::describe;
pub use step_samples::{Stale, StepSamples};

use crate::actor::lesson::Lesson;
use crate::actor::update::{Learnt, Update};
use crate::actor::{Actor, Critic};
use crate::data::{PromptOrder, PromptSet};
use crate::engine::SamplingParams;
use crate::native::device::synchronize;
use crate::outcome::Diverged;
use crate::ppo::advantage::{AdvantageInput, advantages};
use crate::ppo::controller::KlController;
use crate::ppo::shape::{ShapeInput, shape};
use crate::ranks::Ranks;
use crate::reward::RewardSource;
use crate::roles::{Reference, Rollout};
use crate::stages::{Batch, Sample, Scored, Shaped};
use crate::stop::StopFlag;
use crate::telemetry::{Live, Stage, StepReport};
use crate::tokenizer::Tokenizer;

/// All roles of a run and the step that joins them. Owns every trained tensor; lives on one thread.
pub struct Trainer {
    /// What runs.
    pub config: RunConfig,
    /// Steps completed: the policy version.
    pub steps_done: u64,
    /// Draws of these steps: one each, but with dynamic sampling.
    pub draws: u64,
    /// Steps of the whole run.
    pub total_steps: u64,
    /// The prompts.
    pub prompts: PromptSet,
    /// Which of them a draw takes.
    pub order: PromptOrder,
    /// The policy's tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// How responses are drawn in training.
    pub sampling: Arc<SamplingParams>,
    /// The rollout role.
    pub rollout: Rollout,
    /// Samples that are drawn before their step.
    pub ahead: Ahead,
    /// The reward role.
    pub reward: RewardSource,
    /// The reference role.
    pub reference: Option<Reference>,
    /// The policy that learns.
    pub actor: Actor,
    /// The critic, with gae.
    pub critic: Option<Critic>,
    /// Who trains together; this process leads.
    pub ranks: Ranks,
    /// The KL coefficient.
    pub kl: KlController,
    /// Runs the calls to reward servers.
    pub runtime: tokio::runtime::Handle,
    /// Set when the process was asked to stop.
    pub stop: StopFlag,
    /// Told of every stage that begins.
    pub live: Arc<Live>,
    /// Time of the present step's stages.
    pub stages: Vec<(Stage, Duration)>,
}

/// A completed step: its numbers and what they are made of.
#[derive(Debug)]
pub struct Step {
    /// The numbers.
    pub report: StepReport,
    /// The samples with everything known of them.
    pub batch: Batch,
    /// Why no further step may follow: the numbers above are the last.
    pub diverged: Option<Diverged>,
}

impl Trainer {
    /// One step: new samples, then the updates they allow.
    ///
    /// # Errors
    /// [`Diverged`]; [`Interrupted`](crate::stop::Interrupted) when asked to stop before the weights were touched; else
    /// what failed in which role.
    pub fn step(&mut self) -> Result<Step> {
        let began = Instant::now();
        let rollouts = self.timed(Stage::Generate, Self::draw)?;
        let drawn = self.score_and_ask_ahead(rollouts)?;
        let scored = self.forward(drawn)?;
        let shaped = self.timed(Stage::Shape, |it| it.shape(scored))?;
        let batch = self.timed(Stage::Advantage, |it| it.advantage(shaped))?;
        let learnt = self.update(&batch)?;
        self.collect_ahead()?;
        self.timed(Stage::Publish, Self::publish)?;
        let measured = self.measure(&batch, &learnt, began.elapsed());
        let (report, diverged) = measured.with_context(|| format!("the numbers of step {}", self.steps_done))?;
        Ok(Step {
            report,
            batch,
            diverged,
        })
    }

    fn shape(&mut self, scored: Scored) -> Result<Shaped> {
        let finished: Vec<bool> = scored.samples().iter().map(Sample::finished).collect();
        let input = ShapeInput {
            old_logprobs: &scored.old_logprobs,
            ref_logprobs: scored.reference_logprobs.as_ref(),
            mask: &scored.mask,
            scores: &Tensor::from_slice(&scored.drawn.chosen.scores),
            finished: Some(&finished),
            lengths: None,
        };
        let shaped = shape(&self.config.algorithm, self.kl.coef, &input)?;
        Ok(Shaped { scored, shaped })
    }

    fn advantage(&mut self, Shaped { scored, shaped }: Shaped) -> Result<Batch> {
        let groups: Vec<i64> = scored.samples().iter().map(|sample| sample.group).collect();
        let input = AdvantageInput {
            rewards: &shaped.rewards,
            values: scored.values.as_ref(),
            mask: &scored.mask,
            scores: Some(&shaped.scores),
            groups: Some(&groups),
            group_size: Some(self.config.batch.n_samples_per_prompt),
        };
        let advantages = advantages(&self.config.algorithm, &input)?;
        Ok(Batch {
            scored,
            shaped,
            advantages,
        })
    }

    fn update(&mut self, batch: &Batch) -> Result<Learnt> {
        self.stop.check()?;
        self.live.enter(Stage::UpdateActor);
        self.rollout.withdraw();
        self.ranks.enter(self.place(Stage::UpdateActor));
        let lesson = Lesson::taught(batch, &self.config.algorithm)?;
        let given = lesson.give(&self.ranks, self.kl.coef);
        given.with_context(|| self.place(Stage::UpdateActor))?;
        let update = Update {
            config: &self.config,
            step: self.steps_done,
            kl_coefficient: self.kl.coef,
            lesson: &lesson,
            ranks: &self.ranks,
            live: &self.live,
        };
        let scores = &batch.scored.drawn.chosen.scores;
        let learnt = update
            .run(&mut self.actor, self.critic.as_mut())
            .map_err(|error| extremes::named(error, scores, &self.config.algorithm.score))?;
        self.stages.push((Stage::UpdateActor, learnt.actor_time));
        if self.critic.is_some() {
            self.stages.push((Stage::UpdateCritic, learnt.critic_time));
        }
        self.steps_done += 1;
        self.draws += batch.scored.drawn.draws;
        Ok(learnt)
    }

    fn publish(&mut self) -> Result<()> {
        // Engines and streams read them by ways of their own; they are written by this thread.
        synchronize(self.actor.decoder.device())?;
        let weights = self.actor.weights();
        let changed = match self.rollout.takes_changes() {
            true => self.actor.learner.parameters.changed()?,
            false => None,
        };
        self.rollout.publish(weights, changed.as_ref(), self.steps_done)
    }

    fn timed<T>(&mut self, stage: Stage, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let began = Instant::now();
        self.live.enter(stage);
        self.ranks.enter(self.place(stage));
        let done = work(self);
        self.stages.push((stage, began.elapsed()));
        done.with_context(|| self.place(stage))
    }

    /// A stage as messages name it. A step counts as done once it is updated, and is published after that.
    fn place(&self, stage: Stage) -> String {
        stage.of_step(self.steps_done + u64::from(stage != Stage::Publish))
    }
}
