//! Attention of single rows over paged blocks by a kernel that knows no pages.
//!
//! libtorch 2.11's flash attention takes the place of each sequence's keys and their number, but no table of blocks. So each (row,
//! block) is a sequence of its own for it, and the blocks' answers are merged by their log-sum-exps as flash decoding merges its
//! splits (<https://pytorch.org/blog/flash-decoding/>): the answer is the average of the blocks' answers, weighted by the
//! softmax of their log-sum-exps. A sequence's blocks are computed side by side, and each answer depends on its row and block alone.
//!
//! The query heads that share a key head are given as as many rows of one head. That reads each key once, and keeps the kernel
//! from splitting the keys itself (which it does for one row of several heads, by a rule that depends on the batch).

use anyhow::Result;
use tch::{Kind, Tensor};

use super::groups::chosen;
use super::kernel::{Flash, Heads};
use crate::native::flash::Packed;

/// One row a sequence, each over as many blocks; those past its position hold no keys for it.
#[derive(Debug)]
pub(super) struct Blockwise {
    /// Rows of the batch; None: all of them in order.
    rows: Option<Tensor>,
    /// Query rows of each (row, block), `[rows * blocks + 1]`, int32.
    cu_q: Tensor,
    /// First key of each (row, block) in the cache, `[rows * blocks + 1]`, int32.
    cu_k: Tensor,
    /// Keys of each (row, block), `[rows * blocks]`, int32.
    used: Tensor,
    /// Which of them have none, `[rows, blocks, 1, 1]`.
    absent: Tensor,
    count: i64,
    blocks: i64,
    block_size: i64,
    heads: Heads,
    flash: Flash,
}

impl Blockwise {
    /// `table` `[rows, blocks]`; `positions` `[rows, 1]` of the rows in their sequences. Only operators that can be captured.
    pub fn new(
        rows: Option<Tensor>,
        table: &Tensor,
        positions: &Tensor,
        heads: Heads,
        block_size: i64,
        flash: Flash,
    ) -> Result<Self> {
        let (count, blocks) = table.size2()?;
        let integers = (Kind::Int64, table.device());
        let firsts = Tensor::f_arange_start_step(0, blocks * block_size, block_size, integers)?;
        // Position p sees p + 1 keys.
        let used = positions.f_add_scalar(1)?.f_sub(&firsts)?.f_clamp(0, block_size)?;
        let starts = table.f_reshape([-1])?.f_mul_scalar(block_size)?;
        let starts = Tensor::f_cat(&[starts, Tensor::f_zeros([1], integers)?], 0)?;
        let step = heads.group();
        let cu_q = Tensor::f_arange_start_step(0, (count * blocks + 1) * step, step, integers)?;
        Ok(Self {
            rows,
            cu_q: cu_q.f_to_kind(Kind::Int)?,
            cu_k: starts.f_to_kind(Kind::Int)?,
            absent: used.f_eq(0)?.f_view([count, blocks, 1, 1])?,
            used: used.f_to_kind(Kind::Int)?.f_reshape([-1])?,
            count,
            blocks,
            block_size,
            heads,
            flash,
        })
    }

    /// `queries` `[rows of the batch, heads, head_dim]` over a layer's cache, to `[rows, heads, head_dim]`.
    pub fn attend(&self, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
        let chosen = chosen(queries, self.rows.as_ref())?;
        // As many rows a call as the kernel takes (row, block)s.
        let at_once = (self.flash.most_sequences / self.blocks).max(1);
        let firsts = (0..self.count).step_by(usize::try_from(at_once)?);
        let answers = firsts.map(|first| {
            let count = at_once.min(self.count - first);
            self.attend_rows(&chosen.f_narrow(0, first, count)?, first, keys, values)
        });
        Ok(Tensor::f_cat(&answers.collect::<Result<Vec<_>>>()?, 0)?)
    }

    /// The same of the rows from `first` on, `[n, heads, head_dim]`.
    fn attend_rows(&self, queries: &Tensor, first: i64, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
        let Heads { keys: kv, dim, .. } = self.heads;
        let (n, blocks, group) = (queries.size3()?.0, self.blocks, self.heads.group());
        let rows = queries
            .f_reshape([n, 1, kv, group, dim])?
            .f_transpose(2, 3)?
            .f_expand([n, blocks, group, kv, dim], false)?
            .f_reshape([n * blocks * group, kv, dim])?;
        let (parts, lse) = (self.flash.varlen)(&Packed {
            queries: &rows,
            keys,
            values,
            // Each (row, block) has as many queries: the first of them are at the same places whichever they are.
            cu_q: &self.cu_q.f_narrow(0, 0, n * blocks + 1)?,
            cu_k: &self.cu_k.f_narrow(0, first * blocks, n * blocks + 1)?,
            used_k: Some(&self.used.f_narrow(0, first * blocks, n * blocks)?),
            max_q: group,
            max_k: self.block_size,
            causal: false,
        })?;
        let parts = parts.f_view([n, blocks, group, kv, dim])?;
        let mixed = if blocks == 1 {
            parts.f_squeeze_dim(1)?
        } else {
            self.merge(&parts, &lse, &self.absent.f_narrow(0, first, n)?)?
                .f_to_kind(queries.kind())?
        };
        Ok(mixed.f_transpose(1, 2)?.f_reshape([n, kv * group, dim])?)
    }

    /// The blocks' answers (`[rows, blocks, group, kv_heads, head_dim]`) as one, float32. `lse` is `[kv_heads, rows * blocks * group]`,
    /// `absent` `[rows, blocks, 1, 1]`.
    fn merge(&self, parts: &Tensor, lse: &Tensor, absent: &Tensor) -> Result<Tensor> {
        let (n, blocks, group) = (parts.size()[0], self.blocks, self.heads.group());
        // A block without keys answers +infinity (FlashAttention 2) or -infinity: neither counts.
        let weights = lse
            .f_view([self.heads.keys, n, blocks, group])?
            .f_permute([1, 2, 3, 0])?
            .f_masked_fill(absent, f64::NEG_INFINITY)?
            .f_softmax(1, Kind::Float)?;
        let weighted = parts.f_mul(&weights.f_unsqueeze(-1)?)?;
        Ok(weighted.f_sum_dim_intlist([1i64].as_slice(), false, Kind::Float)?)
    }
}
