//! The CPU runner: the native decoder behind the [`Runner`] trait.

use anyhow::{Context, Result, ensure};

use super::changes::Changes;
use super::flat::flatten;
use super::found_weights::find;
use super::logprobs::detailed;
use super::places::{self, places};
use super::runner::{ForwardBatch, Output, Runner};
use super::sampler::given;
use crate::model::MergedWeights;
use crate::native::decoder_shape::DecoderShape;
use crate::native::engine::Decoder;
use crate::native::packed::PackedWeights;

/// Positions one block of this runner's cache holds.
pub const BLOCK_SIZE: usize = crate::native::engine::BLOCK_SIZE;

/// Runs a decoder on the CPU. It cannot compute before [`Runner::load`] has succeeded once.
#[derive(Debug)]
pub struct NativeRunner {
    decoder: Decoder,
    /// None before the first are loaded, and while it sleeps.
    weights: Option<PackedWeights>,
    threads: usize,
    /// Those before the last that were swapped in: memory for the next.
    spare: Option<PackedWeights>,
}

impl NativeRunner {
    /// A decoder without weights and a cache of `num_blocks` blocks of [`BLOCK_SIZE`] positions; `threads` compute. Results
    /// do not depend on the number of threads.
    ///
    /// # Errors
    /// When the kernels cannot run the shape or memory runs out.
    pub fn new(shape: &DecoderShape, num_blocks: usize, threads: usize) -> Result<Self> {
        Ok(Self {
            decoder: Decoder::new(shape, num_blocks, threads)?,
            weights: None,
            threads,
            spare: None,
        })
    }

    /// `kept`, or memory for a set of weights.
    fn or_new(&self, kept: Option<PackedWeights>) -> Result<PackedWeights> {
        kept.map_or_else(|| PackedWeights::new(self.decoder.shape()), Ok)
    }
}

impl Runner for NativeRunner {
    fn num_blocks(&self) -> usize {
        self.decoder.num_blocks()
    }

    fn block_size(&self) -> usize {
        BLOCK_SIZE
    }

    fn max_positions(&self) -> usize {
        self.decoder.shape().max_positions
    }

    fn forward(&mut self, batch: &ForwardBatch) -> Result<Output> {
        let weights = self.weights.as_ref();
        let weights = weights.context("the runner has no weights yet: load some first")?;
        if batch.chunks.is_empty() {
            return Ok(Output::default());
        }
        let flat = flatten(batch, self.decoder.shape().vocab, BLOCK_SIZE)?;
        let drawn = given(self.decoder.forward(weights, &flat)?);
        detailed(batch, drawn, |row| {
            let logits = self.decoder.logits(row);
            logits.context("the decoder gave too few rows of logits")
        })
    }

    fn copy_block(&mut self, from: u32, to: u32) -> Result<()> {
        self.decoder.copy_block(from, to)
    }

    fn load(&mut self, weights: &MergedWeights) -> Result<()> {
        let places = places(self.decoder.shape());
        // Everything is looked up first: a missing tensor must not leave a mixture of two policies.
        let found: Vec<_> = places
            .iter()
            .map(|(name, place)| Ok((place, find(weights, name, &place.size)?)))
            .collect::<Result<_>>()?;
        let kept = self.weights.take();
        let mut packed = self.or_new(kept)?;
        for (place, tensor) in found {
            // A merged one lives until it is packed.
            place.set(&mut packed, &tensor.merge()?, self.threads)?;
        }
        self.weights = Some(packed);
        Ok(())
    }

    fn stage(&mut self) -> Result<Option<PackedWeights>> {
        let spare = self.spare.take();
        self.or_new(spare).map(Some)
    }

    fn swap(&mut self, weights: PackedWeights) -> Result<()> {
        ensure!(
            weights.shape() == self.decoder.shape(),
            "these weights are another model's"
        );
        // Kept as it is: to get memory anew from the system costs as much as to pack into it.
        self.spare = self.weights.replace(weights);
        Ok(())
    }

    fn change(&mut self, changes: &Changes) -> Result<()> {
        let places = places(self.decoder.shape());
        let found = changes.placed(&places)?;
        let weights = self.weights.as_mut();
        let weights = weights.context("the runner has no weights that could change: load some first")?;
        // Whoever sends what changed sends no whole set soon.
        self.spare = None;
        places::change(weights, &found, self.threads)
    }

    fn sleep(&mut self) {
        self.weights = None;
        self.decoder.sleep();
    }
}

#[cfg(test)]
mod tests;
