//! The decoder's tensors on the device, those of one input fused into one product. They are written in place: a captured graph
//! reads their addresses.

use anyhow::{Context, Result};
use tch::{Device, Tensor};

use crate::engine::decoder_shape::DecoderShape;
use crate::engine::found_weights::Found;
use crate::model::MergedWeights;
use crate::model::adapter::merged::Unmerged;

/// Tensors of one decoder block.
#[derive(Debug)]
pub(super) struct Layer {
    pub attention_norm: Tensor,
    /// Query, key and value projections, `[(heads + 2 kv_heads) head_dim, hidden]`.
    pub qkv: Tensor,
    pub qkv_bias: Option<Tensor>,
    /// Norms of each query and of each key head.
    pub qk_norm: Option<[Tensor; 2]>,
    pub output: Tensor,
    pub output_bias: Option<Tensor>,
    pub mlp_norm: Tensor,
    /// Gate and up projections, `[2 intermediate, hidden]`.
    pub gate_up: Tensor,
    pub down: Tensor,
}

/// Every tensor of the decoder.
#[derive(Debug)]
pub(super) struct Weights {
    pub layers: Vec<Layer>,
    pub final_norm: Tensor,
    pub embedding: Tensor,
    /// The embedding itself when tied.
    pub head: Tensor,
}

impl Weights {
    /// Memory for the weights of a shape.
    pub fn empty(shape: &DecoderShape, device: Device) -> Result<Self> {
        let s = shape;
        let tensor = |size: &[usize]| {
            let size: Vec<i64> = size.iter().map(|n| *n as i64).collect();
            Tensor::f_empty(size.as_slice(), (s.kind, device)).context("no room for the engine's weights")
        };
        let when = |wanted: bool, size: &[usize]| wanted.then(|| tensor(size)).transpose();
        let (q, kv) = (s.heads * s.head_dim, s.kv_heads * s.head_dim);
        let layer = |_| {
            Ok(Layer {
                attention_norm: tensor(&[s.hidden])?,
                qkv: tensor(&[q + 2 * kv, s.hidden])?,
                qkv_bias: when(s.qkv_bias, &[q + 2 * kv])?,
                qk_norm: match s.qk_norm {
                    false => None,
                    true => Some([tensor(&[s.head_dim])?, tensor(&[s.head_dim])?]),
                },
                output: tensor(&[s.hidden, q])?,
                output_bias: when(s.output_bias, &[s.hidden])?,
                mlp_norm: tensor(&[s.hidden])?,
                gate_up: tensor(&[2 * s.intermediate, s.hidden])?,
                down: tensor(&[s.hidden, s.intermediate])?,
            })
        };
        let embedding = tensor(&[s.vocab, s.hidden])?;
        Ok(Self {
            layers: (0..s.layers).map(layer).collect::<Result<_>>()?,
            final_norm: tensor(&[s.hidden])?,
            head: if s.tied {
                embedding.shallow_clone()
            } else {
                tensor(&[s.vocab, s.hidden])?
            },
            embedding,
        })
    }

    /// Bytes of the weights of a shape.
    pub fn bytes(s: &DecoderShape) -> usize {
        let (q, kv) = (s.heads * s.head_dim, s.kv_heads * s.head_dim);
        let layer = s.hidden * (2 * q + 2 * kv + 3 * s.intermediate);
        let embeddings = if s.tied { 1 } else { 2 } * s.vocab * s.hidden;
        (s.layers * layer + embeddings) * s.kind.elt_size_in_bytes()
    }

    /// Copies the tensors of `weights` over the present ones. `is_whole` is false while some are new and some old.
    pub fn load(&self, weights: &MergedWeights, shape: &DecoderShape, is_whole: &mut bool) -> Result<()> {
        // Everything is looked up first: a missing tensor must not leave a mixture of two policies.
        let found = Found::all(weights, shape)?;
        *is_whole = false;
        for (layer, found) in self.layers.iter().zip(&found.layers) {
            fuse(&layer.qkv, &found.qkv)?;
            fuse(&layer.output, &[found.output])?;
            fuse(&layer.gate_up, &found.gate_up)?;
            fuse(&layer.down, &[found.down])?;
            overwrite(&layer.attention_norm, &[found.attention_norm])?;
            overwrite(&layer.mlp_norm, &[found.mlp_norm])?;
            if let (Some(bias), Some(parts)) = (&layer.qkv_bias, &found.qkv_bias) {
                overwrite(bias, parts)?;
            }
            if let (Some(bias), Some(found)) = (&layer.output_bias, found.output_bias) {
                overwrite(bias, &[found])?;
            }
            if let (Some([query, key]), Some([found_query, found_key])) = (&layer.qk_norm, found.qk_norm) {
                overwrite(query, &[found_query])?;
                overwrite(key, &[found_key])?;
            }
        }
        overwrite(&self.final_norm, &[found.final_norm])?;
        fuse(&self.embedding, &[found.embedding])?;
        if !shape.tied {
            fuse(&self.head, &[found.head])?;
        }
        *is_whole = true;
        Ok(())
    }
}

/// Merges the parts, each when it is written, so that one merged part exists at a time.
fn fuse(whole: &Tensor, parts: &[Unmerged]) -> Result<()> {
    let mut row = 0;
    for part in parts {
        row = write(whole, row, &part.merge()?)?;
    }
    Ok(())
}

fn overwrite(whole: &Tensor, parts: &[&Tensor]) -> Result<()> {
    let mut row = 0;
    for part in parts {
        row = write(whole, row, part)?;
    }
    Ok(())
}

/// Converts and copies a part to rows from `row`; the row after it.
fn write(whole: &Tensor, row: i64, part: &Tensor) -> Result<i64> {
    let rows = part.size().first().copied().unwrap_or(0);
    whole.f_narrow(0, row, rows)?.f_copy_(part)?;
    Ok(row + rows)
}
