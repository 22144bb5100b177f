//! The decoder: embedding, layers, final norm and output head over the rows of a pass.

use anyhow::{Context, Result, bail};
use tch::{Kind, Tensor};

use super::cache::Cache;
use super::groups::Inputs;
use super::kernel::Heads;
use super::rotary::Rotary;
use super::weights::{Layer, Weights};
use crate::engine::decoder_shape::DecoderShape;

/// Weights and cache, and what is computed with them. Nothing here waits for the device, so that it can be captured.
#[derive(Debug)]
pub(super) struct Decoder {
    pub weights: Weights,
    pub cache: Cache,
    heads: Heads,
    hidden: i64,
    eps: f64,
    /// Radians per position, `[head_dim / 2]`, float32.
    frequencies: Tensor,
}

impl Decoder {
    pub fn new(shape: &DecoderShape, weights: Weights, cache: Cache) -> Result<Self> {
        let device = weights.embedding.device();
        Ok(Self {
            weights,
            cache,
            heads: Heads::of(shape),
            hidden: shape.hidden as i64,
            eps: f64::from(shape.rms_eps),
            frequencies: Tensor::f_from_slice(&shape.inv_freq)?.f_to_device(device)?,
        })
    }

    /// Writes keys and values of the pass's rows, and gives what the last layer makes of them, `[rows, hidden]`.
    pub fn trunk(&self, inputs: &Inputs) -> Result<Tensor> {
        let rotary = Rotary::at(&inputs.positions, &self.frequencies)?;
        let mut rows = self.weights.embedding.f_index_select(0, &inputs.ids)?;
        for (i, layer) in self.weights.layers.iter().enumerate() {
            let normed = self.norm(&rows, &layer.attention_norm)?;
            let mixed = self.attend(i, layer, &normed, &rotary, inputs)?;
            let middle = rows.f_add(&mixed)?;
            rows = middle.f_add(&feed(layer, &self.norm(&middle, &layer.mlp_norm)?)?)?;
        }
        Ok(rows)
    }

    /// Logits of rows of [`trunk`](Self::trunk), `[rows, vocab]`, float32.
    pub fn logits(&self, rows: &Tensor) -> Result<Tensor> {
        let normed = self.norm(rows, &self.weights.final_norm)?;
        let head = &self.weights.head;
        if head.kind() != Kind::Float && head.device().is_cuda() {
            // Sums are float32 until they are stored: bfloat16 would move a logit of 20 by up to 0.06. Only CUDA has the operator.
            return Ok(normed.f_mm_dtype(&head.f_tr()?, Kind::Float)?);
        }
        Ok(normed.f_linear(head, None::<&Tensor>)?.f_to_kind(Kind::Float)?)
    }

    fn attend(&self, i: usize, layer: &Layer, rows: &Tensor, rotary: &Rotary, inputs: &Inputs) -> Result<Tensor> {
        let Heads { queries, keys, dim } = self.heads;
        let projected = rows
            .f_linear(&layer.qkv, layer.qkv_bias.as_ref())?
            .f_view([-1, queries + 2 * keys, dim])?;
        let turned = rotary.turn(&self.normed_heads(layer, &projected)?)?;
        let new_keys = turned.f_narrow(1, queries, keys)?;
        let new_values = projected.f_narrow(1, queries + keys, keys)?;
        self.cache.write(i, &inputs.slots, &new_keys, &new_values)?;
        let (all_keys, all_values) = self.cache.layer(i)?;
        let mixed = inputs.attend(&turned.f_narrow(1, 0, queries)?, all_keys, all_values)?;
        let mixed = mixed.f_reshape([-1, queries * dim])?;
        Ok(mixed.f_linear(&layer.output, layer.output_bias.as_ref())?)
    }

    /// Query and key heads before they are turned, `[rows, heads + kv_heads, head_dim]`.
    fn normed_heads(&self, layer: &Layer, projected: &Tensor) -> Result<Tensor> {
        let Heads { queries, keys, dim } = self.heads;
        let Some([query_norm, key_norm]) = &layer.qk_norm else {
            return Ok(projected.f_narrow(1, 0, queries + keys)?);
        };
        let normed = |first: i64, count: i64, weight: &Tensor| {
            let heads = projected.f_narrow(1, first, count)?.f_contiguous()?;
            heads.f_rms_norm([dim], Some(weight), self.eps)
        };
        let parts = [normed(0, queries, query_norm)?, normed(queries, keys, key_norm)?];
        Ok(Tensor::f_cat(&parts, 1)?)
    }

    fn norm(&self, rows: &Tensor, weight: &Tensor) -> Result<Tensor> {
        Ok(rows.f_rms_norm([self.hidden], Some(weight), self.eps)?)
    }
}

fn feed(layer: &Layer, rows: &Tensor) -> Result<Tensor> {
    let both = rows.f_linear(&layer.gate_up, None::<&Tensor>)?;
    let halves = both.f_chunk(2, -1).context("splitting gate and up")?;
    let [gate, up] = halves.as_slice() else {
        bail!("gate and up are of odd width")
    };
    let gated = gate.f_silu()?.f_mul(up)?;
    Ok(gated.f_linear(&layer.down, None::<&Tensor>)?)
}
