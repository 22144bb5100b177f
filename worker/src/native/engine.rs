//! The CPU decoder of the rollout engine (`worker/native/decoder*`): one call computes a ragged batch and draws from it.
//!
//! Weights, product inputs and the key/value cache have the storage type of the model; the residual stream, every sum and
//! the logits are float32. An output is one chain of multiply-adds in a fixed order, so a row's numbers depend neither on
//! the batch around it nor on chunking, block placement or the number of threads.

use std::ffi::{CStr, c_char};
use std::ptr::NonNull;

use anyhow::{Context, Result, bail, ensure};
use tch::Kind;

use super::batch::{Batch, Chunk, Draw, Drawn, check_draw};
use super::decoder_shape::DecoderShape;
use super::packed::{PackedWeights, RawWeights};

/// Positions one block of the key/value cache holds.
pub const BLOCK_SIZE: usize = 16;

impl DecoderShape {
    /// Bytes one block of the native runner's cache takes in all layers.
    pub fn native_block_bytes(&self) -> usize {
        let element = if self.kind == Kind::BFloat16 { 2 } else { 4 };
        let row = self.head_dim + self.head_dim.next_multiple_of(16);
        self.layers * self.kv_heads * row * BLOCK_SIZE * element
    }
}

#[repr(C)]
pub(super) struct RawShape {
    layers: i32,
    hidden: i32,
    heads: i32,
    kv_heads: i32,
    head_dim: i32,
    intermediate: i32,
    vocab: i32,
    max_positions: i32,
    bfloat16: i32,
    tied: i32,
    qkv_bias: i32,
    qk_norm: i32,
    num_blocks: i32,
    threads: i32,
    rms_eps: f32,
    inv_freq: *const f32,
}

/// The largest size: the kernels round sizes up, and add a few of them, in 32 bits.
const LARGEST: usize = i32::MAX as usize / 4;

impl RawShape {
    /// Sizes that the kernels can compute with. `inv_freq` points into `shape`.
    pub(super) fn of(shape: &DecoderShape, num_blocks: usize, threads: usize) -> Result<Self> {
        shape.check()?;
        ensure!(
            !shape.output_bias,
            "the native decoder does not compute a bias on the attention's output projection"
        );
        let int = |what: &str, n: usize| {
            let fits = i32::try_from(n).ok().filter(|_| n <= LARGEST);
            fits.with_context(|| format!("{what} is {n}: the native decoder computes with at most {LARGEST}"))
        };
        // The widest row of all: what a token's query, key and value projections make of it.
        let heads = shape
            .kv_heads
            .checked_mul(2)
            .and_then(|keys| keys.checked_add(shape.heads));
        let width = heads.and_then(|heads| heads.checked_mul(shape.head_dim));
        ensure!(
            width.is_some_and(|width| width <= LARGEST),
            "heads is {}, kv_heads {} and head_dim {}: (heads + 2 kv_heads) head_dim is more than {LARGEST}, the most that the native \
             decoder computes with",
            shape.heads,
            shape.kv_heads,
            shape.head_dim
        );
        Ok(Self {
            layers: int("layers", shape.layers)?,
            hidden: int("hidden", shape.hidden)?,
            heads: int("heads", shape.heads)?,
            kv_heads: int("kv_heads", shape.kv_heads)?,
            head_dim: int("head_dim", shape.head_dim)?,
            intermediate: int("intermediate", shape.intermediate)?,
            vocab: int("vocab", shape.vocab)?,
            max_positions: int("max_positions", shape.max_positions)?,
            bfloat16: (shape.kind == Kind::BFloat16).into(),
            tied: shape.tied.into(),
            qkv_bias: shape.qkv_bias.into(),
            qk_norm: shape.qk_norm.into(),
            num_blocks: int("num_blocks", num_blocks)?,
            threads: int("threads", threads.max(1))?,
            rms_eps: shape.rms_eps,
            inv_freq: shape.inv_freq.as_ptr(),
        })
    }
}

