//! Named tensors of a model, in Hugging Face names.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use tch::{Device, Kind, Tensor};

use super::config::ModelConfig;
use super::names;
use super::safetensors::{self, Memory};
use super::target::Target;
use crate::native::random;

/// Tensors by Hugging Face name.
#[derive(Debug, Default)]
pub struct Weights(pub BTreeMap<String, Tensor>);

impl Weights {
    /// Reads the tensors that `config` calls for from a model folder to `target`.
    ///
    /// # Errors
    /// When a file is missing, truncated or corrupt; when tensors are missing, unexpected or of another shape (one error
    /// lists them all).
    pub fn load(folder: &Path, config: &ModelConfig, target: impl Into<Target>) -> Result<Self> {
        Self::read(folder, config, target.into(), Memory::Own)
    }

    /// The same in the mapped files where they are stored in `kind`, for an engine that packs them into memory of its own and is
    /// done with them.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn map(folder: &Path, config: &ModelConfig, kind: Kind) -> Result<Self> {
        Self::read(folder, config, kind.into(), Memory::Mapped)
    }

    fn read(folder: &Path, config: &ModelConfig, target: Target, memory: Memory) -> Result<Self> {
        let weights = safetensors::read(folder, target, memory, |name| !names::ignored(config, name))?;
        check(&weights, &names::expected(config))
            .with_context(|| format!("the weights in {} do not fit its config.json", folder.display()))?;
        Ok(Self(weights))
    }

    /// Reads only the trunk (`model.*`) of a model folder, whatever head is on it, to `target`.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_trunk(folder: &Path, config: &ModelConfig, target: impl Into<Target>) -> Result<Self> {
        let weights = safetensors::read(folder, target, Memory::Own, |name| {
            name.starts_with("model.") && !names::ignored(config, name)
        })?;
        check(&weights, &names::trunk(config))
            .with_context(|| format!("the weights in {} do not fit its config.json", folder.display()))?;
        Ok(Self(weights))
    }

    /// Random weights for `config`: normal with the configuration's `initializer_range`, norms 1, biases 0, as
    /// transformers initialises (not the same draws). The same seed gives the same weights, whatever device they go
    /// [`on`](Self::on); libtorch's generator is seeded by this.
    ///
    /// # Errors
    /// When libtorch fails, as when memory runs out.
    pub fn random(config: &ModelConfig, kind: Kind, seed: u64) -> Result<Self> {
        random::seeded(seed, || Self::draw(config, kind))
    }

    fn draw(config: &ModelConfig, kind: Kind) -> Result<Self> {
        let _no_grad = tch::no_grad_guard();
        let mut weights = BTreeMap::new();
        for (name, dims) in names::expected(config) {
            let mut tensor = Tensor::f_empty(&dims, (Kind::Float, Device::Cpu))?;
            let filled = if name.ends_with("norm.weight") {
                tensor.f_fill_(1.0)?
            } else if name.ends_with(".bias") {
                tensor.f_fill_(0.0)?
            } else {
                tensor.f_normal_(0.0, config.initializer_range)?
            };
            weights.insert(name, filled.f_to_kind(kind)?);
        }
        Ok(Self(weights))
    }

    /// The same values on a device. Each tensor here goes when it is there.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn on(self, device: Device) -> Result<Self> {
        let there = |(name, tensor): (String, Tensor)| {
            let tensor = tensor.f_to_device(device);
            tensor.map(|tensor| (name.clone(), tensor)).with_context(|| name)
        };
        Ok(Self(self.0.into_iter().map(there).collect::<Result<_>>()?))
    }

    /// The tensor of that name.
    ///
    /// # Errors
    /// When there is none.
    pub fn get(&self, name: &str) -> Result<&Tensor> {
        self.0.get(name).with_context(|| format!("tensor {name} is missing"))
    }

    /// The same tensors under the same names: nothing is copied.
    #[must_use]
    pub fn shallow_clone(&self) -> Self {
        Self(
            self.0
                .iter()
                .map(|(name, tensor)| (name.clone(), tensor.shallow_clone()))
                .collect(),
        )
    }

    /// Own copies of all tensors, without gradients.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn deep_clone(&self) -> Result<Self> {
        let _no_grad = tch::no_grad_guard();
        let copy = |tensor: &Tensor| -> Result<Tensor> {
            let mut copy = tensor.f_empty_like()?;
            copy.f_copy_(tensor)?;
            Ok(copy)
        };
        let copies = self.0.iter().map(|(name, tensor)| Ok((name.clone(), copy(tensor)?)));
        Ok(Self(copies.collect::<Result<_>>()?))
    }

    /// Writes the values of `from` into these tensors.
    ///
    /// # Errors
    /// When `from` lacks one of them, or has it in another shape.
    pub fn overwrite(&self, from: &Self) -> Result<()> {
        let _no_grad = tch::no_grad_guard();
        for (name, tensor) in &self.0 {
            let values = from.get(name)?;
            tensor
                .shallow_clone()
                .f_copy_(values)
                .with_context(|| format!("tensor {name}"))?;
        }
        Ok(())
    }

    /// Lets every tensor collect gradients (as leaves).
    ///
    /// # Errors
    /// When libtorch refuses, as for integer tensors.
    pub fn require_gradients(&self) -> Result<()> {
        for tensor in self.0.values() {
            let _ = tensor.f_set_requires_grad(true)?;
        }
        Ok(())
    }
}

/// Fails with every missing, unexpected and misshapen tensor at once.
pub(super) fn check(found: &BTreeMap<String, Tensor>, expected: &BTreeMap<String, Vec<i64>>) -> Result<()> {
    let missing: Vec<&str> = expected
        .keys()
        .filter(|name| !found.contains_key(*name))
        .map(String::as_str)
        .collect();
    let unexpected: Vec<&str> = found
        .keys()
        .filter(|name| !expected.contains_key(*name))
        .map(String::as_str)
        .collect();
    let misshapen: Vec<String> = expected
        .iter()
        .filter_map(|(name, dims)| Some((name, dims, found.get(name)?.size())))
        .filter(|(_, dims, size)| *dims != size)
        .map(|(name, dims, size)| format!("{name} is {size:?}, not {dims:?}"))
        .collect();
    if missing.is_empty() && unexpected.is_empty() && misshapen.is_empty() {
        return Ok(());
    }
    let list = |names: &[&str]| {
        if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        }
    };
    let shapes = if misshapen.is_empty() {
        "none".to_owned()
    } else {
        misshapen.join(", ")
    };
    bail!(
        "missing: {}; unexpected: {}; of another shape: {shapes}",
        list(&missing),
        list(&unexpected)
    )
}
