//! What one call of a decoder computes: a ragged batch of rows, and the tokens that are drawn after some of them.

use anyhow::{Context, Result, bail, ensure};

use super::decoder_shape::DecoderShape;

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

pub(super) fn check_draw(draw: &Draw, suppressed: &[i32], vocab: i32) -> Result<()> {
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
