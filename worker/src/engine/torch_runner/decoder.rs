//! The decoder: embedding, layers, final norm and output head over the rows of a pass.

use anyhow::Result;
use tch::{Kind, Tensor};

use super::cache::Cache;
use super::groups::Inputs;
use super::kernel::Heads;
use super::rotary::Rotary;
use super::steps::{Projected, Steps, Stream};
use super::weights::{Layer, Weights};
use crate::native::decoder_shape::DecoderShape;

/// Weights and cache, and what is computed with them. Nothing here waits for the device, so that it can be captured.
#[derive(Debug)]
pub(super) struct Decoder {
    pub weights: Weights,
    pub cache: Cache,
    steps: Box<dyn Steps>,
    heads: Heads,
    eps: f64,
    /// Radians per position, `[head_dim / 2]`, float32.
    frequencies: Tensor,
}

impl Decoder {
    pub fn new(shape: &DecoderShape, weights: Weights, cache: Cache, steps: Box<dyn Steps>) -> Result<Self> {
        let device = weights.embedding.device();
        Ok(Self {
            weights,
            cache,
            steps,
            heads: Heads::of(shape),
            eps: f64::from(shape.rms_eps),
            frequencies: Tensor::f_from_slice(&shape.inv_freq)?.f_to_device(device)?,
        })
    }

    /// Writes keys and values of the pass's rows, and gives what the layers make of them.
    pub fn trunk(&self, inputs: &Inputs) -> Result<Stream> {
        let rotary = Rotary::at(&inputs.positions, &self.frequencies);
        let mut stream = Stream {
            rows: self.weights.embedding.f_index_select(0, &inputs.ids)?,
            delta: None,
        };
        for (i, layer) in self.weights.layers.iter().enumerate() {
            let normed = self.steps.norm(&mut stream, &layer.attention_norm, self.eps)?;
            stream.delta = Some(self.attend(i, layer, &normed, &rotary, inputs)?);
            let normed = self.steps.norm(&mut stream, &layer.mlp_norm, self.eps)?;
            let gated = self.steps.gated(&normed, &layer.gate_up)?;
            stream.delta = Some(self.steps.product(&gated, &layer.down, None)?);
        }
        Ok(stream)
    }

    /// Logits of rows of [`trunk`](Self::trunk), `[rows, vocab]`, float32.
    pub fn logits(&self, stream: &mut Stream) -> Result<Tensor> {
        let head = &self.weights.head;
        let size = [stream.rows.size2()?.0, head.size2()?.0];
        let logits = Tensor::f_empty(size, (Kind::Float, head.device()))?;
        self.logits_into(stream, &logits)?;
        Ok(logits)
    }

    /// The same into `logits`.
    pub fn logits_into(&self, stream: &mut Stream, logits: &Tensor) -> Result<()> {
        let normed = self.steps.norm(stream, &self.weights.final_norm, self.eps)?;
        self.steps.logits(&normed, &self.weights.head, logits)
    }

    fn attend(&self, i: usize, layer: &Layer, rows: &Tensor, rotary: &Rotary, inputs: &Inputs) -> Result<Tensor> {
        let Heads { queries, dim, .. } = self.heads;
        let (keys, values) = self.cache.layer(i)?;
        let queries_of_rows = self.steps.heads(&Projected {
            rows: &self.steps.product(rows, &layer.qkv, layer.qkv_bias.as_ref())?,
            norms: layer.qk_norm.as_ref(),
            eps: self.eps,
            rotary,
            slots: &inputs.slots,
            cache: (keys, values),
            heads: self.heads,
            layout: inputs.layout(),
        })?;
        let mixed = inputs.attend(&queries_of_rows, keys, values, self.steps.as_ref())?;
        let mixed = mixed.f_reshape([-1, queries * dim])?;
        self.steps.product(&mixed, &layer.output, layer.output_bias.as_ref())
    }
}
