//! One trained model's parameters with their optimizer: what actor and critic have in common.

use std::path::{Path, PathBuf};

use anyhow::Context;
use ppo_crds::spec::OptimizerSpec;
use tch::{Kind, Tensor};

use super::adamw::AdamW;
use super::flat::Flat;
use super::optimizer_state::{self, State};
use super::parameters::Parameters;
use super::schedule;
use crate::model::Weights;
use crate::ranks::Ranks;

/// Parameters, optimizer and learning-rate schedule of one model.
#[derive(Debug)]
pub struct Learner {
    /// The parameters.
    pub parameters: Parameters,
    optimizer: AdamW,
    spec: OptimizerSpec,
    learning_rate: f64,
    total_updates: u64,
    ranks: Ranks,
    /// Of each backward pass that nobody has asked for: its loss and the numbers beside it, [1 + numbers] float64, where the model is.
    passes: Vec<Tensor>,
    /// A loss since the last update that was not finite.
    bad_loss: Option<f64>,
}

/// What an update did.
#[derive(Clone, Copy, Debug)]
pub struct Updated {
    /// Gradient norm over all ranks before clipping. Where it is not finite nothing was updated.
    pub grad_norm: f64,
    /// A loss of this rank that was not finite.
    pub bad_loss: Option<f64>,
    /// Learning rate of this update.
    pub learning_rate: f64,
}

/// Why an update was not made: a number that is not finite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bad {
    /// A loss of this rank.
    Loss(f64),
    /// The norm of the gradient over all ranks.
    GradNorm(f64),
}

impl Updated {
    /// Why the update was not made; None where it was. The gradient is still there, so that no later update would be made either.
    pub fn bad(self) -> Option<Bad> {
        let loss = self.bad_loss.map(Bad::Loss);
        loss.or_else(|| (!self.grad_norm.is_finite()).then_some(Bad::GradNorm(self.grad_norm)))
    }

    /// # Errors
    /// When the update was not made.
    pub fn made(self) -> anyhow::Result<()> {
        let (what, value) = match self.bad() {
            None => return Ok(()),
            Some(Bad::Loss(loss)) => ("loss", loss),
            Some(Bad::GradNorm(norm)) => ("norm of the gradient", norm),
        };
        anyhow::bail!("the {what} is {value}; lower learningRate")
    }
}

impl Learner {
    /// Makes `weights` trainable; they are views of one flat buffer afterwards.
    ///
    /// # Errors
    /// When there is no memory for them.
    pub fn new(
        weights: &mut Weights,
        spec: OptimizerSpec,
        learning_rate: f64,
        total_updates: u64,
    ) -> anyhow::Result<Self> {
        let alone = Ranks::alone();
        Self::of(Flat::of(weights, &alone)?, spec, learning_rate, total_updates, &alone)
    }

