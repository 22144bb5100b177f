//! The PPO update: `ppoEpochs` passes over the step's samples in shuffled mini-batches, each gathered over micro-batches.
//!
//! The loss of a micro-batch is divided by the counts of its whole mini-batch, so the split into micro-batches changes
//! memory and rounding, nothing else; nor does it matter how many ranks share the mini-batch. Where a rank's share of the first one is one
//! micro-batch, its forward pass is there already: it gave the old log-probabilities and values.

mod tally;

use std::time::Instant;

use anyhow::{Context, Result};
use ppo_crds::RunConfig;
use ppo_crds::spec::{KlPlacement, Profile};
use tch::{Device, Kind, Tensor};

pub use tally::Learnt;

use super::kept::{Kept, Pass};
use super::learner::{Bad, Updated};
use super::lesson::Lesson;
use super::mini_batches::{MiniBatches, Shares};
use super::packing::micro_batches;
use super::pieces::slot_after;
use super::rows::Rows;
use super::{Actor, Critic, entropy_of};
use crate::native::device::send;
use crate::outcome::Diverged;
use crate::ppo::aggregation::{Denominator, counts_padding};
use crate::ppo::mask::{booleans, value_mask};
use crate::ppo::policy_loss::{PolicyInput, entropy_bonus, kl_loss, policy_loss};
use crate::ppo::value_loss::{ValueInput, value_loss};
use crate::ranks::Ranks;
use crate::stages::Sample;
use crate::telemetry::{Live, Stage};

/// The updates of one step.
#[derive(Debug)]
pub struct Update<'a> {
    /// What runs.
    pub config: &'a RunConfig,
    /// Steps completed before this one.
    pub step: u64,
    /// KL coefficient of the step.
    pub kl_coefficient: f64,
    /// The step's samples.
    pub lesson: &'a Lesson<'a>,
    /// Who makes the updates together.
    pub ranks: &'a Ranks,
    /// Told of every micro-batch.
    pub live: &'a Live,
}

/// The rows of some samples, cut to the columns they need.
struct Micro<'a> {
    /// By their place in the step.
    chosen: Vec<usize>,
    samples: Vec<&'a Sample>,
    /// Where what it is cut from is.
    rows: Tensor,
    columns: i64,
}

impl Micro<'_> {
    /// To be cut from tensors of a device.
    fn on(&self, device: Device) -> Result<Self> {
        Ok(Self {
            chosen: self.chosen.clone(),
            samples: self.samples.clone(),
            rows: send(&self.rows, device)?,
            columns: self.columns,
        })
    }

    /// Its part of a tensor [samples, columns of the step].
    fn cut(&self, whole: &Tensor) -> Tensor {
        whole.index_select(0, &self.rows).narrow(1, 0, self.columns)
    }

    /// The pass of these samples, if it is `kept` from before the updates of this step.
    fn pass(&self, kept: &mut Option<Kept>, step: u64) -> Option<Pass> {
        kept.take()?.of(step, &self.chosen, self.columns)
    }
}

