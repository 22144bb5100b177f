//! The PPO update: `ppoEpochs` passes over the step's samples in shuffled mini-batches, each gathered over micro-batches.
//!
//! The loss of a micro-batch is divided by the counts of its whole mini-batch, so the split into micro-batches changes
//! memory and rounding, nothing else; nor does it matter how many ranks share the mini-batch.

mod tally;

use std::time::Instant;

use anyhow::Result;
use ppo_crds::RunConfig;
use ppo_crds::spec::{KlPlacement, Profile};
use tch::{Kind, Tensor};

pub use tally::Learnt;

use super::learner::Updated;
use super::lesson::Lesson;
use super::rows::Rows;
use super::{Actor, Critic};
use crate::data::PromptOrder;
use crate::ppo::aggregation::Denominator;
use crate::ppo::mask::value_mask;
use crate::ppo::policy_loss::{PolicyInput, entropy_bonus, kl_loss, policy_loss};
use crate::ppo::value_loss::{ValueInput, value_loss};
use crate::ranks::Ranks;
use crate::ranks::deal::deal;
use crate::stages::Sample;
use crate::trainer::Diverged;

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
}

/// The rows of some samples, cut to the columns they need.
struct Micro<'a> {
    samples: Vec<&'a Sample>,
    rows: Tensor,
    columns: i64,
}

