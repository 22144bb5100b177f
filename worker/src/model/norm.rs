//! Root mean square layer normalisation (Zhang and Sennrich 2019, arXiv:1910.07467).

use anyhow::Result;
use tch::{Kind, Tensor};

use super::weights::Weights;

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

    /// The input normalised, in its own precision.
    ///
    /// # Errors
    /// When the input is of another width, or memory runs out.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let wide = input.f_to_kind(Kind::Float)?;
        let scale = wide
            .f_square()?
            .f_mean_dim(-1, true, Kind::Float)?
            .f_add_scalar(self.eps)?
            .f_rsqrt()?;
        // transformers rounds before it multiplies by the weight.
        Ok(wide.f_mul(&scale)?.f_to_kind(input.kind())?.f_mul(&self.weight)?)
    }
}