impl Update<'_> {
    /// Runs all updates of the step.
    ///
    /// # Errors
    /// [`Diverged`] when a loss or gradient is not finite: the update that would spread it is not made. Else what libtorch
    /// says, or that a rank is lost. All of them name stage and step.
    pub fn run(&self, actor: &mut Actor, mut critic: Option<&mut Critic>) -> Result<Learnt> {
        let mut learnt = Learnt::default();
        actor.learner.parameters.clear_marks()?;
        let actors = self.lesson.on(actor.decoder.device())?;
        let critics = critic
            .as_ref()
            .map(|critic| self.lesson.on(critic.model.decoder.device()));
        let critics = critics.transpose()?;
        let mini_batches = MiniBatches {
            config: self.config,
            step: self.step,
            samples: self.lesson.samples,
            ranks: self.ranks.count(),
        };
        for epoch in 0..self.config.batch.ppo_epochs {
            for shares in mini_batches.of_epoch(epoch) {
                let shares = self.micros(&shares);
                if self.config.policy_learns(self.step) {
                    let updated = self.actor_update(actor, &actors, &shares, &mut learnt);
                    updated.with_context(|| Stage::UpdateActor.of_step(self.step + 1))?;
                }
                if let (Some(critic), Some(lesson)) = (critic.as_deref_mut(), &critics) {
                    let updated = self.critic_update(critic, lesson, &shares, &mut learnt);
                    updated.with_context(|| Stage::UpdateCritic.of_step(self.step + 1))?;
                }
            }
        }
        actor.learner.parameters.gather_marks()?;
        learnt.over(self.ranks)
    }

    /// `lesson` is the step's, where the actor computes.
    fn actor_update(
        &self,
        actor: &mut Actor,
        lesson: &Lesson,
        shares: &[Vec<Micro>],
        learnt: &mut Learnt,
    ) -> Result<()> {
        let began = Instant::now();
        let all = shares.iter().flatten();
        let whole = self.denominator(all.map(|micro| micro.cut(&self.lesson.mask)));
        for micro in &shares[self.ranks.rank()] {
            let micro = micro.on(actor.decoder.device())?;
            let (loss, numbers) = self.policy_loss(actor, lesson, &micro, &whole)?;
            actor.learner.backward(&loss, &numbers)?;
            self.live.goes_on();
        }
        for (loss, numbers) in actor.learner.passes()? {
            learnt.add_policy(loss, numbers);
            if self.kl_in_loss(lesson).is_some() {
                learnt.note_kl_loss();
            }
        }
        let updated = actor.learner.update()?;
        self.made(
            updated,
            ["the policy loss", "the actor's gradient norm"],
            "actorLearningRate",
        )?;
        learnt.actor_updated(updated, began.elapsed());
        Ok(())
    }

    /// The loss of a micro-batch, and beside it what [`Learnt::add_policy`] wants to know, both where the actor computes.
    fn policy_loss(
        &self,
        actor: &mut Actor,
        lesson: &Lesson,
        micro: &Micro,
        whole: &Denominator,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        let algorithm = &self.config.algorithm;
        let wanted = entropy_of(self.config);
        let (logprobs, entropy) = match micro.pass(&mut actor.kept, self.step) {
            Some(kept) => kept,
            None => Rows::new(&micro.samples, micro.columns as usize, false)?.logprobs(
                &actor.decoder,
                self.config.generation.temperature,
                Some(wanted),
            )?,
        };
        let mask = micro.cut(&lesson.mask);
        let input = PolicyInput {
            logprobs: &logprobs,
            old_logprobs: &micro.cut(&lesson.old_logprobs),
            advantages: &micro.cut(&lesson.advantages),
            mask: &mask,
            rollout_logprobs: Some(&micro.cut(&lesson.rollout_logprobs)),
        };
        let policy = policy_loss(algorithm, &input, whole)?;
        let none = || policy.loss.detach().zeros_like();
        let (mut bonus, mut term) = (none(), none());
        // Not in place: the policy's own loss is a metric.
        let mut loss = policy.loss.shallow_clone();
        if let Some(entropy) = entropy {
            let entropy = if wanted.is_learnt { entropy } else { entropy.detach() };
            bonus = entropy_bonus(algorithm, &entropy, &mask, whole)?;
            if wanted.is_learnt {
                loss = loss.f_sub(&(&bonus * algorithm.entropy_coef))?;
            }
        }
        if let Some(reference) = self.kl_in_loss(lesson) {
            term = kl_loss(algorithm, &logprobs, &micro.cut(reference), &mask, whole)?;
            loss = loss.f_add(&(&term * self.kl_coefficient))?;
        }
        Ok((loss, vec![policy.loss, bonus, term, policy.sums]))
    }

    /// The reference's log-probabilities, where the loss has a KL term.
    fn kl_in_loss<'a>(&self, lesson: &'a Lesson) -> Option<&'a Tensor> {
        match self.config.algorithm.kl.placement {
            KlPlacement::Loss => lesson.reference_logprobs.as_ref(),
            KlPlacement::Reward => None,
        }
    }

    /// `lesson` is the step's, where the critic computes.
    fn critic_update(
        &self,
        critic: &mut Critic,
        lesson: &Lesson,
        shares: &[Vec<Micro>],
        learnt: &mut Learnt,
    ) -> Result<()> {
        let began = Instant::now();
        let algorithm = &self.config.algorithm;
        let Some(old_values) = &lesson.values else {
            return Ok(());
        };
        let device = critic.model.decoder.device();
        // A response that is left out has no slot after it that is learnt from, either.
        let is_learnt_from = booleans(&self.lesson.mask).any_dim(-1, true); // [samples, 1]
        let trained = value_mask(algorithm.profile, &self.lesson.mask)?.logical_and(&is_learnt_from);
        let all = shares.iter().flatten();
        let whole = self.denominator(all.map(|micro| micro.cut(&trained)));
        let trained = send(&trained, device)?;
        for micro in &shares[self.ranks.rank()] {
            let micro = micro.on(device)?;
            let slot_after = slot_after(self.config);
            let values = match micro.pass(&mut critic.kept, self.step) {
                Some((kept, _)) => kept,
                None => Rows::new(&micro.samples, micro.columns as usize, slot_after)?.values(&critic.model)?,
            };
            let input = ValueInput {
                values: &values,
                old_values: &micro.cut(old_values),
                returns: &micro.cut(&lesson.returns),
                mask: &micro.cut(&trained),
            };
            let value = value_loss(algorithm, &input, &whole)?;
            let loss = &value.loss * algorithm.value_coef;
            critic.learner.backward(&loss, &[value.loss, value.sums])?;
            self.live.goes_on();
        }
        for (_, numbers) in critic.learner.passes()? {
            learnt.add_value(numbers);
        }
        let updated = critic.learner.update()?;
        self.made(
            updated,
            ["the value loss", "the critic's gradient norm"],
            "criticLearningRate",
        )?;
        learnt.critic_updated(updated, began.elapsed());
        Ok(())
    }

    /// The micro-batches of each rank.
    fn micros(&self, shares: &Shares) -> Vec<Vec<Micro<'_>>> {
        let of_ranks = micro_batches(self.config, self.lesson.samples, shares).into_iter();
        of_ranks
            .map(|of_rank| of_rank.into_iter().map(|chosen| self.micro(chosen)).collect())
            .collect()
    }

    fn micro(&self, chosen: Vec<usize>) -> Micro<'_> {
        let lesson = self.lesson;
        let samples: Vec<&Sample> = chosen.iter().map(|&index| &lesson.samples[index]).collect();
        let longest = samples.iter().map(|sample| sample.response.len()).max().unwrap_or(0);
        // TRL trains its critic one slot beyond each response that is shorter than the step's longest. Its approximate KL and AlpacaFarm's
        // are over all slots, as is a mean with padding: there a micro-batch may not choose how many there are.
        let algorithm = &self.config.algorithm;
        let columns = match algorithm.profile {
            Profile::Trl | Profile::Alpacafarm => lesson.mask.size()[1],
            _ if counts_padding(algorithm) => lesson.mask.size()[1],
            Profile::Default | Profile::Openrlhf | Profile::Verl => longest as i64,
        };
        let rows: Vec<i64> = chosen.iter().map(|&index| index as i64).collect();
        Micro {
            chosen,
            samples,
            rows: Tensor::from_slice(&rows),
            columns,
        }
    }

    fn denominator(&self, masks: impl Iterator<Item = Tensor>) -> Denominator {
        let longest = self.config.generation.max_new_tokens as usize;
        masks
            .map(|mask| Denominator::of(&mask.to_kind(Kind::Float), longest))
            .sum()
    }

    /// [`Diverged`] where the update was not made, naming the model's `loss` or `norm`.
    fn made(&self, updated: Updated, [loss, norm]: [&str; 2], rate: &str) -> Result<(), Diverged> {
        let (what, value) = match updated.bad() {
            None => return Ok(()),
            Some(Bad::Loss(value)) => (loss, value),
            Some(Bad::GradNorm(value)) => (norm, value),
        };
        Err(Diverged {
            step: self.step + 1,
            what: format!("{what} is {value}; lower optimizer.{rate}"),
        })
    }
}

#[cfg(test)]
mod tests;
