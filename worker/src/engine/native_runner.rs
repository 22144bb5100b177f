//! The CPU runner: the native decoder behind the [`Runner`] trait.

use anyhow::{Context, Result, ensure};
use tch::{Device, Kind, Tensor};

use super::decoder_shape::DecoderShape;
use super::flat::flatten;
use super::found_weights::Found;
use super::logprobs::detailed;
use super::runner::{ForwardBatch, Output, Runner};
use super::sampler::checked_draws;
use crate::model::MergedWeights;
use crate::model::adapter::merged::Unmerged;
use crate::native::engine::{Decoder, Matrix, Vector};

/// Positions one block of this runner's cache holds.
pub const BLOCK_SIZE: usize = crate::native::engine::BLOCK_SIZE;

/// Runs a decoder on the CPU. It cannot compute before [`Runner::load`] has succeeded once.
#[derive(Debug)]
pub struct NativeRunner {
    decoder: Decoder,
    loaded: bool,
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
            loaded: false,
        })
    }

    /// Logits of the rows the last batch drew from, row-major `[rows, vocab]`.
    pub fn logits(&self) -> Vec<f32> {
        self.decoder.logits()
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
        ensure!(self.loaded, "the runner has no weights yet: load some first");
        if batch.chunks.is_empty() {
            return Ok(Output::default());
        }
        let vocab = self.decoder.shape().vocab;
        let flat = flatten(batch, vocab, BLOCK_SIZE)?;
        let drawn = checked_draws(batch, self.decoder.forward(&flat)?)?;
        let mut logits = None;
        detailed(batch, drawn, |row| {
            // Copied out only when somebody asks.
            let logits: &Vec<f32> = logits.get_or_insert_with(|| self.logits());
            let row = logits.chunks_exact(vocab).nth(row);
            Ok(row.context("the decoder gave too few rows of logits")?.to_vec())
        })
    }

    fn copy_block(&mut self, from: u32, to: u32) {
        if let Err(error) = self.decoder.copy_block(from, to) {
            tracing::error!(from, to, %error, "a cache block was not copied");
        }
    }

    fn load(&mut self, weights: &MergedWeights) -> Result<()> {
        let shape = self.decoder.shape().clone();
        // Everything is looked up first: a missing tensor must not leave a mixture of two policies.
        let found = Found::all(weights, &shape)?;
        self.loaded = false;
        for (i, layer) in found.layers.iter().enumerate() {
            self.set_matrix(i, Matrix::Qkv, &layer.qkv)?;
            self.set_matrix(i, Matrix::Output, &[layer.output])?;
            self.set_matrix(i, Matrix::GateUp, &layer.gate_up)?;
            self.set_matrix(i, Matrix::Down, &[layer.down])?;
            self.decoder
                .set_vector(i, Vector::AttentionNorm, &floats(layer.attention_norm)?)?;
            self.decoder.set_vector(i, Vector::MlpNorm, &floats(layer.mlp_norm)?)?;
            if let Some(parts) = &layer.qkv_bias {
                let mut bias = Vec::new();
                for part in parts {
                    bias.extend(floats(part)?);
                }
                self.decoder.set_vector(i, Vector::QkvBias, &bias)?;
            }
            if let Some([query, key]) = layer.qk_norm {
                self.decoder.set_vector(i, Vector::QueryNorm, &floats(query)?)?;
                self.decoder.set_vector(i, Vector::KeyNorm, &floats(key)?)?;
            }
        }
        self.decoder
            .set_vector(0, Vector::FinalNorm, &floats(found.final_norm)?)?;
        self.set_matrix(0, Matrix::Head, &[found.head])?;
        if !shape.tied {
            self.set_matrix(0, Matrix::Embedding, &[found.embedding])?;
        }
        self.loaded = true;
        Ok(())
    }

    fn sleep(&mut self) {
        self.loaded = false;
        self.decoder.sleep();
    }
}

impl NativeRunner {
    /// Merged parts live until they are packed.
    fn set_matrix(&mut self, layer: usize, which: Matrix, parts: &[Unmerged]) -> Result<()> {
        let merged = parts.iter().map(Unmerged::merge).collect::<Result<Vec<_>>>()?;
        self.decoder
            .set_matrix(layer, which, &merged.iter().collect::<Vec<_>>())
    }
}

fn floats(values: &Tensor) -> Result<Vec<f32>> {
    let plain = values
        .f_to_device(Device::Cpu)?
        .f_to_kind(Kind::Float)?
        .f_contiguous()?;
    Ok(Vec::<f32>::try_from(&plain)?)
}

#[cfg(test)]
mod tests;
