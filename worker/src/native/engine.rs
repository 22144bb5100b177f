//! The CPU decoder of the rollout engine (`worker/native/decoder*`): one call computes a ragged batch and draws from it.
//!
//! Weights, product inputs and the key/value cache have the storage type of the model; the residual stream, every sum and
//! the logits are float32. An output is one chain of multiply-adds in a fixed order, so a row's numbers depend neither on
//! the batch around it nor on chunking, block placement or the number of threads.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::NonNull;

use anyhow::{Context, Result, bail, ensure};
use tch::{Kind, Tensor};

use crate::engine::decoder_shape::DecoderShape;

/// Positions one block of the key/value cache holds.
pub const BLOCK_SIZE: usize = 16;

/// A weight matrix of the decoder, rows are outputs.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub enum Matrix {
    /// Query, key and value projections, three parts.
    Qkv,
    /// Output projection of attention.
    Output,
    /// Gate and up projections, two parts.
    GateUp,
    /// Down projection.
    Down,
    /// Token logits; the token embedding too when tied.
    Head,
    /// Token embedding of an untied model.
    Embedding,
}

/// A weight vector of the decoder.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub enum Vector {
    /// RMSNorm before attention.
    AttentionNorm,
    /// RMSNorm before the MLP.
    MlpNorm,
    /// RMSNorm before the head.
    FinalNorm,
    /// Bias of query, key and value projections, concatenated.
    QkvBias,
    /// RMSNorm over each query head.
    QueryNorm,
    /// RMSNorm over each key head.
    KeyNorm,
}

/// Rows of one sequence in a [`Batch`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Chunk {
    /// Index of its first row in the batch; chunks lie one after another.
    pub first_row: i32,
    /// Number of rows.
    pub rows: i32,
    /// Position of the first row in its sequence.
    pub start: i32,
    /// Index of its first block in [`Batch::blocks`].
    pub first_block: i32,
}

/// One token to draw.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Draw {
    /// Number in [0, 1) at which the distribution function is inverted.
    pub uniform: f64,
    /// 0 is greedy.
    pub temperature: f32,
    /// 1 keeps all.
    pub top_p: f32,
    /// 0 keeps all.
    pub min_p: f32,
    /// 0 keeps all.
    pub top_k: i32,
    /// Index into [`Batch::logit_rows`].
    pub logit_row: i32,
    /// First token of probability 0, an index into [`Batch::suppressed`].
    pub first_suppressed: i32,
    /// Number of tokens of probability 0.
    pub suppressed: i32,
}

/// New tokens of several sequences, flat.
#[derive(Debug, Default)]
pub struct Batch {
    /// Token of each row.
    pub tokens: Vec<i32>,
    /// Rows by sequence.
    pub chunks: Vec<Chunk>,
    /// Cache blocks of each chunk's sequence, concatenated.
    pub blocks: Vec<i32>,
    /// Rows whose next token is drawn, ascending.
    pub logit_rows: Vec<i32>,
    /// Tokens to draw.
    pub draws: Vec<Draw>,
    /// Token lists the draws point into.
    pub suppressed: Vec<i32>,
}

impl Batch {
    /// Looks at every index that a runner follows without looking.
    ///
    /// # Errors
    /// When one points outside the model or the cache of `num_blocks` blocks of `block_size` positions.
    pub fn check(&self, s: &DecoderShape, num_blocks: usize, block_size: usize) -> Result<()> {
        if let Some(token) = self.tokens.iter().find(|token| !(0..s.vocab as i32).contains(token)) {
            bail!("token {token} is outside the vocabulary of {}", s.vocab);
        }
        if let Some(block) = self.blocks.iter().find(|block| !(0..num_blocks as i32).contains(block)) {
            bail!("block {block} is outside the cache of {} blocks", num_blocks);
        }
        let mut rows = 0;
        for (i, chunk) in self.chunks.iter().enumerate() {
            ensure!(
                chunk.rows > 0 && chunk.start >= 0,
                "sequence {i} of the batch has no tokens or a negative start"
            );
            ensure!(
                chunk.first_row == rows,
                "sequence {i} of the batch starts at row {}, not {rows}",
                chunk.first_row
            );
            rows = rows.checked_add(chunk.rows).context("too many rows")?;
            let end = chunk.start as usize + chunk.rows as usize;
            ensure!(
                end <= s.max_positions,
                "sequence {i} reaches position {end} of {}",
                s.max_positions
            );
            let last_block = chunk.first_block as usize + end.div_ceil(block_size);
            ensure!(
                chunk.first_block >= 0 && last_block <= self.blocks.len(),
                "sequence {i} has too few blocks for {end} positions"
            );
        }
        ensure!(
            rows as usize == self.tokens.len(),
            "{} tokens for {rows} rows",
            self.tokens.len()
        );
        ensure!(rows > 0, "the batch is empty");
        ensure!(
            self.logit_rows.iter().all(|row| (0..rows).contains(row)),
            "a drawn row is outside the batch"
        );
        for draw in &self.draws {
            ensure!(
                (0..self.logit_rows.len() as i32).contains(&draw.logit_row),
                "a draw names no row of logits"
            );
            check_draw(draw, &self.suppressed, s.vocab as i32)?;
        }
        Ok(())
    }
}

