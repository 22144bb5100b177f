//! The PPO update: `ppoEpochs` passes over the step's samples in shuffled mini-batches, each gathered over micro-batches.
//!
//! The loss of a micro-batch is divided by the counts of its whole mini-batch, so the split into micro-batches changes
//! memory and rounding, nothing else.

mod tally;

use std::time::Instant;

use anyhow::Result;
use ppo_crds::RunConfig;
use ppo_crds::spec::{KlPlacement, Profile};
use tch::{Kind, Tensor};

pub use tally::Learnt;

use super::rows::Rows;
use super::{Actor, Critic};
use crate::data::PromptOrder;
use crate::ppo::aggregation::Denominator;
use crate::ppo::mask::value_mask;
use crate::ppo::policy_loss::{PolicyInput, entropy_bonus, kl_loss, policy_loss};
use crate::ppo::value_loss::{ValueInput, value_loss};
use crate::stages::{Batch, Sample};
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
    pub batch: &'a Batch,
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
    /// says.
    pub fn run(&self, actor: &mut Actor, mut critic: Option<&mut Critic>) -> Result<Learnt> {
        let mut learnt = Learnt::default();
        let batch = &self.config.batch;
        let policy_learns = self.step >= self.config.optimizer.critic_warmup_steps;
        for epoch in 0..batch.ppo_epochs {
            let order = self.order(epoch);
            for chosen in order.chunks(batch.train_batch_size) {
                let micros: Vec<Micro> = chosen
                    .chunks(batch.micro_train_batch_size)
                    .map(|rows| self.micro(rows))
                    .collect();
                if policy_learns {
                    self.actor_update(actor, &micros, &mut learnt)?;
                }
                if let Some(critic) = critic.as_deref_mut() {
                    self.critic_update(critic, &micros, &mut learnt)?;
                }
            }
        }
        Ok(learnt)
    }

    fn actor_update(&self, actor: &mut Actor, micros: &[Micro], learnt: &mut Learnt) -> Result<()> {
        let began = Instant::now();
        let masks = micros.iter().map(|micro| self.cut(micro, &self.batch.scored.mask));
        let whole = self.denominator(masks);
        for micro in micros {
            let loss = self.policy_loss(actor, micro, &whole, learnt)?;
            self.finite(
                "the policy loss",
                loss.double_value(&[]),
                "lower optimizer.actorLearningRate",
            )?;
            actor.learner.backward(&loss)?;
        }
        let updated = actor.learner.update()?;
        self.finite(
            "the actor's gradient norm",
            updated.grad_norm,
            "lower optimizer.actorLearningRate",
        )?;
        learnt.actor_updated(updated, began.elapsed());
        Ok(())
    }

    fn policy_loss(&self, actor: &Actor, micro: &Micro, whole: &Denominator, learnt: &mut Learnt) -> Result<Tensor> {
        let algorithm = &self.config.algorithm;
        let scored = &self.batch.scored;
        let rows = Rows::new(&micro.samples, micro.columns as usize, false)?;
        let with_entropy = algorithm.entropy_coef != 0.0;
        let (logprobs, entropy) = rows.logprobs(&actor.decoder, self.config.generation.temperature, true)?;
        let mask = self.cut(micro, &scored.mask);
        let input = PolicyInput {
            logprobs: &logprobs,
            old_logprobs: &self.cut(micro, &scored.old_logprobs),
            advantages: &self.cut(micro, &self.batch.advantages.advantages),
            mask: &mask,
            rollout_logprobs: Some(&self.cut(micro, &scored.rollout_logprobs)),
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
        if let (KlPlacement::Loss, Some(reference)) = (algorithm.kl.placement, &scored.reference_logprobs) {
            let term = kl_loss(algorithm, &logprobs, &self.cut(micro, reference), &mask, whole)?;
            learnt.add_kl_loss(&term);
            loss += term * self.kl_coefficient;
        }
        learnt.add_total(&loss);
        Ok(loss)
    }

    fn critic_update(&self, critic: &mut Critic, micros: &[Micro], learnt: &mut Learnt) -> Result<()> {
        let began = Instant::now();
        let algorithm = &self.config.algorithm;
        let Some(old_values) = &self.batch.scored.values else {
            return Ok(());
        };
        let trained = value_mask(algorithm.profile, &self.batch.scored.mask)?;
        let whole = self.denominator(micros.iter().map(|micro| self.cut(micro, &trained)));
        for micro in micros {
            let slot_after = algorithm.profile == Profile::Trl;
            let values = Rows::new(&micro.samples, micro.columns as usize, slot_after)?.values(&critic.model)?;
            let input = ValueInput {
                values: &values,
                old_values: &self.cut(micro, old_values),
                returns: &self.cut(micro, &self.batch.advantages.returns),
                mask: &self.cut(micro, &trained),
            };
            let value = value_loss(algorithm, &input, &whole)?;
            self.finite(
                "the value loss",
                value.loss.double_value(&[]),
                "lower optimizer.criticLearningRate",
            )?;
            learnt.add_value(&value);
            critic.learner.backward(&(value.loss * algorithm.value_coef))?;
        }
        let updated = critic.learner.update()?;
        self.finite(
            "the critic's gradient norm",
            updated.grad_norm,
            "lower optimizer.criticLearningRate",
        )?;
        learnt.critic_updated(updated, began.elapsed());
        Ok(())
    }

    /// The epoch's order of samples: a function of seed, step and epoch.
    fn order(&self, epoch: usize) -> Vec<usize> {
        let samples = self.batch.scored.samples.len();
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

    fn micro(&self, chosen: &[usize]) -> Micro<'_> {
        let scored = &self.batch.scored;
        let samples: Vec<&Sample> = chosen.iter().map(|&index| &scored.samples[index]).collect();
        let longest = samples.iter().map(|sample| sample.response.len()).max().unwrap_or(0);
        // TRL trains its critic one slot beyond the longest response; padding is part of AlpacaFarm's mean.
        let columns = match self.config.algorithm.profile {
            Profile::Default | Profile::Openrlhf | Profile::Verl => longest as i64,
            Profile::Trl | Profile::Alpacafarm => scored.mask.size()[1],
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

    fn finite(&self, what: &str, value: f64, advice: &str) -> Result<(), Diverged> {
        if value.is_finite() {
            return Ok(());
        }
        Err(Diverged {
            step: self.step + 1,
            what: format!("{what} is {value}; {advice}"),
        })
    }
}
