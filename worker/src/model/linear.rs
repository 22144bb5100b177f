//! A linear layer over packed tokens.

use anyhow::{Result, anyhow};
use tch::Tensor;

use super::adapter::low_rank::{self, LowRank};
use super::weights::Weights;
use crate::native::training::{self, Front};

/// `x W^T + b`, and what an adapter adds.
#[derive(Debug)]
pub struct Linear {
    /// `[out, in]`.
    pub weight: Tensor,
    /// `[out]`.
    pub bias: Option<Tensor>,
    /// Trained in place of the weight.
    pub adapter: Option<LowRank>,
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
            adapter: None,
        })
    }

    /// The same tensors: nothing is copied.
    #[must_use]
    pub fn shallow_clone(&self) -> Self {
        Self {
            weight: self.weight.shallow_clone(),
            bias: self.bias.as_ref().map(Tensor::shallow_clone),
            adapter: self.adapter.as_ref().map(LowRank::shallow_clone),
        }
    }

    /// `[rows, in]` to `[rows, out]`.
    ///
    /// # Errors
    /// When the input is of another width, or memory runs out.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self.forward_from(Front::Rows(input))
    }

    /// The same of what `input` makes.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn forward_from(&self, input: Front) -> Result<Tensor> {
        let [output] = Self::forward_all([self], input)?;
        Ok(output)
    }

    /// Several layers over one input, whose gradient is gathered without an addition of its own.
    ///
    /// # Errors
    /// When the input is of another width, or memory runs out.
    pub fn forward_all<const N: usize>(layers: [&Self; N], input: Front) -> Result<[Tensor; N]> {
        let adapters = layers.map(|layer| layer.adapter.as_ref());
        if adapters.iter().all(Option::is_none) {
            return Self::weigh_all(layers, input);
        }
        let rows = input.rows()?;
        let outputs = Self::weigh_all(layers, Front::Rows(&rows))?;
        low_rank::add(adapters, &rows, outputs)
    }

    /// Weights and biases alone.
    fn weigh_all<const N: usize>(layers: [&Self; N], input: Front) -> Result<[Tensor; N]> {
        let biases = layers.map(|layer| layer.bias.as_ref());
        let biased = biases.iter().flatten().count();
        if biased == 0 || biased == N {
            let weights = layers.map(|layer| &layer.weight);
            // With every bias there, each stands for itself.
            let biases = (biased == N).then(|| std::array::from_fn(|i| biases[i].unwrap_or(weights[i])));
            return training::linears(input, weights, biases);
        }
        let rows = input.rows()?;
        let outputs: Result<Vec<Tensor>, _> = layers
            .iter()
            .map(|layer| rows.f_linear(&layer.weight, layer.bias.as_ref()))
            .collect();
        <[Tensor; N]>::try_from(outputs?).map_err(|_| anyhow!("{N} layers answer {N} times"))
    }
}
