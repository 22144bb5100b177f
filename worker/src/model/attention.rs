//! Causal self-attention of packed sequences.

use anyhow::Result;
use tch::{Kind, Tensor};

use super::config::ModelConfig;
use super::linear::Linear;
use super::norm::RmsNorm;
use super::rope::Rotation;
use super::weights::Weights;

/// Longest sequence for which bfloat16 attention holds its whole score matrices. In bfloat16 libtorch's fused attention
/// multiplies in tiles that each cost oneDNN more than their arithmetic: forward and backward together take eight times as
/// long. Beyond this length the matrices would outgrow the layer's other activations.
const WHOLE_SCORES: i64 = 512;

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

    /// The same tensors: nothing is copied.
    #[must_use]
    pub fn shallow_clone(&self) -> Self {
        Self {
            query: self.query.shallow_clone(),
            key: self.key.shallow_clone(),
            value: self.value.shallow_clone(),
            output: self.output.shallow_clone(),
            norms: self
                .norms
                .as_ref()
                .map(|(query, key)| (query.shallow_clone(), key.shallow_clone())),
            ..*self
        }
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
    /// Padded slot of each packed row, `[rows]`; filler rows after the tokens read slot 0, and nobody reads them.
    slots: Tensor,
}

impl Ragged {
    /// The layout of sequences of these lengths, with filler after them up to `rows` packed rows.
    ///
    /// # Errors
    /// When libtorch fails.
    pub fn new(lengths: &[usize], rows: usize, device: tch::Device) -> Result<Self> {
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let mut packed = vec![0; lengths.len() * longest];
        let mut slots = Vec::with_capacity(rows);
        for (sequence, length) in lengths.iter().enumerate() {
            for position in 0..*length {
                let slot = sequence * longest + position;
                packed[slot] = slots.len() as i64;
                slots.push(slot as i64);
            }
        }
        slots.resize(rows, 0);
        Ok(Self {
            sequences: lengths.len() as i64,
            longest: longest as i64,
            packed: Tensor::f_from_slice(&packed)?.f_to_device(device)?,
            slots: Tensor::f_from_slice(&slots)?.f_to_device(device)?,
        })
    }

    /// The same tensors: nothing is copied.
    #[must_use]
    pub fn shallow_clone(&self) -> Self {
        Self {
            packed: self.packed.shallow_clone(),
            slots: self.slots.shallow_clone(),
            ..*self
        }
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
    let [rows, heads, head_dim] = queries.size3()?.into();
    let padded = if queries.kind() == Kind::BFloat16 && ragged.longest <= WHOLE_SCORES {
        whole_scores(queries, keys, values, ragged)?
    } else {
        fused(queries, keys, values, ragged)?
    };
    let padded = padded
        .f_transpose(1, 2)?
        .f_reshape([ragged.sequences * ragged.longest, heads, head_dim])?;
    Ok(padded
        .f_index_select(0, &ragged.slots)?
        .f_view([rows, heads, head_dim])?)
}

/// Both forms of attention: packed rows to `[sequences, heads, longest, head_dim]`. This one holds no score matrix.
fn fused(queries: &Tensor, keys: &Tensor, values: &Tensor, ragged: &Ragged) -> Result<Tensor> {
    let group = queries.size3()?.1 / keys.size3()?.1;
    let spread = |rows: &Tensor| {
        if group == 1 {
            Ok(rows.shallow_clone())
        } else {
            rows.f_repeat_interleave_self_int(group, 1, None)
        }
    };
    Ok(Tensor::f_scaled_dot_product_attention::<&Tensor>(
        &ragged.pad(queries)?,
        &ragged.pad(&spread(keys)?)?,
        &ragged.pad(&spread(values)?)?,
        None,
        0.0,
        true,
        None,
        false,
    )?)
}

/// The heads that share a key are rows of one product, so keys and values are not repeated. The softmax is computed in
/// float32 and, as in transformers' eager attention, reads and writes the model's precision.
fn whole_scores(queries: &Tensor, keys: &Tensor, values: &Tensor, ragged: &Ragged) -> Result<Tensor> {
    let [_, heads, head_dim] = queries.size3()?.into();
    let kv_heads = keys.size3()?.1;
    let (sequences, longest, group) = (ragged.sequences, ragged.longest, heads / kv_heads);
    let products = |rows: &Tensor, heads_together: i64| {
        ragged
            .pad(rows)?
            .f_reshape([sequences * kv_heads, heads_together * longest, head_dim])
            .map_err(anyhow::Error::from)
    };
    let scaled = queries.f_mul_scalar((head_dim as f64).powf(-0.5))?;
    let scores = products(&scaled, group)?.f_bmm(&products(keys, 1)?.f_transpose(1, 2)?)?;
    let future = Tensor::f_full([longest, longest], f64::NEG_INFINITY, (scores.kind(), scores.device()))?.f_triu(1)?;
    let weights = scores
        .f_view([sequences * kv_heads, group, longest, longest])?
        .f_add(&future)?
        .f_softmax(-1, scores.kind())?
        .f_view([sequences * kv_heads, group * longest, longest])?;
    Ok(weights
        .f_bmm(&products(values, 1)?)?
        .f_view([sequences, heads, longest, head_dim])?)
}
