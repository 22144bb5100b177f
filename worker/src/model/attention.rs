//! Causal self-attention of packed sequences.

use anyhow::Result;
use tch::Tensor;

use super::config::ModelConfig;
use super::linear::Linear;
use super::norm::RmsNorm;
use super::rope::Rotation;
use super::weights::Weights;
use crate::native::training::{self, Front};

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

    /// `[tokens, hidden]` to what all heads give, `[tokens, heads * head_dim]`; a token attends to itself and the tokens before it in
    /// its sequence.
    ///
    /// # Errors
    /// When libtorch fails, as when memory runs out.
    pub fn mix(&self, input: Front, rotation: &Rotation, ragged: &Ragged) -> Result<Tensor> {
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
        Ok(mixed.f_view([-1, self.heads * self.head_dim])?)
    }

    /// What the heads give, `[rows, heads * head_dim]`, to `[rows, hidden]`.
    ///
    /// # Errors
    /// When libtorch fails, as when memory runs out.
    pub fn project(&self, mixed: &Tensor) -> Result<Tensor> {
        self.output.forward(mixed)
    }
}

/// Which packed rows are a sequence.
#[derive(Debug)]
pub struct Ragged {
    lengths: Vec<i64>,
    /// First row of each sequence, and the one after the last: `[sequences + 1]`, int32.
    boundaries: Tensor,
}

impl Ragged {
    /// Sequences of these lengths one after the other; `boundaries` says the same to the device that computes.
    pub fn new(lengths: &[usize], boundaries: Tensor) -> Self {
        Self {
            lengths: lengths.iter().map(|length| *length as i64).collect(),
            boundaries,
        }
    }

    /// The same tensors: nothing is copied.
    #[must_use]
    pub fn shallow_clone(&self) -> Self {
        Self {
            lengths: self.lengths.clone(),
            boundaries: self.boundaries.shallow_clone(),
        }
    }
}

/// Softmax attention with grouped queries: `queries` `[rows, heads, head_dim]`, `keys` and `values`
/// `[rows, kv_heads, head_dim]`, to `[rows, heads, head_dim]`.
///
/// # Errors
/// When libtorch fails.
pub fn attend(queries: &Tensor, keys: &Tensor, values: &Tensor, ragged: &Ragged) -> Result<Tensor> {
    training::attention(queries, keys, values, &ragged.lengths, &ragged.boundaries)
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;
    use crate::model::TokenBatch;
    use crate::native::random;

    fn ragged(lengths: &[usize]) -> Ragged {
        let sequences: Vec<Vec<u32>> = lengths.iter().map(|length| vec![0; *length]).collect();
        Ragged::new(lengths, TokenBatch::new(&sequences).unwrap().boundaries)
    }

    /// Outputs and gradients of queries, keys and values under a fixed gradient of the output, in float64.
    fn outcome(kind: Kind, lengths: &[usize], compute: impl Fn(&[Tensor], &Ragged) -> Tensor) -> Vec<Tensor> {
        let tokens: usize = lengths.iter().sum();
        let rows = tokens + 3;
        let normal = |heads: i64| Tensor::randn([rows as i64, heads, 20], (Kind::Float, Device::Cpu)).to_kind(kind);
        let (inputs, direction) = random::seeded(5, || {
            let inputs: Vec<Tensor> = [6, 2, 2].map(|heads| normal(heads).set_requires_grad(true)).into();
            (inputs, normal(6).to_kind(Kind::Double))
        });
        let output = compute(&inputs, &ragged(lengths));
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
                attend(&queries, &keys, &values, ragged).unwrap()
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
        let beside = |q: &[Tensor], _: &Ragged| {
            let twice = |tensor: &Tensor| Tensor::cat(&[tensor.narrow(0, 0, 70), tensor.narrow(0, 0, 70)], 0);
            let both = ragged(&[70, 70]);
            let output = attend(&twice(&q[0]), &twice(&q[1]), &twice(&q[2]), &both).unwrap();
            let filler = q[0].size()[0] - 70;
            output.narrow(0, 70, 70).constant_pad_nd([0, 0, 0, 0, 0, filler])
        };
        let beside = outcome(Kind::Float, &[70], beside);
        assert!(alone.iter().zip(&beside).all(|(a, b)| a.equal(b)));
    }
}