#[repr(C)]
struct RawBatch {
    tokens: *const i32,
    chunks: *const Chunk,
    blocks: *const i32,
    logit_rows: *const i32,
    draws: *const Draw,
    suppressed: *const i32,
    n_rows: i32,
    n_chunks: i32,
    n_logit_rows: i32,
    n_draws: i32,
}

#[repr(C)]
struct RawDecoder {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    fn decoder_new(shape: *const RawShape, error: *mut c_char, size: usize) -> *mut RawDecoder;
    fn decoder_free(decoder: *mut RawDecoder);
    fn decoder_sleep(decoder: *mut RawDecoder);
    fn decoder_forward(
        decoder: *mut RawDecoder,
        weights: *const RawWeights,
        batch: *const RawBatch,
        drawn: *mut Drawn,
        error: *mut c_char,
        size: usize,
    ) -> i32;
    fn decoder_copy_block(decoder: *mut RawDecoder, from: i32, to: i32);
    fn decoder_logits(decoder: *const RawDecoder, row: i32, out: *mut f32);
    fn decoder_sample(
        logits: *const f32,
        vocab: i32,
        draw: *const Draw,
        suppressed: *const i32,
        drawn: *mut Drawn,
        error: *mut c_char,
        size: usize,
    ) -> i32;
}

/// Draws from given logits `[vocab]` as [`Decoder::forward`] does. The draw's list is all of `suppressed`.
///
/// # Errors
/// When a suppressed token is outside the vocabulary or memory runs out.
pub fn sample(logits: &[f32], draw: &Draw, suppressed: &[i32]) -> Result<Drawn> {
    ensure!(!logits.is_empty(), "no logits to draw from");
    let vocab = i32::try_from(logits.len()).context("the vocabulary exceeds 2^31 tokens")?;
    let draw = Draw {
        first_suppressed: 0,
        suppressed: i32::try_from(suppressed.len())?,
        ..*draw
    };
    check_draw(&draw, suppressed, vocab)?;
    let mut drawn = Drawn::default();
    checked(|error, size| {
        // SAFETY: `logits` holds `vocab` floats; `check_draw` bounds every suppressed id and the draw's list.
        unsafe {
            decoder_sample(
                logits.as_ptr(),
                vocab,
                &draw,
                suppressed.as_ptr(),
                &mut drawn,
                error,
                size,
            )
        }
    })?;
    Ok(drawn)
}

/// A decoder with its cache; its weights are [`PackedWeights`].
#[derive(Debug)]
pub struct Decoder {
    handle: NonNull<RawDecoder>,
    shape: DecoderShape,
    num_blocks: usize,
    logit_rows: usize,
}

// SAFETY: the handle owns plain memory and nothing bound to the thread that made it; methods that write take `&mut self`.
unsafe impl Send for Decoder {}

impl Decoder {
    /// Reserves memory for a cache of `num_blocks` blocks. Cache pages take no memory until they are used.
    ///
    /// # Errors
    /// When the shape is not one the kernels know or memory runs out.
    pub fn new(shape: &DecoderShape, num_blocks: usize, threads: usize) -> Result<Self> {
        ensure!(num_blocks > 0, "the key/value cache needs at least one block");
        let raw = RawShape::of(shape, num_blocks, threads)?;
        let mut message = [0u8; 256];
        // SAFETY: `raw` is checked, its `inv_freq` holds head_dim / 2 floats, and both outlive the call, which copies.
        let handle = unsafe { decoder_new(&raw, message.as_mut_ptr().cast(), message.len()) };
        let handle = NonNull::new(handle).with_context(|| {
            format!(
                "cannot reserve the decoder with {num_blocks} cache blocks of {BLOCK_SIZE} positions: {}",
                text(&message)
            )
        })?;
        Ok(Self {
            handle,
            shape: shape.clone(),
            num_blocks,
            logit_rows: 0,
        })
    }

    /// What the decoder computes.
    pub fn shape(&self) -> &DecoderShape {
        &self.shape
    }

