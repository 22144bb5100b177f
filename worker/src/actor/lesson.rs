//! The data that the updates of a step read.

use anyhow::{Context, Result};
use ppo_crds::run_config::Algorithm;
use tch::{Device, Kind, Tensor};

use crate::native::device::send;
use crate::ranks::Ranks;
use crate::ranks::order::Order;
use crate::stages::{Batch, Sample};

/// What the updates of a step read: samples, and what is known of their tokens, each [B, T] float32.
#[derive(Debug)]
pub struct Lesson<'a> {
    /// The samples.
    pub samples: &'a [Sample],
    /// 1 on response tokens that are learnt from.
    pub mask: Tensor,
    /// The actor's log-probabilities before the step's updates.
    pub old_logprobs: Tensor,
    /// The engine's log-probabilities.
    pub rollout_logprobs: Tensor,
    /// Advantages.
    pub advantages: Tensor,
    /// The critic's targets.
    pub returns: Tensor,
    /// The reference's log-probabilities; None without a reference.
    pub reference_logprobs: Option<Tensor>,
    /// The critic's values before the step's updates; None without a critic.
    pub values: Option<Tensor>,
}

impl<'a> Lesson<'a> {
    /// What is learnt of a step's batch.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn taught(batch: &'a Batch, algorithm: &Algorithm) -> Result<Self> {
        let lesson = Self::of(batch);
        match algorithm.mask_truncated {
            true => lesson.without_truncated(),
            false => Ok(lesson),
        }
    }

    /// Of a step's batch, sharing its tensors.
    fn of(batch: &'a Batch) -> Self {
        let scored = &batch.scored;
        Self {
            samples: scored.samples(),
            mask: scored.mask.shallow_clone(),
            old_logprobs: scored.old_logprobs.shallow_clone(),
            rollout_logprobs: scored.rollout_logprobs.shallow_clone(),
            advantages: batch.advantages.advantages.shallow_clone(),
            returns: batch.advantages.returns.shallow_clone(),
            reference_logprobs: scored.reference_logprobs.as_ref().map(Tensor::shallow_clone),
            values: scored.values.as_ref().map(Tensor::shallow_clone),
        }
    }

    /// The same without the responses that did not finish: they have no part in any loss, nor in what losses are divided by. Advantages
    /// are as they were, so that their scores count in their groups' baselines, as with TRL's `mask_truncated_completions`.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn without_truncated(mut self) -> Result<Self> {
        let finished: Vec<bool> = self.samples.iter().map(Sample::finished).collect();
        let finished = Tensor::f_from_slice(&finished)?
            .f_to_kind(self.mask.kind())?
            .f_unsqueeze(1)?; // [B, 1]
        self.mask = self.mask.f_mul(&finished)?;
        Ok(self)
    }

    /// The same on a device, for all updates of the step.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn on(&self, device: Device) -> Result<Self> {
        let there = |tensor: &Tensor| send(tensor, device);
        Ok(Self {
            samples: self.samples,
            mask: there(&self.mask)?,
            old_logprobs: there(&self.old_logprobs)?,
            rollout_logprobs: there(&self.rollout_logprobs)?,
            advantages: there(&self.advantages)?,
            returns: there(&self.returns)?,
            reference_logprobs: self.reference_logprobs.as_ref().map(there).transpose()?,
            values: self.values.as_ref().map(there).transpose()?,
        })
    }

    /// Gives it to the other ranks, with the order to learn.
    ///
    /// # Errors
    /// When a rank is lost, naming it.
    pub fn give(&self, ranks: &Ranks, kl_coefficient: f64) -> Result<()> {
        if ranks.is_alone() {
            return Ok(());
        }
        ranks.order(&Order::Learn {
            kl_coefficient,
            reference: self.reference_logprobs.is_some(),
            values: self.values.is_some(),
        })?;
        let always = [
            &self.mask,
            &self.old_logprobs,
            &self.rollout_logprobs,
            &self.advantages,
            &self.returns,
        ];
        let all = always.into_iter().chain(&self.reference_logprobs).chain(&self.values);
        let all = all
            .map(|tensor| tensor.f_to_kind(Kind::Float))
            .collect::<Result<Vec<_>, _>>()?;
        ranks.broadcast(&Tensor::f_stack(&all, 0)?)
    }

    /// The other side of [`give`](Self::give).
    ///
    /// # Errors
    /// When rank 0 is lost.
    pub fn take(ranks: &Ranks, samples: &'a [Sample], columns: usize, reference: bool, values: bool) -> Result<Self> {
        let count = 5 + i64::from(reference) + i64::from(values);
        let stacked = Tensor::f_zeros(
            [count, samples.len() as i64, columns as i64],
            (Kind::Float, Device::Cpu),
        )?;
        ranks.broadcast(&stacked)?;
        let mut tensors = stacked.f_unbind(0)?.into_iter();
        let mut next = || tensors.next().context("rank 0 gave too few tensors");
        Ok(Self {
            samples,
            mask: next()?,
            old_logprobs: next()?,
            rollout_logprobs: next()?,
            advantages: next()?,
            returns: next()?,
            reference_logprobs: reference.then(&mut next).transpose()?,
            values: values.then(&mut next).transpose()?,
        })
    }
}
