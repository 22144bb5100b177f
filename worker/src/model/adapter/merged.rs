//! A model's tensors as engines and readers of the saved model want them: one whole weight each, whatever was trained.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use tch::Tensor;

use super::low_rank::LowRank;
use super::{Adapter, LORA_A};
use crate::model::Weights;
use crate::native::bytes::byte_length;

/// Tensors by Hugging Face name, each merged with its part of an adapter when it is asked for: beside the weights and the adapter
/// only as many merged tensors exist as somebody holds.
#[derive(Debug, Default)]
pub struct MergedWeights {
    weights: Weights,
    /// By the name of the weight that each goes into.
    adapters: BTreeMap<String, LowRank>,
}

/// A tensor that may have to be merged first. Name, size and precision are those of the weight.
#[derive(Clone, Copy, Debug)]
pub struct Unmerged<'a> {
    /// The weight, without the adapter.
    pub weight: &'a Tensor,
    adapter: Option<&'a LowRank>,
}

impl From<Weights> for MergedWeights {
    fn from(weights: Weights) -> Self {
        Self {
            weights,
            adapters: BTreeMap::new(),
        }
    }
}

impl From<&Weights> for MergedWeights {
    fn from(weights: &Weights) -> Self {
        weights.shallow_clone().into()
    }
}

impl MergedWeights {
    /// The tensors of `weights` with `adapter` merged in.
    pub fn new(weights: Weights, adapter: &Adapter) -> Self {
        let projections = adapter.weights.0.keys().filter_map(|name| name.strip_suffix(LORA_A));
        let adapters = projections
            .filter_map(|name| Some((format!("{name}.weight"), adapter.low_rank(name)?)))
            .collect();
        Self { weights, adapters }
    }

    /// The same tensors under the same names: nothing is copied.
    #[must_use]
    pub fn shallow_clone(&self) -> Self {
        let adapters = self.adapters.iter();
        Self {
            weights: self.weights.shallow_clone(),
            adapters: adapters.map(|(name, it)| (name.clone(), it.shallow_clone())).collect(),
        }
    }

    /// Own copies of what training changes: of an adapter where one is trained, else of all tensors.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn deep_clone(&self) -> Result<Self> {
        if !self.are_adapted() {
            return Ok(self.weights.deep_clone()?.into());
        }
        let adapters = self
            .adapters
            .iter()
            .map(|(name, it)| Ok((name.clone(), it.deep_clone()?)));
        Ok(Self {
            weights: self.weights.shallow_clone(),
            adapters: adapters.collect::<Result<_>>()?,
        })
    }

    /// Writes the values of `from` into what [`deep_clone`](Self::deep_clone) copied of it.
    ///
    /// # Errors
    /// When `from` lacks one of the tensors, or has it in another shape.
    pub fn overwrite(&self, from: &Self) -> Result<()> {
        if !self.are_adapted() {
            return self.weights.overwrite(&from.weights);
        }
        self.adapters.iter().try_for_each(|(name, it)| {
            let from = from
                .adapters
                .get(name)
                .with_context(|| format!("no adapter of {name}"))?;
            it.overwrite(from).with_context(|| format!("the adapter of {name}"))
        })
    }

    /// Bytes of all tensors, merged.
    pub fn bytes(&self) -> u64 {
        self.weights.0.values().map(|weight| byte_length(weight) as u64).sum()
    }

    /// Whether any tensor has to be merged, so that reading all of them makes new ones.
    pub fn are_adapted(&self) -> bool {
        !self.adapters.is_empty()
    }

    /// The tensor of that name, unmerged.
    pub fn get(&self, name: &str) -> Option<Unmerged<'_>> {
        Some(Unmerged {
            weight: self.weights.0.get(name)?,
            adapter: self.adapters.get(name),
        })
    }

    /// The tensor of that name.
    ///
    /// # Errors
    /// When there is none, or memory runs out.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        let tensor = self.get(name).with_context(|| format!("tensor {name} is missing"))?;
        tensor.merge().with_context(|| format!("merging {name}"))
    }

    /// All tensors in order of names, unmerged.
    pub fn iter(&self) -> impl Iterator<Item = (&String, Unmerged<'_>)> {
        self.weights.0.iter().map(|(name, weight)| {
            let adapter = self.adapters.get(name);
            (name, Unmerged { weight, adapter })
        })
    }
}

impl Unmerged<'_> {
    /// The whole tensor: the weight itself where no adapter goes into it.
    ///
    /// # Errors
    /// When the shapes do not fit, or memory runs out.
    pub fn merge(&self) -> Result<Tensor> {
        self.adapter
            .map_or_else(|| Ok(self.weight.shallow_clone()), |it| it.merge(self.weight))
    }
}