impl Update<'_> {
    /// Runs all updates of the step.
    ///
    /// # Errors
    /// [`Diverged`] when a loss or gradient is not finite: the update that would spread it is not made. Else what libtorch
    /// says, or that a rank is lost.
    pub fn run(&self, actor: &mut Actor, mut critic: Option<&mut Critic>) -> Result<Learnt> {
        let mut learnt = Learnt::default();
        let batch = &self.config.batch;
        let policy_learns = self.step >= self.config.optimizer.critic_warmup_steps;
        for epoch in 0..batch.ppo_epochs {
            let order = self.order(epoch);
            for chosen in order.chunks(batch.train_batch_size) {
                let shares = self.shares(chosen);
                if policy_learns {
                    self.actor_update(actor, &shares, &mut learnt)?;
                }
                if let Some(critic) = critic.as_deref_mut() {
                    self.critic_update(critic, &shares, &mut learnt)?;
                }
            }
        }
        learnt.over(self.ranks)
    }

    fn actor_update(&self, actor: &mut Actor, shares: &[Vec<Micro>], learnt: &mut Learnt) -> Result<()> {
        let began = Instant::now();
        let all = shares.iter().flatten();
        let whole = self.denominator(all.map(|micro| self.cut(micro, &self.lesson.mask)));
        for micro in &shares[self.ranks.rank()] {
            let loss = self.policy_loss(actor, micro, &whole, learnt)?;
            actor.learner.backward(&loss)?;
        }
        let updated = actor.learner.update()?;
        self.finite(
            updated,
            ["the policy loss", "the actor's gradient norm"],
            "actorLearningRate",
        )?;
        learnt.actor_updated(updated, began.elapsed());
        Ok(())
    }

    fn policy_loss(&self, actor: &Actor, micro: &Micro, whole: &Denominator, learnt: &mut Learnt) -> Result<Tensor> {
        let algorithm = &self.config.algorithm;
        let lesson = self.lesson;
        let rows = Rows::new(&micro.samples, micro.columns as usize, false)?;
        let with_entropy = algorithm.entropy_coef != 0.0;
        let (logprobs, entropy) = rows.logprobs(&actor.decoder, self.config.generation.temperature, true)?;
        let mask = self.cut(micro, &lesson.mask);
        let input = PolicyInput {
            logprobs: &logprobs,
            old_logprobs: &self.cut(micro, &lesson.old_logprobs),
            advantages: &self.cut(micro, &lesson.advantages),
            mask: &mask,
            rollout_logprobs: Some(&self.cut(micro, &lesson.rollout_logprobs)),
        };
        let policy = policy_loss(algorithm, &input, whole)?;
        learnt.add_policy(&policy);
        let mut loss = policy.loss;
        if let Some(entropy) = entropy {
            let entropy = if with_entropy { entropy } else { entropy.detach() };
            let bonus = entropy_bonus(algorithm, &entropy, &mask, whole)?;
            learnt.add_entropy(&bonus);
            if with_entropy {
                loss -= bonus * algorithm.entropy_coef;
            }
        }
        if let (KlPlacement::Loss, Some(reference)) = (algorithm.kl.placement, &lesson.reference_logprobs) {
            let term = kl_loss(algorithm, &logprobs, &self.cut(micro, reference), &mask, whole)?;
            learnt.add_kl_loss(&term);
            loss += term * self.kl_coefficient;
        }
        learnt.add_total(&loss);
        Ok(loss)
    }

    fn critic_update(&self, critic: &mut Critic, shares: &[Vec<Micro>], learnt: &mut Learnt) -> Result<()> {
        let began = Instant::now();
        let algorithm = &self.config.algorithm;
        let Some(old_values) = &self.lesson.values else {
            return Ok(());
        };
        let trained = value_mask(algorithm.profile, &self.lesson.mask)?;
        let all = shares.iter().flatten();
        let whole = self.denominator(all.map(|micro| self.cut(micro, &trained)));
        for micro in &shares[self.ranks.rank()] {
            let slot_after = algorithm.profile == Profile::Trl;
            let values = Rows::new(&micro.samples, micro.columns as usize, slot_after)?.values(&critic.model)?;
            let input = ValueInput {
                values: &values,
                old_values: &self.cut(micro, old_values),
                returns: &self.cut(micro, &self.lesson.returns),
                mask: &self.cut(micro, &trained),
            };
            let value = value_loss(algorithm, &input, &whole)?;
            learnt.add_value(&value);
            critic.learner.backward(&(value.loss * algorithm.value_coef))?;
        }
        let updated = critic.learner.update()?;
        self.finite(
            updated,
            ["the value loss", "the critic's gradient norm"],
            "criticLearningRate",
        )?;
        learnt.critic_updated(updated, began.elapsed());
        Ok(())
    }

    /// The epoch's order of samples: a function of seed, step and epoch.
    fn order(&self, epoch: usize) -> Vec<usize> {
        let samples = self.lesson.samples.len();
        // The order of updates is a domain of its own beside the order of prompts.
        let seed = self.config.seed ^ 0x7570_6461_7465; // "update"
        let epoch = self.step * self.config.batch.ppo_epochs as u64 + epoch as u64;
        PromptOrder {
            seed,
            prompts: samples,
            batch: samples,
            shuffle: true,
        }
        .batch(epoch)
    }

    /// The micro-batches of each rank: as many samples each, and as many tokens as can be.
    fn shares(&self, chosen: &[usize]) -> Vec<Vec<Micro<'_>>> {
        let lengths: Vec<usize> = chosen
            .iter()
            .map(|&index| self.lesson.samples[index].length())
            .collect();
        let micros = |share: Vec<usize>| {
            let samples: Vec<usize> = share.into_iter().map(|place| chosen[place]).collect();
            let micros = samples.chunks(self.config.batch.micro_train_batch_size);
            micros.map(|rows| self.micro(rows)).collect()
        };
        deal(&lengths, self.ranks.count()).into_iter().map(micros).collect()
    }

    fn micro(&self, chosen: &[usize]) -> Micro<'_> {
        let lesson = self.lesson;
        let samples: Vec<&Sample> = chosen.iter().map(|&index| &lesson.samples[index]).collect();
        let longest = samples.iter().map(|sample| sample.response.len()).max().unwrap_or(0);
        // TRL trains its critic one slot beyond the longest response; padding is part of AlpacaFarm's mean.
        let columns = match self.config.algorithm.profile {
            Profile::Default | Profile::Openrlhf | Profile::Verl => longest as i64,
            Profile::Trl | Profile::Alpacafarm => lesson.mask.size()[1],
        };
        let rows: Vec<i64> = chosen.iter().map(|&index| index as i64).collect();
        Micro {
            samples,
            rows: Tensor::from_slice(&rows),
            columns,
        }
    }

    /// The micro-batch's part of a tensor [samples, columns of the step].
    fn cut(&self, micro: &Micro, whole: &Tensor) -> Tensor {
        whole.index_select(0, &micro.rows).narrow(1, 0, micro.columns)
    }

    fn denominator(&self, masks: impl Iterator<Item = Tensor>) -> Denominator {
        let longest = self.config.generation.max_new_tokens as usize;
        masks
            .map(|mask| Denominator::of(&mask.to_kind(Kind::Float), longest))
            .sum()
    }

    /// [`Diverged`] where the update was not made: a loss of this rank or the norm over all was not finite.
    fn finite(&self, updated: Updated, [loss, norm]: [&str; 2], rate: &str) -> Result<(), Diverged> {
        let (what, value) = match updated.bad_loss {
            Some(value) => (loss, value),
            None => (norm, updated.grad_norm),
        };
        if value.is_finite() {
            return Ok(());
        }
        Err(Diverged {
            step: self.step + 1,
            what: format!("{what} is {value}; lower optimizer.{rate}"),
        })
    }
}

#[cfg(test)]
mod tests;
