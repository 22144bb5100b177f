//! How attention reads the cache.

use anyhow::Result;
use tch::{Device, Kind, Tensor};

use crate::native::decoder_shape::DecoderShape;
use crate::native::flash::{self, Packed};

/// Attention over packed sequences, with the logarithms of its sums: [`flash::attention`], or in tests what computes the same.
pub(super) type Varlen = fn(&Packed) -> Result<(Tensor, Tensor)>;

/// Positions of a block that is gathered; as the native runner's.
const GATHERED_BLOCK: usize = 16;
/// Positions of a block that flash attention reads in place. It is what its paged kernels want (a multiple of 256; torch 2.12
/// and later). torch 2.11 has none: here each block is a sequence of its own for the kernel ([`super::blockwise`]), so a
/// smaller one would mean more partial results to merge, and a larger one less room to spread a long sequence over the device.
const FLASH_BLOCK: usize = 256;
/// FlashAttention 2 needs compute capability 8.0, heads of a multiple of 8 dimensions, and at most 256.
const FLASH_HEAD: usize = 256;

/// Sequences that one call of flash attention takes: they are the second dimension of the kernel's grid
/// (`run_flash_fwd` of `flash_fwd_launch_template.h` in FlashAttention 2), of which CUDA has at most so many.
const FLASH_SEQUENCES: i64 = 65_535;

/// How attention reads the cache.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    pub(super) block_size: usize,
    /// None: blocks are gathered, and `scaled_dot_product_attention` runs over the copy.
    pub(super) flash: Option<Flash>,
}

/// Attention over packed sequences, and how many of them a call takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flash {
    pub varlen: Varlen,
    pub most_sequences: i64,
}

impl Kernel {
    /// The fastest on a device for a shape: flash attention for bfloat16 on NVIDIA GPUs since Ampere, else gathered blocks.
    pub fn of(shape: &DecoderShape, device: Device) -> Self {
        let fits = shape.kind == Kind::BFloat16 && shape.head_dim.is_multiple_of(8) && shape.head_dim <= FLASH_HEAD;
        // Older GPUs than Ampere are refused when the process settles its device.
        if fits && matches!(device, Device::Cuda(_)) {
            return Self::flash(flash::attention);
        }
        Self {
            block_size: GATHERED_BLOCK,
            flash: None,
        }
    }

    pub(super) fn flash(varlen: Varlen) -> Self {
        Self {
            block_size: FLASH_BLOCK,
            flash: Some(Flash {
                varlen,
                most_sequences: FLASH_SEQUENCES,
            }),
        }
    }

    /// Positions one block of the cache holds.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Bytes one block of the cache takes in all layers.
    pub fn block_bytes(&self, shape: &DecoderShape) -> usize {
        2 * shape.layers * shape.kv_heads * shape.head_dim * self.block_size * shape.kind.elt_size_in_bytes()
    }
}

/// Heads of the attention, as libtorch counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heads {
    pub queries: i64,
    pub keys: i64,
    pub dim: i64,
}

impl Heads {
    pub fn of(shape: &DecoderShape) -> Self {
        Self {
            queries: shape.heads as i64,
            keys: shape.kv_heads as i64,
            dim: shape.head_dim as i64,
        }
    }

    /// Query heads that share a key head.
    pub fn group(self) -> i64 {
        self.queries / self.keys
    }
}