/// What a draw gave. `token` is -1 when the logits hold no distribution: NaN, infinity or every token suppressed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Drawn {
    /// Token id or -1.
    pub token: i32,
    /// Log-probability under the distribution it was drawn from.
    pub logprob: f32,
}

#[repr(C)]
struct RawShape {
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
    rope_attention_scaling: f32,
    inv_freq: *const f32,
}

#[repr(C)]
struct RawPart {
    data: *const c_void,
    rows: i64,
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
    fn decoder_set_matrix(
        decoder: *mut RawDecoder,
        layer: i32,
        which: Matrix,
        parts: *const RawPart,
        n_parts: i32,
        error: *mut c_char,
        size: usize,
    ) -> i32;
    fn decoder_set_vector(
        decoder: *mut RawDecoder,
        layer: i32,
        which: Vector,
        data: *const f32,
        length: i64,
        error: *mut c_char,
        size: usize,
    ) -> i32;
    fn decoder_forward(
        decoder: *mut RawDecoder,
        batch: *const RawBatch,
        drawn: *mut Drawn,
        error: *mut c_char,
        size: usize,
    ) -> i32;
    fn decoder_copy_block(decoder: *mut RawDecoder, from: i32, to: i32);
    fn decoder_logits(decoder: *const RawDecoder, out: *mut f32);
    fn decoder_sample(
        logits: *const f32,
        vocab: i32,
        draw: *const Draw,
        suppressed: *const i32,
        drawn: *mut Drawn,
        error: *mut c_char,
        size: usize,
    ) -> i32;
    fn decoder_instructions() -> *const c_char;
}

/// Name of the instruction set the kernels use on this processor.
pub fn instructions() -> &'static str {
    // SAFETY: the function returns a static C string.
    unsafe { CStr::from_ptr(decoder_instructions()) }
        .to_str()
        .unwrap_or("unknown")
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

