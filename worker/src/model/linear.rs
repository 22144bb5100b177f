//! A linear layer over packed tokens.

use anyhow::Result;
use tch::Tensor;

use super::weights::Weights;

/// `x W^T + b`.
#[derive(Debug)]
pub struct Linear {
    /// `[out, in]`.
    pub weight: Tensor,
    /// `[out]`.
    pub bias: Option<Tensor>,
}

impl Linear {
    /// The layer whose tensors are called `{name}.weight` and, where there is one, `{name}.bias`.
    ///
    /// # Errors
    /// When the weight is missing.
    pub fn new(weights: &Weights, name: &str) -> Result<Self> {
        let bias = weights.0.get(&format!("{name}.bias")).map(Tensor::shallow_clone);
        Ok(Self {
            weight: weights.get(&format!("{name}.weight"))?.shallow_clone(),
            bias,
        })
    }

    /// `[rows, in]` to `[rows, out]`.
    ///
    /// # Errors
    /// When the input is of another width, or memory runs out.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        Ok(input.f_linear(&self.weight, self.bias.as_ref())?)
    }
}
