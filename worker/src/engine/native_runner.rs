//! The CPU runner: the native decoder behind the [`Runner`] trait.

use anyhow::{Context, Result, bail, ensure};
use tch::{Device, Kind, Tensor};

use super::decoder_shape::DecoderShape;
use super::logprobs;
use super::runner::{Drawn, ForwardBatch, Output, Runner};
use super::sampler::native_draw;
use crate::model::MergedWeights;
use crate::model::adapter::merged::Unmerged;
use crate::native::engine::{Batch, Chunk, Decoder, Matrix, Vector};

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

    /// Adds what is told beside the drawn tokens. Logits are copied out only when somebody asked.
    fn detail(&self, batch: &ForwardBatch, mut drawn: Vec<Drawn>) -> Result<Output> {
        let asked = |chunk: &super::runner::Chunk| {
            !chunk.targets.is_empty() || chunk.draws.iter().any(|draw| draw.top.is_some())
        };
        let (mut tops, mut scores) = (Vec::new(), Vec::new());
        if !batch.chunks.iter().any(asked) {
            return Ok(Output { drawn, tops, scores });
        }
        let logits = self.logits();
        let mut rows = logits.chunks_exact(self.decoder.shape().vocab);
        let mut next_row = || rows.next().context("the decoder gave too few rows of logits");
        let mut own = drawn.iter_mut();
        for chunk in &batch.chunks {
            for &target in &chunk.targets {
                scores.push(logprobs::score(next_row()?, target, chunk.target_tops));
            }
            if chunk.draws.is_empty() {
                continue;
            }
            let row = next_row()?;
            for (draw, drawn) in chunk.draws.iter().zip(own.by_ref()) {
                if let Some(count) = draw.top {
                    let (top, logprob) = logprobs::beside(row, draw, *drawn, count);
                    drawn.logprob = logprob;
                    tops.push(top);
                }
            }
        }
        Ok(Output { drawn, tops, scores })
    }

    fn flatten(&self, batch: &ForwardBatch) -> Result<Batch> {
        let vocab = self.decoder.shape().vocab;
        let mut flat = Batch::default();
        for (i, chunk) in batch.chunks.iter().enumerate() {
            let too_large = || format!("sequence {i} of the batch has a number beyond 2^31");
            flat.chunks.push(Chunk {
                first_row: i32::try_from(flat.tokens.len()).with_context(too_large)?,
                rows: i32::try_from(chunk.tokens.len()).with_context(too_large)?,
                start: i32::try_from(chunk.start).with_context(too_large)?,
                first_block: i32::try_from(flat.blocks.len()).with_context(too_large)?,
            });
            let needed = (chunk.start + chunk.tokens.len()).div_ceil(BLOCK_SIZE);
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
        let flat = self.flatten(batch)?;
        let drawn = self.decoder.forward(&flat)?;
        let mut chunk_of_draw = batch
            .chunks
            .iter()
            .enumerate()
            .flat_map(|(i, chunk)| chunk.draws.iter().map(move |_| i));
        let drawn = drawn
            .into_iter()
            .map(|drawn| {
                let chunk = chunk_of_draw.next().unwrap_or_default();
                let token = u32::try_from(drawn.token).ok().with_context(|| {
                    format!(
                        "no token can be drawn for sequence {chunk} of the batch: its logits are NaN or infinite (check \
                         the weights), or every token is a stop token suppressed by min_new_tokens"
                    )
                })?;
                Ok(Drawn { token, logprob: drawn.logprob })
            })
            .collect::<Result<Vec<Drawn>>>()?;
        self.detail(batch, drawn)
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
}

impl NativeRunner {
    /// Merged parts live until they are packed.
    fn set_matrix(&mut self, layer: usize, which: Matrix, parts: &[Unmerged]) -> Result<()> {
        let merged = parts.iter().map(Unmerged::merge).collect::<Result<Vec<_>>>()?;
        self.decoder
            .set_matrix(layer, which, &merged.iter().collect::<Vec<_>>())
    }
}

/// Tensors of one decoder block.
struct FoundLayer<'a> {
    qkv: [Unmerged<'a>; 3],
    output: Unmerged<'a>,
    gate_up: [Unmerged<'a>; 2],
    down: Unmerged<'a>,
    attention_norm: &'a Tensor,
    mlp_norm: &'a Tensor,
    qkv_bias: Option<[&'a Tensor; 3]>,
    qk_norm: Option<[&'a Tensor; 2]>,
}

/// Every tensor a shape asks for, present and of the right size.
struct Found<'a> {
    layers: Vec<FoundLayer<'a>>,
    final_norm: &'a Tensor,
    head: Unmerged<'a>,
    embedding: Unmerged<'a>,
}

impl<'a> Found<'a> {
    fn all(weights: &'a MergedWeights, s: &DecoderShape) -> Result<Self> {
        let matrix = |name: String, size: &[usize]| -> Result<Unmerged<'a>> {
            let Some(tensor) = weights.get(&name) else {
                bail!("the weights have no tensor {name}")
            };
            let size: Vec<i64> = size.iter().map(|n| *n as i64).collect();
            ensure!(
                tensor.weight.size() == size,
                "{name} has shape {:?}, the model needs {size:?}",
                tensor.weight.size()
            );
            Ok(tensor)
        };
        // Adapters adapt matrices only.
        let take = |name: String, size: &[usize]| matrix(name, size).map(|found| found.weight);
        let (q, kv) = (s.heads * s.head_dim, s.kv_heads * s.head_dim);
        let mut layers = Vec::with_capacity(s.layers);
        for i in 0..s.layers {
            let at = |name: &str| format!("model.layers.{i}.{name}");
            layers.push(FoundLayer {
                qkv: [
                    matrix(at("self_attn.q_proj.weight"), &[q, s.hidden])?,
                    matrix(at("self_attn.k_proj.weight"), &[kv, s.hidden])?,
                    matrix(at("self_attn.v_proj.weight"), &[kv, s.hidden])?,
                ],
                output: matrix(at("self_attn.o_proj.weight"), &[s.hidden, q])?,
                gate_up: [
                    matrix(at("mlp.gate_proj.weight"), &[s.intermediate, s.hidden])?,
                    matrix(at("mlp.up_proj.weight"), &[s.intermediate, s.hidden])?,
                ],
                down: matrix(at("mlp.down_proj.weight"), &[s.hidden, s.intermediate])?,
                attention_norm: take(at("input_layernorm.weight"), &[s.hidden])?,
                mlp_norm: take(at("post_attention_layernorm.weight"), &[s.hidden])?,
                qkv_bias: match s.qkv_bias {
                    false => None,
                    true => Some([
                        take(at("self_attn.q_proj.bias"), &[q])?,
                        take(at("self_attn.k_proj.bias"), &[kv])?,
                        take(at("self_attn.v_proj.bias"), &[kv])?,
                    ]),
                },
                qk_norm: match s.qk_norm {
                    false => None,
                    true => Some([
                        take(at("self_attn.q_norm.weight"), &[s.head_dim])?,
                        take(at("self_attn.k_norm.weight"), &[s.head_dim])?,
                    ]),
                },
            });
        }
        let embedding = matrix("model.embed_tokens.weight".into(), &[s.vocab, s.hidden])?;
        Ok(Self {
            layers,
            final_norm: take("model.norm.weight".into(), &[s.hidden])?,
            head: if s.tied {
                embedding
            } else {
                matrix("lm_head.weight".into(), &[s.vocab, s.hidden])?
            },
            embedding,
        })
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