/// A decoder with its packed weights and its cache.
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
    /// Reserves memory for weights and a cache of `num_blocks` blocks. Cache pages take no memory until they are used.
    ///
    /// # Errors
    /// When the shape is not one the kernels know or memory runs out.
    pub fn new(shape: &DecoderShape, num_blocks: usize, threads: usize) -> Result<Self> {
        shape.check()?;
        ensure!(
            !shape.output_bias,
            "the native decoder does not compute a bias on the attention's output projection"
        );
        ensure!(num_blocks > 0, "the key/value cache needs at least one block");
        let int = |what: &str, n: usize| {
            i32::try_from(n)
                .ok()
                .filter(|n| *n <= i32::MAX / 4)
                .with_context(|| format!("{what} is {n}: too large"))
        };
        let raw = RawShape {
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
            rope_attention_scaling: shape.rope_attention_scaling,
            inv_freq: shape.inv_freq.as_ptr(),
        };
        let mut message = [0u8; 256];
        // SAFETY: `raw` is checked above, its `inv_freq` holds head_dim / 2 floats, and both outlive the call, which copies.
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

    /// Packs a matrix from its parts, each `[rows, columns]`. Rows and columns must be the shape's.
    ///
    /// # Errors
    /// When sizes differ from the shape's.
    pub fn set_matrix(&mut self, layer: usize, which: Matrix, parts: &[&Tensor]) -> Result<()> {
        let s = &self.shape;
        let (rows, columns): (Vec<usize>, usize) = match which {
            Matrix::Qkv => (
                vec![s.heads * s.head_dim, s.kv_heads * s.head_dim, s.kv_heads * s.head_dim],
                s.hidden,
            ),
            Matrix::Output => (vec![s.hidden], s.heads * s.head_dim),
            Matrix::GateUp => (vec![s.intermediate; 2], s.hidden),
            Matrix::Down => (vec![s.hidden], s.intermediate),
            Matrix::Head | Matrix::Embedding => (vec![s.vocab], s.hidden),
        };
        ensure!(layer < s.layers, "layer {layer} of {}", s.layers);
        ensure!(
            !(s.tied && matches!(which, Matrix::Embedding)),
            "a tied model has no embedding of its own"
        );
        ensure!(
            parts.len() == rows.len(),
            "{which:?} has {} parts, got {}",
            rows.len(),
            parts.len()
        );
        let mut plain = Vec::with_capacity(parts.len());
        for (part, rows) in parts.iter().zip(&rows) {
            ensure!(
                part.size() == [*rows as i64, columns as i64],
                "{which:?}: shape {:?}, expected [{rows}, {columns}]",
                part.size()
            );
            plain.push(part.f_to_device(tch::Device::Cpu)?.f_to_kind(s.kind)?.f_contiguous()?);
        }
        let raw: Vec<RawPart> = plain
            .iter()
            .map(|part| RawPart {
                data: part.data_ptr(),
                rows: part.size()[0],
            })
            .collect();
        checked(|error, size| {
            // SAFETY: each part is a live contiguous CPU tensor of the storage type with the sizes checked above.
            unsafe {
                decoder_set_matrix(
                    self.handle.as_ptr(),
                    layer as i32,
                    which,
                    raw.as_ptr(),
                    raw.len() as i32,
                    error,
                    size,
                )
            }
        })
    }

    /// Copies a vector.
    ///
    /// # Errors
    /// When its length differs from the shape's.
    pub fn set_vector(&mut self, layer: usize, which: Vector, values: &[f32]) -> Result<()> {
        let s = &self.shape;
        let length = match which {
            Vector::AttentionNorm | Vector::MlpNorm | Vector::FinalNorm => s.hidden,
            Vector::QkvBias => (s.heads + 2 * s.kv_heads) * s.head_dim,
            Vector::QueryNorm | Vector::KeyNorm => s.head_dim,
        };
        ensure!(layer < s.layers, "layer {layer} of {}", s.layers);
        ensure!(
            values.len() == length,
            "{which:?}: {} values, expected {length}",
            values.len()
        );
        checked(|error, size| {
            // SAFETY: `values` holds `length` floats and outlives the call, which copies.
            unsafe {
                decoder_set_vector(
                    self.handle.as_ptr(),
                    layer as i32,
                    which,
                    values.as_ptr(),
                    length as i64,
                    error,
                    size,
                )
            }
        })
    }

    /// Computes the batch, writes its keys and values and draws, in order of [`Batch::draws`]. Every matrix and vector of
    /// the shape must have been set.
    ///
    /// # Errors
    /// When an index of the batch points outside the model or the cache, or memory runs out.
    pub fn forward(&mut self, batch: &Batch) -> Result<Vec<Drawn>> {
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
            // SAFETY: `Batch::check` bounds every index the kernels follow, and `drawn` holds one entry per draw.
            unsafe { decoder_forward(self.handle.as_ptr(), &raw, drawn.as_mut_ptr(), error, size) }
        })?;
        self.logit_rows = batch.logit_rows.len();
        Ok(drawn)
    }

    /// Logits of the last forward, row-major `[logit rows, vocab]`.
    pub fn logits(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.logit_rows * self.shape.vocab];
        // SAFETY: the decoder writes as many rows as its last successful forward had, which `logit_rows` counts; 0 rows
        // are not asked for.
        if !out.is_empty() {
            unsafe { decoder_logits(self.handle.as_ptr(), out.as_mut_ptr()) };
        }
        out
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

    /// Lets the system have the memory of matrices, cache and buffers when it is short of some (`MADV_FREE`). All matrices have to be set
    /// before the next forward; nothing of the cache may be left.
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

fn check_draw(draw: &Draw, suppressed: &[i32], vocab: i32) -> Result<()> {
    ensure!(
        (0.0..1.0).contains(&draw.uniform),
        "uniform number {} is not in [0, 1)",
        draw.uniform
    );
    ensure!(
        draw.temperature.is_finite() && draw.temperature >= 0.0,
        "temperature {} is not >= 0",
        draw.temperature
    );
    ensure!(
        draw.top_p > 0.0 && draw.top_p <= 1.0,
        "top_p {} is not in (0, 1]",
        draw.top_p
    );
    ensure!(
        (0.0..=1.0).contains(&draw.min_p),
        "min_p {} is not in [0, 1]",
        draw.min_p
    );
    ensure!(draw.top_k >= 0, "top_k {} is negative", draw.top_k);
    ensure!(
        draw.first_suppressed >= 0 && draw.suppressed >= 0,
        "negative list of suppressed tokens"
    );
    let first = draw.first_suppressed as usize;
    let list = suppressed
        .get(first..first + draw.suppressed as usize)
        .context("suppressed tokens out of range")?;
    if let Some(token) = list.iter().find(|token| !(0..vocab).contains(token)) {
        bail!("suppressed token {token} is outside the vocabulary of {vocab}");
    }
    Ok(())
}

/// Runs a native call that reports failure by a return code and a message.
fn checked(call: impl FnOnce(*mut c_char, usize) -> i32) -> Result<()> {
    let mut message = [0u8; 256];
    match call(message.as_mut_ptr().cast(), message.len()) {
        0 => Ok(()),
        _ => bail!("the native decoder failed: {}", text(&message)),
    }
}

fn text(message: &[u8]) -> String {
    CStr::from_bytes_until_nul(message)
        .map(|text| text.to_string_lossy().into_owned())
        .unwrap_or_default()
}