    /// Blocks of the cache.
    pub fn num_blocks(&self) -> usize {
        self.num_blocks
    }

    /// Computes the batch, writes its keys and values and draws, in order of [`Batch::draws`]. Every matrix and vector of
    /// `weights` must have been set.
    ///
    /// # Errors
    /// When the weights are of another shape, an index of the batch points outside the model or the cache, or memory runs out.
    pub fn forward(&mut self, weights: &PackedWeights, batch: &Batch) -> Result<Vec<Drawn>> {
        ensure!(*weights.shape() == self.shape, "these weights are another model's");
        batch.check(&self.shape, self.num_blocks, BLOCK_SIZE)?;
        let mut drawn = vec![Drawn::default(); batch.draws.len()];
        let raw = RawBatch {
            tokens: batch.tokens.as_ptr(),
            chunks: batch.chunks.as_ptr(),
            blocks: batch.blocks.as_ptr(),
            logit_rows: batch.logit_rows.as_ptr(),
            draws: batch.draws.as_ptr(),
            suppressed: batch.suppressed.as_ptr(),
            n_rows: i32::try_from(batch.tokens.len())?,
            n_chunks: i32::try_from(batch.chunks.len())?,
            n_logit_rows: i32::try_from(batch.logit_rows.len())?,
            n_draws: i32::try_from(batch.draws.len())?,
        };
        self.logit_rows = 0;
        checked(|error, size| {
            // SAFETY: `Batch::check` bounds every index the kernels follow, `drawn` holds one entry per draw, and the weights have the
            // sizes that this decoder has.
            unsafe {
                decoder_forward(
                    self.handle.as_ptr(),
                    weights.handle(),
                    &raw,
                    drawn.as_mut_ptr(),
                    error,
                    size,
                )
            }
        })?;
        self.logit_rows = batch.logit_rows.len();
        Ok(drawn)
    }

    /// Logits of the last forward, `[vocab]`: those of its row of this number in [`Batch::logit_rows`], if there is one.
    pub fn logits(&self, row: usize) -> Option<Vec<f32>> {
        let number = i32::try_from(row).ok().filter(|_| row < self.logit_rows)?;
        let mut out = vec![0.0; self.shape.vocab];
        // SAFETY: the last successful forward had that row, and the decoder writes as many numbers as the vocabulary has.
        unsafe { decoder_logits(self.handle.as_ptr(), number, out.as_mut_ptr()) };
        Some(out)
    }

    /// Copies a block's keys and values in every layer; blocks outside the cache are refused.
    ///
    /// # Errors
    /// When a block does not exist.
    pub fn copy_block(&mut self, from: u32, to: u32) -> Result<()> {
        for block in [from, to] {
            ensure!(
                (block as usize) < self.num_blocks,
                "block {block} of a cache of {}",
                self.num_blocks
            );
        }
        // SAFETY: both blocks exist.
        unsafe { decoder_copy_block(self.handle.as_ptr(), from as i32, to as i32) };
        Ok(())
    }

    /// Lets the system have the memory of cache and buffers when it is short of some (`MADV_FREE`): nothing of the cache may be needed.
    pub fn sleep(&mut self) {
        self.logit_rows = 0;
        // SAFETY: the handle is a decoder's.
        unsafe { decoder_sleep(self.handle.as_ptr()) };
    }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        // SAFETY: the handle came from `decoder_new` and is freed once.
        unsafe { decoder_free(self.handle.as_ptr()) };
    }
}

/// Runs a native call that reports failure by a return code and a message.
fn checked(call: impl FnOnce(*mut c_char, usize) -> i32) -> Result<()> {
    let mut message = [0u8; 256];
    match call(message.as_mut_ptr().cast(), message.len()) {
        0 => Ok(()),
        _ => bail!("the native decoder failed: {}", text(&message)),
    }
}

pub(super) fn text(message: &[u8]) -> String {
    CStr::from_bytes_until_nul(message)
        .map(|text| text.to_string_lossy().into_owned())
        .unwrap_or_default()
}
