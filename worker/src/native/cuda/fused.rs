//! The engine's own kernels (`native/cuda/fused.cpp`): each asked for on the calling thread's stream, without a wait, so that it can
//! be captured. They compute in float32 over bfloat16, and round where libtorch's operators do.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use anyhow::{Context, Result};
use libloading::Library;
use tch::Tensor;

use super::{Message, Shim};

type Handle = *const c_void;
type Output = *mut *mut c_void;

/// Most rows of a product.
pub const FEW: i64 = 2;

/// The library's functions.
#[derive(Debug)]
pub(super) struct Functions {
    norm: unsafe extern "C" fn(Handle, Handle, Handle, f64, Output) -> Message,
    heads: unsafe extern "C" fn(
        Handle,
        Handle,
        Handle,
        Handle,
        Handle,
        Handle,
        Handle,
        Handle,
        i64,
        i64,
        f64,
        Output,
    ) -> Message,
    merge: unsafe extern "C" fn(Handle, Handle, Handle, i64, i64, Output) -> Message,
    gate: unsafe extern "C" fn(Handle, Output) -> Message,
    product: unsafe extern "C" fn(Handle, Handle, Handle, Output) -> Message,
    gated_product: unsafe extern "C" fn(Handle, Handle, Output) -> Message,
    logits: unsafe extern "C" fn(Handle, Handle, Handle) -> Message,
    draw: unsafe extern "C" fn(Handle, Handle, Handle) -> Message,
}

impl Functions {
    /// # Safety
    /// The library is ours, of this version.
    pub unsafe fn of(library: &Library) -> Result<Self, libloading::Error> {
        // SAFETY: each symbol has the type that fused.cpp declares.
        unsafe {
            Ok(Self {
                norm: *library.get(b"ppo_cuda_norm\0")?,
                heads: *library.get(b"ppo_cuda_heads\0")?,
                merge: *library.get(b"ppo_cuda_merge\0")?,
                gate: *library.get(b"ppo_cuda_gate\0")?,
                product: *library.get(b"ppo_cuda_product\0")?,
                gated_product: *library.get(b"ppo_cuda_gated_product\0")?,
                logits: *library.get(b"ppo_cuda_logits\0")?,
                draw: *library.get(b"ppo_cuda_draw\0")?,
            })
        }
    }
}

/// Rows of queries, keys and values as one product makes them, and where they go.
#[derive(Debug)]
pub struct Heads<'a> {
    /// `[rows, (heads + 2 kv_heads) * head_dim]`.
    pub projected: &'a Tensor,
    /// Norms of each query and of each key head, `[head_dim]`.
    pub norms: Option<&'a [Tensor; 2]>,
    /// Radians per position, `[head_dim / 2]`, float32.
    pub frequencies: &'a Tensor,
    /// Of the rows in their sequences, int64.
    pub positions: &'a Tensor,
    /// Of the rows in the cache, int64.
    pub slots: &'a Tensor,
    /// Of the cache, `[positions, kv_heads, head_dim]`; written.
    pub keys: &'a Tensor,
    /// As `keys`.
    pub values: &'a Tensor,
    /// Of queries.
    pub heads: i64,
    /// How often each row's queries are wanted, by group and key head; 0 is once, in their own order.
    pub copies: i64,
    /// Of the norms.
    pub eps: f64,
}

fn handle(tensor: &Tensor) -> Handle {
    tensor.as_ptr().cast()
}

fn handle_or_null(tensor: Option<&Tensor>) -> Handle {
    tensor.map_or(null(), handle)
}

impl Shim {
    fn made(&self, call: impl FnOnce(Output) -> Message) -> Result<Tensor> {
        let mut output = null_mut();
        self.checked(call(&raw mut output))?;
        // SAFETY: without an error the library wrote a new tensor that is ours.
        Ok(unsafe { Tensor::from_ptr(output.cast()) })
    }

