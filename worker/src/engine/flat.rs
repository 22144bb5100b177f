//! A batch as runners read it: every list of its chunks end to end.

use anyhow::{Context, Result, ensure};

use super::runner::{self, ForwardBatch};
use super::sampler::native_draw;
use crate::native::batch::{Batch, Chunk};

/// `batch` flat, for a model of `vocab` tokens and a cache of blocks of `block_size` positions. Rows of logits are those of
/// targets and draws, in order of chunks, a chunk's targets first.
///
/// # Errors
/// When a chunk has fewer blocks than its positions need, or scores more tokens than it computes.
pub(super) fn flatten(batch: &ForwardBatch, vocab: usize, block_size: usize) -> Result<Batch> {
    let count = |of: fn(&runner::Chunk) -> usize| batch.chunks.iter().map(of).sum::<usize>();
    let mut flat = Batch {
        tokens: Vec::with_capacity(count(|chunk| chunk.tokens.len())),
        chunks: Vec::with_capacity(batch.chunks.len()),
        blocks: Vec::with_capacity(count(|chunk| chunk.blocks.len())),
        logit_rows: Vec::with_capacity(count(|chunk| chunk.targets.len() + 1)),
        draws: Vec::with_capacity(count(|chunk| chunk.draws.len())),
        suppressed: Vec::new(),
    };
    for (i, chunk) in batch.chunks.iter().enumerate() {
        let too_large = || format!("sequence {i} of the batch has a number beyond 2^31");
        flat.chunks.push(Chunk {
            first_row: i32::try_from(flat.tokens.len()).with_context(too_large)?,
            rows: i32::try_from(chunk.tokens.len()).with_context(too_large)?,
            start: i32::try_from(chunk.start).with_context(too_large)?,
            first_block: i32::try_from(flat.blocks.len()).with_context(too_large)?,
        });
        let needed = (chunk.start + chunk.tokens.len()).div_ceil(block_size);
        ensure!(
            chunk.blocks.len() >= needed,
            "sequence {i} of the batch has {} blocks, its {} positions need {needed}",
            chunk.blocks.len(),
            chunk.start + chunk.tokens.len()
        );
        for token in &chunk.tokens {
            flat.tokens.push(i32::try_from(*token).with_context(too_large)?);
        }
        for block in &chunk.blocks {
            flat.blocks.push(i32::try_from(*block).with_context(too_large)?);
        }
        let first_row = flat.tokens.len() as i32 - chunk.tokens.len() as i32;
        ensure!(
            chunk.targets.len() + usize::from(!chunk.draws.is_empty()) <= chunk.tokens.len(),
            "sequence {i} of the batch scores more tokens than it computes"
        );
        flat.logit_rows.extend((first_row..).take(chunk.targets.len()));
        if chunk.draws.is_empty() {
            continue;
        }
        let logit_row = flat.logit_rows.len() as i32;
        flat.logit_rows.push(flat.tokens.len() as i32 - 1);
        for draw in &chunk.draws {
            flat.draws
                .push(native_draw(draw, logit_row, vocab, &mut flat.suppressed)?);
        }
    }
    Ok(flat)
}
