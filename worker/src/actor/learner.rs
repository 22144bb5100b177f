//! One trained model's parameters with their optimizer: what actor and critic have in common.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use ppo_crds::spec::OptimizerSpec;
use tch::{Kind, Tensor};

use super::adamw::AdamW;
use super::parameters::Parameters;
use super::schedule;
use crate::model::Weights;
use crate::model::safetensors::read_file;
use crate::model::save::write_shard;

/// Parameters, optimizer and learning-rate schedule of one model.
#[derive(Debug)]
pub struct Learner {
    /// The parameters.
    pub parameters: Parameters,
    optimizer: AdamW,
    spec: OptimizerSpec,
    learning_rate: f64,
    total_updates: u64,
}

/// What an update did.
#[derive(Clone, Copy, Debug)]
pub struct Updated {
    /// Global gradient norm before clipping.
    pub grad_norm: f64,
    /// Learning rate of this update.
    pub learning_rate: f64,
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
        let parameters = Parameters::adopt(weights)?;
        let optimizer = AdamW::new(&parameters);
        Ok(Self {
            parameters,
            optimizer,
            spec,
            learning_rate,
            total_updates,
        })
    }

    /// Updates done.
    pub fn updates(&self) -> u64 {
        self.optimizer.updates
    }

    /// Backward of one micro-batch's share of the update's loss.
    ///
    /// # Errors
    /// When libtorch fails.
    pub fn backward(&mut self, loss: &Tensor) -> anyhow::Result<()> {
        loss.f_backward().context("backward failed")
    }

    /// One optimizer update from the gradients gathered since the last.
    ///
    /// # Errors
    /// When libtorch fails.
    pub fn update(&mut self) -> anyhow::Result<Updated> {
        let factor = schedule::factor(&self.spec, self.optimizer.updates, self.total_updates);
        let learning_rate = self.learning_rate * factor;
        let grad_norm = self.optimizer.update(&mut self.parameters, &self.spec, learning_rate)?;
        Ok(Updated {
            grad_norm,
            learning_rate,
        })
    }

    /// Writes the optimizer's state as safetensors, and the master weights where they are not the model's own.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save(&self, file: &Path) -> anyhow::Result<()> {
        let mut tensors = BTreeMap::from([
            ("m".to_owned(), self.optimizer.m.shallow_clone()),
            ("v".to_owned(), self.optimizer.v.shallow_clone()),
        ]);
        if let Some(master) = self.parameters.separate_master() {
            tensors.insert("master".to_owned(), master.shallow_clone());
        }
        write_shard(file, &tensors.iter().collect::<Vec<_>>())
    }

    /// Takes over what [`save`](Self::save) wrote. The model's own weights are already those of the checkpoint.
    ///
    /// # Errors
    /// When the file cannot be read or belongs to another model.
    pub fn restore(&mut self, file: &Path, updates: u64) -> anyhow::Result<()> {
        let saved = read_file(file, Kind::Float, |_| true)?;
        let tensor = |name: &str| {
            saved
                .get(name)
                .with_context(|| format!("{}: no tensor {name:?}", file.display()))
        };
        self.optimizer
            .restore(tensor("m")?, tensor("v")?, updates)
            .with_context(|| file.display().to_string())?;
        if self.parameters.separate_master().is_some() {
            self.parameters.set_master(tensor("master")?)?;
        }
        Ok(())
    }
}