    /// Adds `delta` to `rows` (`[rows, hidden]`) in place, and gives their RMS norm.
    ///
    /// # Errors
    /// When the tensors are not as said, or CUDA fails.
    pub fn norm(&self, rows: &Tensor, delta: Option<&Tensor>, weight: &Tensor, eps: f64) -> Result<Tensor> {
        // SAFETY: (here and below) the handles are of tensors that live through the call.
        let made = self.made(|output| unsafe {
            (self.fused.norm)(handle(rows), handle_or_null(delta), handle(weight), eps, output)
        });
        made.context("the norm failed")
    }

    /// Writes keys and values to their slots and gives the queries, `[rows, heads, head_dim]`, with copies `[rows * copies * heads / kv_heads,
    /// kv_heads, head_dim]`.
    ///
    /// # Errors
    /// When the tensors are not as said, or CUDA fails.
    pub fn heads(&self, it: &Heads) -> Result<Tensor> {
        let [query_norm, key_norm] = it
            .norms
            .map_or([null(); 2], |[query, key]| [handle(query), handle(key)]);
        let made = self.made(|output| unsafe {
            (self.fused.heads)(
                handle(it.projected),
                query_norm,
                key_norm,
                handle(it.frequencies),
                handle(it.positions),
                handle(it.slots),
                handle(it.keys),
                handle(it.values),
                it.heads,
                it.copies,
                it.eps,
                output,
            )
        });
        made.context("queries, keys and values failed")
    }

    /// The answers of `blocks` blocks of each row (`[rows * blocks * group, kv_heads, head_dim]`) as one, `[rows, heads, head_dim]`, by their
    /// log-sum-exps (`[kv_heads, rows * blocks * group]`, float32). A block of which no keys are `used` (`[rows * blocks]`, int32) does not
    /// count.
    ///
    /// # Errors
    /// When the tensors are not as said, or CUDA fails.
    pub fn merge(&self, parts: &Tensor, lse: &Tensor, used: &Tensor, blocks: i64, group: i64) -> Result<Tensor> {
        let made = self.made(|output| unsafe {
            (self.fused.merge)(handle(parts), handle(lse), handle(used), blocks, group, output)
        });
        made.context("merging blocks failed")
    }

    /// The first half of each row through silu, times the second.
    ///
    /// # Errors
    /// When the tensor is not as said, or CUDA fails.
    pub fn gate(&self, both: &Tensor) -> Result<Tensor> {
        let made = self.made(|output| unsafe { (self.fused.gate)(handle(both), output) });
        made.context("the gate failed")
    }

    /// A few `rows` (`[rows, inputs]`) by a matrix (`[outputs, inputs]`), and a bias.
    ///
    /// # Errors
    /// When the tensors are not as said, there are more than [`FEW`] rows, or CUDA fails.
    pub fn product(&self, rows: &Tensor, matrix: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let made = self
            .made(|output| unsafe { (self.fused.product)(handle(rows), handle(matrix), handle_or_null(bias), output) });
        made.context("a product failed")
    }

    /// [`product`](Self::product) and [`gate`](Self::gate) in one.
    ///
    /// # Errors
    /// As those.
    pub fn gated_product(&self, rows: &Tensor, matrix: &Tensor) -> Result<Tensor> {
        let made = self.made(|output| unsafe { (self.fused.gated_product)(handle(rows), handle(matrix), output) });
        made.context("a product failed")
    }

    /// [`product`](Self::product) into `logits`, float32.
    ///
    /// # Errors
    /// As that.
    pub fn logits(&self, rows: &Tensor, matrix: &Tensor, logits: &Tensor) -> Result<()> {
        let made = self.checked(unsafe { (self.fused.logits)(handle(rows), handle(matrix), handle(logits)) });
        made.context("the output head failed")
    }

    /// Draws from rows of `logits` (`[rows, vocab]`, float32) into `drawn` (`[draws]`, int64). Both of `draws` (`[draws, 2]`, int64) and `drawn`
    /// are structures of `native/cuda/kernels.h`.
    ///
    /// # Errors
    /// When the tensors are not as said, or CUDA fails.
    pub fn draw(&self, logits: &Tensor, draws: &Tensor, drawn: &Tensor) -> Result<()> {
        let drew = self.checked(unsafe { (self.fused.draw)(handle(logits), handle(draws), handle(drawn)) });
        drew.context("drawing failed")
    }
}
