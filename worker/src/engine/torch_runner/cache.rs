//! The paged key/value cache as one tensor.

use anyhow::{Context, Result, ensure};
use tch::Tensor;

use super::Placement;
use crate::native::decoder_shape::DecoderShape;

/// Keys and values of all layers, and one more block than the scheduler knows of: filler rows write there.
#[derive(Debug)]
pub(super) struct Cache {
    /// `[layers, 2, positions, kv_heads, head_dim]`; block b holds positions from b times the block's size.
    all: Tensor,
    /// Keys and values of each layer, `[positions, kv_heads, head_dim]`: views.
    layers: Vec<(Tensor, Tensor)>,
    block_size: i64,
    num_blocks: usize,
}

impl Cache {
    pub fn new(shape: &DecoderShape, placement: &Placement) -> Result<Self> {
        let (num_blocks, block_size) = (placement.num_blocks, placement.kernel.block_size());
        let positions = i64::try_from((num_blocks + 1) * block_size)?;
        ensure!(
            positions < i64::from(i32::MAX),
            "a key/value cache of {num_blocks} blocks of {block_size} tokens exceeds 2^31 tokens"
        );
        let (layers, heads, dim) = (shape.layers as i64, shape.kv_heads as i64, shape.head_dim as i64);
        // Zeros, and not what the memory held: a kernel may multiply what it masks, and 0 times NaN is NaN.
        let all =
            Tensor::f_zeros([layers, 2, positions, heads, dim], (shape.kind, placement.device)).with_context(|| {
                format!(
                    "cannot make a key/value cache of {num_blocks} blocks of {block_size} tokens ({} MiB): lower \
                 roles.rollout.kvCacheMebibytes",
                    (placement.kernel.block_bytes(shape) * num_blocks) >> 20
                )
            })?;
        let views = |layer: i64| Ok((all.f_get(layer)?.f_get(0)?, all.f_get(layer)?.f_get(1)?));
        Ok(Self {
            layers: (0..layers).map(views).collect::<Result<_>>()?,
            all,
            block_size: block_size as i64,
            num_blocks,
        })
    }

    /// The block that filler rows write to.
    pub fn filler_block(placement: &Placement) -> i64 {
        placement.num_blocks as i64
    }

    /// Keys and values of a layer, `[positions, kv_heads, head_dim]`.
    pub fn layer(&self, layer: usize) -> Result<(&Tensor, &Tensor)> {
        let (keys, values) = self.layers.get(layer).context("the cache has fewer layers")?;
        Ok((keys, values))
    }

    pub fn copy_block(&self, from: u32, to: u32) -> Result<()> {
        let block = |number: u32| {
            ensure!(
                (number as usize) < self.num_blocks,
                "block {number} of a cache of {}",
                self.num_blocks
            );
            Ok(self
                .all
                .f_narrow(2, i64::from(number) * self.block_size, self.block_size)?)
        };
        Ok(block(to)?.f_copy_(&block(from)?)?)
    }
}