    /// Makes the tensors of `flat` trainable. Where `ranks` train one model, each has a part of the optimizer's state.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn of(
        flat: Flat,
        spec: OptimizerSpec,
        learning_rate: f64,
        total_updates: u64,
        ranks: &Ranks,
    ) -> anyhow::Result<Self> {
        let parameters = Parameters::of(flat, ranks)?;
        let optimizer = AdamW::new(&parameters);
        Ok(Self {
            parameters,
            optimizer,
            spec,
            learning_rate,
            total_updates,
            ranks: ranks.clone(),
            passes: Vec::new(),
            bad_loss: None,
        })
    }

    /// Updates done.
    pub fn updates(&self) -> u64 {
        self.optimizer.updates
    }

    /// Backward of one micro-batch's share of the update's loss. Its value and the `numbers` beside it (any shape, where the loss is) are
    /// kept for [`passes`](Self::passes): nothing is waited for here, so that a GPU has the next micro-batch before it is done with this one.
    ///
    /// # Errors
    /// When libtorch fails, or a rank is lost.
    pub fn backward(&mut self, loss: &Tensor, numbers: &[Tensor]) -> anyhow::Result<()> {
        loss.f_backward().map_err(|error| {
            let failure = self.parameters.take_failure().unwrap_or_else(|| error.into());
            failure.context("backward failed")
        })?;
        self.parameters.finish_backward()?;
        let all = std::iter::once(loss).chain(numbers);
        let all = all.map(|tensor| Ok(tensor.f_detach()?.f_to_kind(Kind::Double)?.f_reshape([-1])?));
        let all = Tensor::f_cat(&all.collect::<anyhow::Result<Vec<Tensor>>>()?, 0)?;
        self.passes.push(all);
        Ok(())
    }

    /// Losses given to [`backward`](Self::backward) since the last time, and the numbers beside them, brought to this machine all at once. A
    /// loss that is not finite is told of by [`update`](Self::update), by all ranks at once.
    ///
    /// # Errors
    /// When libtorch fails, or there were other numbers than these.
    pub fn passes<const N: usize>(&mut self) -> anyhow::Result<Vec<(f64, [f64; N])>> {
        let passes = self.read_passes()?.into_iter().map(|pass| {
            let (loss, numbers) = pass.split_first().context("a loss is no number")?;
            let numbers = numbers.try_into();
            let numbers = numbers.context("a micro-batch has other numbers than expected")?;
            Ok((*loss, numbers))
        });
        passes.collect()
    }

    fn read_passes(&mut self) -> anyhow::Result<Vec<Vec<f64>>> {
        let passes = std::mem::take(&mut self.passes);
        if passes.is_empty() {
            return Ok(Vec::new());
        }
        let mut numbers = Vec::<f64>::try_from(&Tensor::f_cat(&passes, 0)?)?.into_iter();
        let read: Vec<Vec<f64>> = passes
            .iter()
            .map(|pass| numbers.by_ref().take(pass.numel()).collect())
            .collect();
        let bad = read
            .iter()
            .filter_map(|pass| pass.first())
            .find(|loss| !loss.is_finite());
        if let Some(loss) = bad {
            self.bad_loss = Some(*loss);
            self.parameters.mark_not_finite();
        }
        Ok(read)
    }

    /// One optimizer update from the gradients gathered since the last.
    ///
    /// # Errors
    /// When libtorch fails.
    pub fn update(&mut self) -> anyhow::Result<Updated> {
        // Of those that nobody asked for, too, a loss may be bad.
        self.read_passes()?;
        let factor = schedule::factor(&self.spec, self.optimizer.updates, self.total_updates);
        let learning_rate = self.learning_rate * factor;
        let grad_norm = self.optimizer.update(&mut self.parameters, &self.spec, learning_rate)?;
        Ok(Updated {
            grad_norm,
            bad_loss: self.bad_loss.take(),
            learning_rate,
        })
    }

    /// Writes this rank's part of the optimizer's state into `folder`, and of the master weights what is not in the model:
    /// the file.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save(&self, folder: &Path, model: &str) -> anyhow::Result<PathBuf> {
        let state = State {
            m: &self.optimizer.m,
            v: &self.optimizer.v,
            rest: self.parameters.master_rest(),
        };
        optimizer_state::write(folder, model, (self.ranks.rank(), self.ranks.count()), &state)
    }

    /// Takes over what [`save`](Self::save) wrote, on this number of ranks or another. The model's own weights are already those
    /// of the checkpoint.
    ///
    /// # Errors
    /// When a file cannot be read or belongs to another model.
    pub fn restore(&mut self, folder: &Path, model: &str, updates: u64) -> anyhow::Result<()> {
        let own = self.parameters.own();
        let state = State {
            m: &self.optimizer.m,
            v: &self.optimizer.v,
            rest: self.parameters.master_rest(),
        };
        optimizer_state::read(folder, model, own, &state)?;
        self.optimizer.updates = updates;
        Ok(())
    }
}
