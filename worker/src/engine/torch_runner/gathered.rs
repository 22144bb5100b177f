//! Attention over copies of the blocks, by `scaled_dot_product_attention`: for devices and precisions without flash attention.

use anyhow::Result;
use tch::{Kind, Tensor};

use super::groups::chosen;
use super::kernel::Heads;

/// Chunks of one length over as many blocks each; what is shorter is filled up, and masked.
#[derive(Debug)]
pub(super) struct Gathered {
    /// Rows of the batch, `[chunks * length]`; None: all of them in order.
    rows: Option<Tensor>,
    /// Blocks, `[chunks * blocks]`.
    table: Tensor,
    /// Which keys a row sees, `[chunks, 1, group * length, blocks * block size]`.
    mask: Tensor,
    /// Which keys no row of a chunk sees, `[chunks, blocks * block size, 1, 1]`: they are another sequence's, or what one left.
    unseen: Tensor,
    chunks: i64,
    length: i64,
    blocks: i64,
    block_size: i64,
    heads: Heads,
}

impl Gathered {
    /// `table` `[chunks, blocks]`; `positions` `[chunks, length]` of the rows in their sequences.
    pub fn new(
        rows: Option<Tensor>,
        table: &Tensor,
        positions: &Tensor,
        heads: Heads,
        block_size: i64,
    ) -> Result<Self> {
        let ((chunks, blocks), (_, length)) = (table.size2()?, positions.size2()?);
        let keys = Tensor::f_arange(blocks * block_size, (Kind::Int64, table.device()))?;
        let seen = keys.f_view([1, 1, -1])?.f_le_tensor(&positions.f_unsqueeze(-1)?)?;
        let unseen = seen.f_any_dim(1, false)?.f_logical_not()?.f_view([chunks, -1, 1, 1])?;
        let of_group = [chunks, heads.group(), length, blocks * block_size];
        Ok(Self {
            rows,
            table: table.f_reshape([-1])?,
            mask: seen.f_unsqueeze(1)?.f_expand(of_group, false)?.f_reshape([
                chunks,
                1,
                heads.group() * length,
                blocks * block_size,
            ])?,
            unseen,
            chunks,
            length,
            blocks,
            block_size,
            heads,
        })
    }

    /// `queries` `[rows of the batch, heads, head_dim]` over a layer's cache, to `[chunks * length, heads, head_dim]`.
    pub fn attend(&self, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
        let Heads { keys: kv, dim, .. } = self.heads;
        let (n, length, group) = (self.chunks, self.length, self.heads.group());
        let chosen = chosen(queries, self.rows.as_ref())?;
        // The heads that share a key head are as many rows more: no key is repeated.
        let chosen = chosen
            .f_reshape([n, length, kv, group, dim])?
            .f_permute([0, 2, 3, 1, 4])?
            .f_reshape([n, kv, group * length, dim])?;
        // What is masked is multiplied before: what a sequence without a distribution left there is NaN, and 0 times NaN is NaN.
        let pages = |all: &Tensor| {
            all.f_view([-1, self.block_size, kv, dim])?
                .f_index_select(0, &self.table)?
                .f_view([n, self.blocks * self.block_size, kv, dim])?
                .f_masked_fill_(&self.unseen, 0)?
                .f_transpose(1, 2)
        };
        let (keys, values) = (pages(keys)?, pages(values)?);
        let mask = Some(&self.mask);
        let mixed = Tensor::f_scaled_dot_product_attention(&chosen, &keys, &values, mask, 0.0, false, None, false)?;
        Ok(mixed
            .f_view([n, kv, group, length, dim])?
            .f_permute([0, 3, 1, 2, 4])?
            .f_reshape([n * length, kv * group, dim])?)
    }
}
