//! Causal self-attention of packed sequences.

use anyhow::Result;
use tch::Tensor;

use super::config::ModelConfig;
use super::linear::Linear;
use super::norm::RmsNorm;
use super::rope::Rotation;
use super::weights::Weights;
use crate::native::training;

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

    /// By their Hugging Face names.
    pub(super) fn projections_mut(&mut self) -> [(&'static str, &mut Linear); 4] {
        [
            ("q_proj", &mut self.query),
            ("k_proj", &mut self.key),
            ("v_proj", &mut self.value),
            ("o_proj", &mut self.output),
        ]
    }

    /// `[tokens, hidden]` to `[tokens, hidden]`; a token attends to itself and the tokens before it in its sequence.
    ///
    /// # Errors
    /// When libtorch fails, as when memory runs out.
    pub fn forward(&self, input: &Tensor, rotation: &Rotation, ragged: &Ragged) -> Result<Tensor> {
        let split = |rows: Tensor, heads: i64| rows.f_view([-1, heads, self.head_dim]);
        let [queries, keys, values] = Linear::forward_all([&self.query, &self.key, &self.value], input)?;
        let mut queries = split(queries, self.heads)?;
        let mut keys = split(keys, self.kv_heads)?;
        let values = split(values, self.kv_heads)?;
        if let Some((query_norm, key_norm)) = &self.norms {
            queries = query_norm.forward(&queries)?;
            keys = key_norm.forward(&keys)?;
        }
        let mixed = attend(&rotation.apply(&queries)?, &rotation.apply(&keys)?, &values, ragged)?;
        self.output.forward(&mixed.f_view([-1, self.heads * self.head_dim])?)
    }
}

/// Which packed rows are a sequence, and where they lie in a right-padded batch.
#[derive(Debug)]
pub struct Ragged {
    lengths: Vec<i64>,
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
            lengths: lengths.iter().map(|length| *length as i64).collect(),
            longest: longest as i64,
            packed: Tensor::f_from_slice(&packed)?.f_to_device(device)?,
            slots: Tensor::f_from_slice(&slots)?.f_to_device(device)?,
        })
    }

    /// The same tensors: nothing is copied.
    #[must_use]
    pub fn shallow_clone(&self) -> Self {
        Self {
            lengths: self.lengths.clone(),
            longest: self.longest,
            packed: self.packed.shallow_clone(),
            slots: self.slots.shallow_clone(),
        }
    }

    fn pad(&self, rows: &Tensor) -> Result<Tensor> {
        let [_, heads, head_dim] = rows.size3()?.into();
        let padded = rows.f_index_select(0, &self.packed)?;
        Ok(padded
            .f_view([self.lengths.len() as i64, self.longest, heads, head_dim])?
            .f_transpose(1, 2)?)
    }
}

/// Softmax attention with grouped queries: `queries` `[rows, heads, head_dim]`, `keys` and `values`
/// `[rows, kv_heads, head_dim]`, to `[rows, heads, head_dim]`.
///
/// # Errors
/// When libtorch fails.
pub fn attend(queries: &Tensor, keys: &Tensor, values: &Tensor, ragged: &Ragged) -> Result<Tensor> {
    if training::supports(queries) {
        return training::attention(queries, keys, values, &ragged.lengths);
    }
    stock(queries, keys, values, ragged)
}

/// libtorch's own, over padded sequences and repeated keys.
fn stock(queries: &Tensor, keys: &Tensor, values: &Tensor, ragged: &Ragged) -> Result<Tensor> {
    let [rows, heads, head_dim] = queries.size3()?.into();
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
    let padded = mixed.f_transpose(1, 2)?.f_reshape([-1, heads, head_dim])?;
    Ok(padded
        .f_index_select(0, &ragged.slots)?
        .f_view([rows, heads, head_dim])?)
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    /// Outputs and gradients of queries, keys and values under a fixed gradient of the output, in float64.
    fn outcome(kind: Kind, lengths: &[usize], compute: impl Fn(&[Tensor], &Ragged) -> Tensor) -> Vec<Tensor> {
        tch::manual_seed(5);
        let tokens: usize = lengths.iter().sum();
        let rows = tokens + 3;
        let normal = |heads: i64| Tensor::randn([rows as i64, heads, 20], (Kind::Float, Device::Cpu)).to_kind(kind);
        let inputs: Vec<Tensor> = [6, 2, 2].map(|heads| normal(heads).set_requires_grad(true)).into();
        let direction = normal(6).to_kind(Kind::Double);
        let output = compute(&inputs, &Ragged::new(lengths, rows, Device::Cpu).unwrap());
        let real = |tensor: &Tensor| tensor.narrow(0, 0, tokens as i64).to_kind(Kind::Double);
        (real(&output) * real(&direction)).sum(None).backward();
        let mut all = vec![real(&output).detach()];
        all.extend(inputs.iter().map(|input| real(&input.grad())));
        all
    }

    fn distance(ours: &Tensor, theirs: &Tensor) -> f64 {
        ((ours - theirs).abs().max() / theirs.abs().max()).double_value(&[])
    }

    fn compare(kind: Kind, tolerance: f64) {
        // Lengths around the blocks of 48 queries and the vectors of 16 keys.
        for lengths in [vec![1, 48, 16], vec![49, 2, 130, 17], vec![97]] {
            let ours = outcome(kind, &lengths, |q, ragged| attend(&q[0], &q[1], &q[2], ragged).unwrap());
            let wide = |q: &[Tensor], ragged: &Ragged| {
                let [queries, keys, values] = [0, 1, 2].map(|i| q[i].to_kind(Kind::Double));
                stock(&queries, &keys, &values, ragged).unwrap()
            };
            let theirs = outcome(kind, &lengths, wide);
            for (what, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
                let far = distance(ours, theirs);
                assert!(far < tolerance, "{kind:?} {lengths:?}, tensor {what}: {far}");
            }
        }
    }

    #[test]
    fn values_and_gradients_are_those_of_stock_attention_in_float64() {
        compare(Kind::Float, 1e-5);
    }

    #[test]
    fn in_bfloat16_only_inputs_and_results_are_rounded() {
        compare(Kind::BFloat16, 0.006);
    }

    #[test]
    fn a_sequence_is_the_same_to_the_bit_beside_others() {
        let alone = outcome(Kind::Float, &[70], |q, ragged| {
            attend(&q[0], &q[1], &q[2], ragged).unwrap()
        });
        let beside = |q: &[Tensor], ragged: &Ragged| {
            let twice = |tensor: &Tensor| Tensor::cat(&[tensor.narrow(0, 0, 70), tensor.narrow(0, 0, 70)], 0);
            let both = Ragged::new(&[70, 70], 140, Device::Cpu).unwrap();
            let output = attend(&twice(&q[0]), &twice(&q[1]), &twice(&q[2]), &both).unwrap();
            let filler = ragged.slots.size()[0] - 70;
            output.narrow(0, 70, 70).constant_pad_nd([0, 0, 0, 0, 0, filler])
        };
        let beside = outcome(Kind::Float, &[70], beside);
        assert!(alone.iter().zip(&beside).all(|(a, b)| a.equal(b)));
    }
}
