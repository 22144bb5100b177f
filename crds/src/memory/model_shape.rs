//! A decoder's shape: what its parameters, activations and cache take follows from it.

use super::{FLOAT32, bytes};
use crate::spec::{AdapterSpec, DType, Projection};

/// The numbers of a decoder's config.json that decide its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelShape {
    /// `hidden_size`.
    pub hidden: u64,
    /// `num_hidden_layers`.
    pub layers: u64,
    /// `num_attention_heads`.
    pub heads: u64,
    /// `num_key_value_heads`.
    pub kv_heads: u64,
    /// `head_dim`, or `hidden_size / num_attention_heads`.
    pub head_dim: u64,
    /// `intermediate_size`.
    pub intermediate: u64,
    /// `vocab_size`.
    pub vocab: u64,
    /// `tie_word_embeddings`.
    pub tied: bool,
    /// Whether the q, k and v projections have a bias (Qwen2).
    pub qkv_bias: bool,
    /// Whether the query and key of each head have a norm (Qwen3).
    pub qk_norm: bool,
}

/// Multiprocessors of an H100 or H200; an A100 has 108, a B200 148.
const MULTIPROCESSORS: u64 = 132;

/// Rows between two sequences in the accumulators of the attention's backward pass.
const ROWS_APART: u64 = 128;

impl ModelShape {
    /// Parameters with the language-model head.
    pub fn parameters(&self) -> u64 {
        let head = if self.tied {
            0
        } else {
            product(&[self.vocab, self.hidden])
        };
        self.trunk_parameters().saturating_add(head)
    }

    /// Parameters without a head: a critic's or reward model's, but for its one output.
    pub fn trunk_parameters(&self) -> u64 {
        let (query, key_value) = (self.query_width(), self.key_value_width());
        let qkv = query.saturating_add(key_value.saturating_mul(2));
        let attention = product(&[self.hidden, qkv.saturating_add(query)]);
        let bias = if self.qkv_bias { qkv } else { 0 };
        let mlp = product(&[3, self.hidden, self.intermediate]);
        let norms = self.hidden.saturating_mul(2);
        let qk_norms = if self.qk_norm {
            self.head_dim.saturating_mul(2)
        } else {
            0
        };
        let layer = sum(&[attention, bias, mlp, norms, qk_norms]);
        sum(&[
            product(&[self.vocab, self.hidden]),
            product(&[self.layers, layer]),
            self.hidden,
        ])
    }

    /// Parameters of an adapter: `rank` rows and columns at each target of each layer.
    pub fn adapter_parameters(&self, adapter: &AdapterSpec) -> u64 {
        let widths = adapter.targets.iter().map(|target| {
            let (input, output) = self.projection(*target);
            input.saturating_add(output)
        });
        let layer = widths.fold(0, u64::saturating_add);
        product(&[u64::from(adapter.rank), self.layers, layer])
    }

    /// Input and output width of a projection.
    fn projection(&self, projection: Projection) -> (u64, u64) {
        match projection {
            Projection::Query => (self.hidden, self.query_width()),
            Projection::Key | Projection::Value => (self.hidden, self.key_value_width()),
            Projection::Output => (self.query_width(), self.hidden),
            Projection::Gate | Projection::Up => (self.hidden, self.intermediate),
            Projection::Down => (self.intermediate, self.hidden),
        }
    }

    /// Bytes that the backward pass of an adapter needs per token and layer besides what the layer keeps: each product's `x A^T` in
    /// float32, and the inputs in float32, which projections of one input share. Of these the layer has attention's output alone.
    pub(super) fn adapter_bytes_per_token(&self, adapter: &AdapterSpec, dtype: DType) -> u64 {
        use Projection::{Down, Gate, Key, Output, Query, Up, Value};
        let low = product(&[u64::from(adapter.rank), adapter.targets.len() as u64, FLOAT32]);
        let more = if dtype == DType::Float32 { 0 } else { FLOAT32 };
        let inputs: [(&[Projection], u64, u64); 4] = [
            (&[Query, Key, Value], self.hidden, FLOAT32),
            (&[Output], self.query_width(), more),
            (&[Gate, Up], self.hidden, FLOAT32),
            (&[Down], self.intermediate, FLOAT32),
        ];
        let wanted = inputs
            .iter()
            .filter(|(of, ..)| of.iter().any(|one| adapter.targets.contains(one)));
        wanted.fold(low, |sum, (_, width, each)| {
            sum.saturating_add(product(&[*width, *each]))
        })
    }

