//! What a layer computes beside its attention: by libtorch's operators, on any device in any precision ([`operators`]), or by
//! kernels of our own, each of which does what takes several of those ([`fused`]). Which of them is chosen once, when the runner
//! is made.

pub(super) mod fused;
pub(super) mod operators;

use std::fmt::Debug;

use anyhow::Result;
use tch::Tensor;

use super::kernel::Heads;
use super::rotary::Rotary;

/// The residual stream of a pass: rows, and what the last layer gave and is not yet added to them. Both `[rows, hidden]`.
#[derive(Debug)]
pub(super) struct Stream {
    pub rows: Tensor,
    pub delta: Option<Tensor>,
}

impl Stream {
    /// Some of its rows.
    pub fn chosen(&self, rows: &Tensor) -> Result<Self> {
        let chosen = |all: &Tensor| all.f_index_select(0, rows);
        Ok(Self {
            rows: chosen(&self.rows)?,
            delta: self.delta.as_ref().map(chosen).transpose()?,
        })
    }
}

/// Queries, keys and values as one product makes them, and where they go.
#[derive(Debug)]
pub(super) struct Projected<'a> {
    /// `[rows, (heads + 2 kv_heads) * head_dim]`.
    pub rows: &'a Tensor,
    /// Norms of each query and of each key head.
    pub norms: Option<&'a [Tensor; 2]>,
    pub eps: f64,
    pub rotary: &'a Rotary,
    /// Of the rows in the cache, `[rows]`.
    pub slots: &'a Tensor,
    /// A layer's keys and values, `[positions, kv_heads, head_dim]`.
    pub cache: (&'a Tensor, &'a Tensor),
    pub heads: Heads,
    /// How attention wants the queries.
    pub layout: Layout,
}

/// An order of queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// `[rows, heads, head_dim]`.
    Rows,
    /// Each row's once for each of so many blocks, by their place among those that share a key head: `[rows * blocks * group, kv_heads,
    /// head_dim]`.
    Blocks(i64),
}

/// Answers of flash attention over the blocks of sequences.
#[derive(Debug)]
pub(super) struct Parts<'a> {
    /// `[rows * blocks * group, kv_heads, head_dim]`.
    pub answers: &'a Tensor,
    /// Logarithms of their sums, `[kv_heads, rows * blocks * group]`, float32.
    pub lse: &'a Tensor,
    /// Keys of each (row, block), `[rows * blocks]`, int32: a block that has none does not count, whatever it answered.
    pub used: &'a Tensor,
    pub blocks: i64,
    pub heads: Heads,
}

pub(super) trait Steps: Debug {
    /// Adds what is not yet added to the stream, and gives its RMS norm.
    fn norm(&self, stream: &mut Stream, weight: &Tensor, eps: f64) -> Result<Tensor>;

    /// Norms of heads, rotary positions; keys and values to the cache; the queries.
    fn heads(&self, projected: &Projected) -> Result<Tensor>;

    /// The blocks' answers as one, `[rows, heads, head_dim]`: weighted by the softmax of their log-sum-exps.
    fn merge(&self, parts: &Parts) -> Result<Tensor>;

    /// Rows (`[rows, inputs]`) by a matrix (`[outputs, inputs]`).
    fn product(&self, rows: &Tensor, matrix: &Tensor, bias: Option<&Tensor>) -> Result<Tensor>;

    /// The same by gate and up in one matrix: gate through silu, times up.
    fn gated(&self, rows: &Tensor, gate_up: &Tensor) -> Result<Tensor>;

    /// The same by the output head, into `logits` (`[rows, vocab]`, float32).
    fn logits(&self, rows: &Tensor, head: &Tensor, logits: &Tensor) -> Result<()>;
}
