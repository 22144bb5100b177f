//! The gated feed-forward layer (SwiGLU, Shazeer 2020, arXiv:2002.05202).

use anyhow::Result;
use tch::Tensor;

use super::linear::Linear;
use super::weights::Weights;
use crate::native::training::Front;

/// `down(silu(gate(x)) * up(x))`.
#[derive(Debug)]
pub struct Mlp {
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl Mlp {
    /// The layer whose tensors are called `{prefix}.gate_proj.weight` and so on.
    ///
    /// # Errors
    /// When a tensor is missing.
    pub fn new(weights: &Weights, prefix: &str) -> Result<Self> {
        let linear = |name: &str| Linear::new(weights, &format!("{prefix}.{name}"));
        Ok(Self {
            gate: linear("gate_proj")?,
            up: linear("up_proj")?,
            down: linear("down_proj")?,
        })
    }

    /// The same tensors: nothing is copied.
    #[must_use]
    pub fn shallow_clone(&self) -> Self {
        Self {
            gate: self.gate.shallow_clone(),
            up: self.up.shallow_clone(),
            down: self.down.shallow_clone(),
        }
    }

    /// By their Hugging Face names.
    pub(super) fn projections_mut(&mut self) -> [(&'static str, &mut Linear); 3] {
        [
            ("gate_proj", &mut self.gate),
            ("up_proj", &mut self.up),
            ("down_proj", &mut self.down),
        ]
    }

    /// `[tokens, hidden]` to `[tokens, hidden]`.
    ///
    /// # Errors
    /// When libtorch fails, as when memory runs out.
    pub fn forward(&self, input: Front) -> Result<Tensor> {
        let [gate, up] = Linear::forward_all([&self.gate, &self.up], input)?;
        self.down.forward_from(Front::Gate { gate: &gate, up: &up })
    }
}
