//! Root mean square layer normalisation (Zhang and Sennrich 2019, arXiv:1910.07467).

use anyhow::Result;
use tch::Tensor;

use super::weights::Weights;
use crate::native::training::{self, Front};

/// `weight * x / sqrt(mean(x^2) + eps)` over the last dimension, statistics in float32.
#[derive(Debug)]
pub struct RmsNorm {
    weight: Tensor,
    eps: f64,
}

impl RmsNorm {
    /// The norm whose weight is called `{name}.weight`.
    ///
    /// # Errors
    /// When it is missing.
    pub fn new(weights: &Weights, name: &str, eps: f64) -> Result<Self> {
        Ok(Self {
            weight: weights.get(&format!("{name}.weight"))?.shallow_clone(),
            eps,
        })
    }

    /// The same tensors: nothing is copied.
    #[must_use]
    pub fn shallow_clone(&self) -> Self {
        Self {
            weight: self.weight.shallow_clone(),
            eps: self.eps,
        }
    }

    /// The input normalised, in its own precision.
    ///
    /// # Errors
    /// When the input is of another width, or memory runs out.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        training::rms_norm(input, &self.weight, self.eps)
    }

    /// The same for linear layers to take.
    pub fn of<'a>(&'a self, rows: &'a Tensor) -> Front<'a> {
        Front::Norm {
            rows,
            weight: &self.weight,
            eps: self.eps,
        }
    }
}
