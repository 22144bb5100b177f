//! Causal self-attention of packed sequences.

use anyhow::Result;
use tch::Tensor;

use super::config::ModelConfig;
use super::linear::Linear;
use super::norm::RmsNorm;
use super::rope::Rotation;
use super::weights::Weights;

/// Projections, norms and head counts of one layer's attention.
#[derive(Debug)]
pub struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    /// Norms of each head's query and key (Qwen3).
    norms: Option<(RmsNorm, RmsNorm)>,
    heads: i64,
    kv_heads: i64,
    head_dim: i64,
}

impl Attention {
    /// The attention whose tensors are called `{prefix}.q_proj.weight` and so on.
    ///
    /// # Errors
    /// When a tensor is missing.
    pub fn new(config: &ModelConfig, weights: &Weights, prefix: &str) -> Result<Self> {
        let linear = |name: &str| Linear::new(weights, &format!("{prefix}.{name}"));
        let norm = |name: &str| RmsNorm::new(weights, &format!("{prefix}.{name}"), config.norm_eps);
        Ok(Self {
            query: linear("q_proj")?,
            key: linear("k_proj")?,
            value: linear("v_proj")?,
            output: linear("o_proj")?,
            norms: if config.qk_norm {
                Some((norm("q_norm")?, norm("k_norm")?))
            } else {
                None
            },
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
        })
    }

    /// `[tokens, hidden]` to `[tokens, hidden]`; a token attends to itself and the tokens before it in its sequence.
    ///
    /// # Errors
    /// When libtorch fails, as when memory runs out.
    pub fn forward(&self, input: &Tensor, rotation: &Rotation, ragged: &Ragged) -> Result<Tensor> {
        let split = |rows: Tensor, heads: i64| rows.f_view([-1, heads, self.head_dim]);
        let mut queries = split(self.query.forward(input)?, self.heads)?;
        let mut keys = split(self.key.forward(input)?, self.kv_heads)?;
        let values = split(self.value.forward(input)?, self.kv_heads)?;
        if let Some((query_norm, key_norm)) = &self.norms {
            queries = query_norm.forward(&queries)?;
            keys = key_norm.forward(&keys)?;
        }
        let mixed = attend(&rotation.apply(&queries)?, &rotation.apply(&keys)?, &values, ragged)?;
        self.output.forward(&mixed.f_view([-1, self.heads * self.head_dim])?)
    }
}

/// Where packed rows lie in a right-padded batch, and back.
#[derive(Debug)]
pub struct Ragged {
    sequences: i64,
    longest: i64,
    /// Packed row of each padded slot, `[sequences * longest]`; padding reads row 0, which nothing after it sees.
    packed: Tensor,
    /// Padded slot of each packed row, `[tokens]`.
    slots: Tensor,
}

impl Ragged {
    /// The layout of sequences of these lengths.
    ///
    /// # Errors
    /// When libtorch fails.
    pub fn new(lengths: &[usize], device: tch::Device) -> Result<Self> {
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let mut packed = vec![0; lengths.len() * longest];
        let mut slots = Vec::with_capacity(lengths.iter().sum());
        for (sequence, length) in lengths.iter().enumerate() {
            for position in 0..*length {
                let slot = sequence * longest + position;
                packed[slot] = slots.len() as i64;
                slots.push(slot as i64);
            }
        }
        Ok(Self {
            sequences: lengths.len() as i64,
            longest: longest as i64,
            packed: Tensor::f_from_slice(&packed)?.f_to_device(device)?,
            slots: Tensor::f_from_slice(&slots)?.f_to_device(device)?,
        })
    }

    fn pad(&self, rows: &Tensor) -> Result<Tensor> {
        let [_, heads, head_dim] = rows.size3()?.into();
        let padded = rows.f_index_select(0, &self.packed)?;
        Ok(padded
            .f_view([self.sequences, self.longest, heads, head_dim])?
            .f_transpose(1, 2)?)
    }
}

/// Softmax attention with grouped queries: `queries` `[tokens, heads, head_dim]`, `keys` and `values`
/// `[tokens, kv_heads, head_dim]`, to `[tokens, heads, head_dim]`.
///
/// # Errors
/// When libtorch fails.
pub fn attend(queries: &Tensor, keys: &Tensor, values: &Tensor, ragged: &Ragged) -> Result<Tensor> {
    let [tokens, heads, head_dim] = queries.size3()?.into();
    let group = heads / keys.size3()?.1;
    let spread = |rows: &Tensor| {
        if group == 1 {
            Ok(rows.shallow_clone())
        } else {
            rows.f_repeat_interleave_self_int(group, 1, None)
        }
    };
    let mixed = Tensor::f_scaled_dot_product_attention::<&Tensor>(
        &ragged.pad(queries)?,
        &ragged.pad(&spread(keys)?)?,
        &ragged.pad(&spread(values)?)?,
        None,
        0.0,
        true,
        None,
        false,
    )?;
    let rows = mixed
        .f_transpose(1, 2)?
        .f_reshape([ragged.sequences * ragged.longest, heads, head_dim])?;
    Ok(rows
        .f_index_select(0, &ragged.slots)?
        .f_view([tokens, heads, head_dim])?)
}
