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
use tch::Tensor;

use super::kernel::{Flash, Heads};
use super::steps::operators::arranged;
use super::steps::{Layout, Parts, Steps};
use crate::native::flash::Packed;

/// One row a sequence, each over as many blocks; those past its position hold no keys for it.
#[derive(Debug)]
pub(super) struct Blockwise {
    /// Rows of the batch; None: all of them in order, whose queries come as [`layout`](Self::layout) says.
    rows: Option<Tensor>,
    /// Query rows of each (row, block), `[rows * blocks + 1]`, int32.
    cu_q: Tensor,
    /// First key of each (row, block) in the cache, `[rows * blocks + 1]`, int32.
    cu_k: Tensor,
    /// Keys of each (row, block), `[rows * blocks]`, int32.
    used: Tensor,
    count: i64,
    blocks: i64,
    block_size: i64,
    heads: Heads,
    flash: Flash,
}

/// What [`Blockwise`] has to know of rows at `positions` in sequences of the blocks in `table` (of each row as many), as the host
/// tells it the device.
pub(super) fn numbers(positions: &[i64], table: &[i64], heads: Heads, block_size: i64) -> Vec<i32> {
    let blocks = table.len() / positions.len().max(1);
    let count = table.len() as i64;
    // A batch was checked: places in the cache are below 2^31.
    let first_queries = (0..=count).map(|i| i * heads.group());
    let first_keys = table.iter().map(|block| block * block_size).chain([0]);
    // Position p sees p + 1 keys.
    let used = positions.iter().flat_map(|position| {
        (0..blocks as i64).map(move |block| (position + 1 - block * block_size).clamp(0, block_size))
    });
    first_queries
        .chain(first_keys)
        .chain(used)
        .map(|number| number as i32)
        .collect()
}

/// How many [`numbers`] there are of so many rows over as many blocks each.
pub(super) fn count(rows: usize, blocks: usize) -> usize {
    3 * rows * blocks + 2
}

impl Blockwise {
    /// `numbers` of [`numbers`], of `count` rows.
    pub fn new(
        rows: Option<Tensor>,
        numbers: &Tensor,
        count: i64,
        heads: Heads,
        block_size: i64,
        flash: Flash,
    ) -> Result<Self> {
        let all = (numbers.size1()? - 2) / 3;
        Ok(Self {
            rows,
            cu_q: numbers.f_narrow(0, 0, all + 1)?,
            cu_k: numbers.f_narrow(0, all + 1, all + 1)?,
            used: numbers.f_narrow(0, 2 * all + 2, all)?,
            count,
            blocks: all / count.max(1),
            block_size,
            heads,
            flash,
        })
    }

    /// How queries are taken.
    pub fn layout(&self) -> Layout {
        match &self.rows {
            Some(_) => Layout::Rows,
            None => Layout::Blocks(self.blocks),
        }
    }

    /// Queries of the batch over a layer's cache, to `[rows, heads, head_dim]`.
    pub fn attend(&self, queries: &Tensor, keys: &Tensor, values: &Tensor, steps: &dyn Steps) -> Result<Tensor> {
        let chosen = match &self.rows {
            Some(rows) => arranged(
                &queries.f_index_select(0, rows)?,
                self.heads,
                Layout::Blocks(self.blocks),
            )?,
            None => queries.shallow_clone(),
        };
        // As many rows a call as the kernel takes (row, block)s.
        let at_once = (self.flash.most_sequences / self.blocks).max(1);
        if self.count <= at_once {
            return self.attend_rows(&chosen, 0, self.count, keys, values, steps);
        }
        let firsts = (0..self.count).step_by(usize::try_from(at_once)?);
        let answers = firsts.map(|first| {
            let (n, of_row) = (at_once.min(self.count - first), self.blocks * self.heads.group());
            let queries = chosen.f_narrow(0, first * of_row, n * of_row)?;
            self.attend_rows(&queries, first, n, keys, values, steps)
        });
        Ok(Tensor::f_cat(&answers.collect::<Result<Vec<_>>>()?, 0)?)
    }

    /// The same of `n` rows from `first` on.
    fn attend_rows(
        &self,
        queries: &Tensor,
        first: i64,
        n: i64,
        keys: &Tensor,
        values: &Tensor,
        steps: &dyn Steps,
    ) -> Result<Tensor> {
        let blocks = self.blocks;
        let used = self.used.f_narrow(0, first * blocks, n * blocks)?;
        let (answers, lse) = (self.flash.varlen)(&Packed {
            queries,
            keys,
            values,
            // Each (row, block) has as many queries: the first of them are at the same places whichever they are.
            cu_q: &self.cu_q.f_narrow(0, 0, n * blocks + 1)?,
            cu_k: &self.cu_k.f_narrow(0, first * blocks, n * blocks + 1)?,
            used_k: Some(&used),
            max_q: self.heads.group(),
            max_k: self.block_size,
            causal: false,
        })?;
        steps.merge(&Parts {
            answers: &answers,
            lse: &lse,
            used: &used,
            blocks,
            heads: self.heads,
        })
    }
}