    /// Values of keys and values that a cache with so many `heads` of them keeps per token, over all layers.
    pub(super) fn cache_values_per_token(&self, heads: u64) -> u64 {
        product(&[2, self.layers, heads, self.head_dim])
    }

    /// Values of one layer per token: inputs of the two norms and of every product, the query, keys, values and output of attention,
    /// gate, up and their product.
    pub(super) fn layer_values_per_token(&self) -> u64 {
        let made_again = sum(&[product(&[2, self.hidden]), self.intermediate]);
        self.kept_values_per_token().saturating_add(made_again)
    }

    /// The same on one of `gpus` that share a layer: what the layer's two halves add to is on each of them whole, and what its norms give.
    pub(super) fn split_layer_values_per_token(&self, gpus: u64) -> u64 {
        let whole = product(&[4, self.hidden]);
        let split = self.layer_values_per_token().saturating_sub(whole);
        whole.saturating_add(split.div_ceil(gpus.max(1)))
    }

    /// Those that are kept for the backward pass, which makes what the norms gave, and the product of gate and up, once more. Norms of
    /// queries and keys keep what they were given.
    pub(super) fn kept_values_per_token(&self) -> u64 {
        let normed = if self.qk_norm {
            self.query_width().saturating_add(self.key_value_width())
        } else {
            0
        };
        sum(&[
            product(&[2, self.hidden]),
            product(&[2, self.query_width()]),
            product(&[2, self.key_value_width()]),
            product(&[2, self.intermediate]),
            normed,
        ])
    }

    /// Bytes that the backward pass of the feed-forward layer works with: the product of gate and up, its gradient, and theirs.
    pub(super) fn mlp_backward_bytes(&self, tokens: u64, dtype: DType) -> u64 {
        product(&[4, tokens, self.intermediate, bytes(dtype)])
    }

    /// Bytes that the backward pass of a GPU's attention over so many `sequences` works with. That of the feed-forward layer came before it,
    /// and has no more use for gate and up.
    pub(super) fn attention_backward_bytes(&self, tokens: u64, sequences: u64, dtype: DType) -> u64 {
        let (query, key_value) = (self.query_width(), self.key_value_width());
        // Of keys and values for each head of the queries: their gradients, and in float32 they themselves.
        let spread = match dtype {
            _ if self.heads == self.kv_heads => 0,
            DType::Bfloat16 => 2,
            DType::Float32 => 4,
        };
        // The gradient that comes, and those of queries, keys and values.
        let values = sum(&[
            product(&[2, query]),
            product(&[2, key_value]),
            product(&[spread, query]),
        ]);
        let gone = product(&[2, self.intermediate]);
        sum(&[
            product(&[tokens, values, bytes(dtype)]),
            self.query_accumulators(tokens, sequences, dtype),
        ])
        .saturating_sub(product(&[tokens, gone, bytes(dtype)]))
    }

    /// Bytes in which FlashAttention-2 adds up the gradient of the queries, in float32. To add in one order, the multiprocessors that share a
    /// head of a sequence have sums of their own (`nsplits` in `mha_varlen_bwd` of libtorch's `transformers/cuda/flash_attn/flash_api.cpp`).
    /// The kernel for float32 tensors has none.
    fn query_accumulators(&self, tokens: u64, sequences: u64, dtype: DType) -> u64 {
        if dtype == DType::Float32 {
            return 0;
        }
        let splits = MULTIPROCESSORS.div_ceil(product(&[sequences, self.heads]).max(1));
        let step = if self.head_dim <= 128 { 32 } else { 64 };
        let width = product(&[self.heads, self.head_dim.div_ceil(step), step]);
        let rows = tokens.saturating_add(product(&[ROWS_APART, sequences]));
        product(&[splits, rows, width, FLOAT32])
    }

    /// Numbers of the largest of its weights.
    pub(super) fn largest_weight(&self) -> u64 {
        product(&[self.hidden, self.vocab.max(self.intermediate)])
    }

    fn query_width(&self) -> u64 {
        product(&[self.heads, self.head_dim])
    }

    fn key_value_width(&self) -> u64 {
        product(&[self.kv_heads, self.head_dim])
    }
}

/// What overflows is as large as can be.
pub(super) fn product(factors: &[u64]) -> u64 {
    factors
        .iter()
        .fold(1, |product, factor| product.saturating_mul(*factor))
}

/// See [`product`].
pub(super) fn sum(terms: &[u64]) -> u64 {
    terms.iter().fold(0, |sum, term| sum.saturating_add(*term))
}
