//! Flash attention over packed sequences (`native/flash.cpp`): the kernel is libtorch_cuda's.

use std::ffi::c_char;
use std::ptr::{null, null_mut};

use anyhow::{Context, Result};
use tch::Tensor;

use super::message::checked;
use super::training::{Handle, Output, handle};

unsafe extern "C" {
    fn ppo_flash_attention(
        queries: Handle,
        keys: Handle,
        values: Handle,
        cu_q: Handle,
        cu_k: Handle,
        used_k: Handle,
        max_q: i64,
        max_k: i64,
        causal: bool,
        output: Output,
        lse: Output,
    ) -> *mut c_char;
}

/// Queries, keys and values of several sequences, packed.
#[derive(Debug)]
pub struct Packed<'a> {
    /// `[rows, heads, head_dim]`.
    pub queries: &'a Tensor,
    /// `[key rows, kv_heads, head_dim]`.
    pub keys: &'a Tensor,
    /// As `keys`.
    pub values: &'a Tensor,
    /// First query row of each sequence, and the number of all; int32.
    pub cu_q: &'a Tensor,
    /// First key row of each sequence, and one number more; int32.
    pub cu_k: &'a Tensor,
    /// Keys of each sequence, int32; None: those up to the next sequence's first.
    pub used_k: Option<&'a Tensor>,
    /// Most queries of a sequence.
    pub max_q: i64,
    /// Most keys of a sequence.
    pub max_k: i64,
    /// Whether a sequence's query sees no later keys, its last one being beside its last key.
    pub causal: bool,
}

/// Softmax attention of each sequence by itself: output `[rows, heads, head_dim]`, and the logarithm of each query's sum of
/// exponentials, `[heads, rows]` in float32. A sequence without keys answers zeros; its logarithms mean nothing.
///
/// # Errors
/// When the tensors are not float16 or bfloat16 on an NVIDIA GPU of compute capability 8.0 or later, or a head has more than 256
/// dimensions.
pub fn attention(packed: &Packed) -> Result<(Tensor, Tensor)> {
    let (mut output, mut lse) = (null_mut(), null_mut());
    // SAFETY: the handles are of tensors that live through the call.
    checked(unsafe {
        ppo_flash_attention(
            handle(packed.queries),
            handle(packed.keys),
            handle(packed.values),
            handle(packed.cu_q),
            handle(packed.cu_k),
            packed.used_k.map_or(null(), handle),
            packed.max_q,
            packed.max_k,
            packed.causal,
            &raw mut output,
            &raw mut lse,
        )
    })
    .context("flash attention failed")?;
    // SAFETY: without an error the C++ side wrote two new tensors that are ours.
    Ok(unsafe { (Tensor::from_ptr(output.cast()), Tensor::from_ptr(lse.cast())) })
}
