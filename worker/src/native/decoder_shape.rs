//! Sizes and features of a decoder that the engine runs: the Llama family with Qwen's additions.

use anyhow::{Result, ensure};
use tch::Kind;

/// A pre-norm decoder with RMSNorm, rotary positions, grouped-query attention and a SwiGLU MLP.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderShape {
    /// Number of blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Width inside the MLP.
    pub intermediate: usize,
    /// Rows of the token embedding.
    pub vocab: usize,
    /// Longest sequence.
    pub max_positions: usize,
    /// Added to the mean square in RMSNorm.
    pub rms_eps: f32,
    /// Query, key and value projections have a bias (Qwen2).
    pub qkv_bias: bool,
    /// The attention's output projection has a bias (Llama and Qwen3 with `attention_bias`).
    pub output_bias: bool,
    /// Each query and key head is normalised before rotation (Qwen3).
    pub qk_norm: bool,
    /// The output head is the token embedding.
    pub tied: bool,
    /// Angle per position of each rotated pair, `[head_dim / 2]`, scaling already applied.
    pub inv_freq: Vec<f32>,
    /// Storage of weights, product inputs and cache: `Float` or `BFloat16`.
    pub kind: Kind,
}

impl DecoderShape {
    /// # Errors
    /// When no runner can run this shape, naming the field.
    pub fn check(&self) -> Result<()> {
        for (name, size) in [
            ("layers", self.layers),
            ("hidden", self.hidden),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads),
            ("head_dim", self.head_dim),
            ("intermediate", self.intermediate),
            ("vocab", self.vocab),
            ("max_positions", self.max_positions),
        ] {
            ensure!(size > 0, "{name} is 0");
        }
        ensure!(
            self.heads.is_multiple_of(self.kv_heads),
            "{} heads do not share {} kv_heads evenly",
            self.heads,
            self.kv_heads
        );
        ensure!(
            self.head_dim.is_multiple_of(2),
            "head_dim {} is odd: rotary positions turn pairs",
            self.head_dim
        );
        ensure!(
            self.inv_freq.len() == self.head_dim / 2,
            "{} rotary frequencies for head_dim {}",
            self.inv_freq.len(),
            self.head_dim
        );
        ensure!(
            matches!(self.kind, Kind::Float | Kind::BFloat16),
            "the rollout engine stores float32 or bfloat16, not {:?}",
            self.kind
        );
        Ok(())
    }
}
