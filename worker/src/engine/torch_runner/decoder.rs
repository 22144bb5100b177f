//! The decoder: embedding, layers, final norm and output head over the rows of a pass.

use anyhow::Result;
use tch::{Kind, Tensor};

use super::cache::Cache;
use super::groups::Inputs;
use super::kernel::Heads;
use super::rotary::Rotary;
use super::steps::{Projected, Steps, Stream};
use super::weights::{Layer, Weights};
use crate::engine::decoder_shape::DecoderShape;

/// Weights and cache, and what is computed with them. Nothing here waits for the device, so that it can be captured.
#[derive(Debug)]
pub(super) struct Decoder {
    pub weights: Weights,
    pub cache: Cache,
    steps: &'static dyn Steps,
    heads: Heads,
    eps: f64,
    /// Radians per position, `[head_dim / 2]`, float32.
    frequencies: Tensor,
}

impl Decoder {
    pub fn new(shape: &DecoderShape, weights: Weights, cache: Cache, steps: &'static dyn Steps) -> Result<Self> {
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
            let both = normed.f_linear(&layer.gate_up, None::<&Tensor>)?;
            stream.delta = Some(self.steps.gate(&both)?.f_linear(&layer.down, None::<&Tensor>)?);
        }
        Ok(stream)
    }

    /// Logits of rows of [`trunk`](Self::trunk), `[rows, vocab]`, float32.
    pub fn logits(&self, stream: &mut Stream) -> Result<Tensor> {
        let (normed, head) = (self.final_norm(stream)?, &self.weights.head);
        if self.has_wide_product() {
            return Ok(normed.f_mm_dtype(&head.f_tr()?, Kind::Float)?);
        }
        Ok(normed.f_linear(head, None::<&Tensor>)?.f_to_kind(Kind::Float)?)
    }

    /// The same into `logits`.
    pub fn logits_into(&self, stream: &mut Stream, logits: &Tensor) -> Result<()> {
        if self.has_wide_product() {
            let head = self.weights.head.f_tr()?;
            let _ = self.final_norm(stream)?.f_mm_dtype_out(logits, &head, Kind::Float)?;
            return Ok(());
        }
        Ok(logits.shallow_clone().f_copy_(&self.logits(stream)?)?)
    }

    fn final_norm(&self, stream: &mut Stream) -> Result<Tensor> {
        self.steps.norm(stream, &self.weights.final_norm, self.eps)
    }

    /// Whether the head's sums are float32 until they are stored: bfloat16 would move a logit of 20 by up to 0.06. Only CUDA has
    /// the operator.
    fn has_wide_product(&self) -> bool {
        let head = &self.weights.head;
        head.kind() != Kind::Float && head.device().is_cuda()
    }

    fn attend(&self, i: usize, layer: &Layer, rows: &Tensor, rotary: &Rotary, inputs: &Inputs) -> Result<Tensor> {
        let Heads { queries, dim, .. } = self.heads;
        let (keys, values) = self.cache.layer(i)?;
        let queries_of_rows = self.steps.heads(&Projected {
            rows: &rows.f_linear(&layer.qkv, layer.qkv_bias.as_ref())?,
            norms: layer.qk_norm.as_ref(),
            eps: self.eps,
            rotary,
            slots: &inputs.slots,
            cache: (keys, values),
            heads: self.heads,
            layout: inputs.layout(),
        })?;
        let mixed = inputs.attend(&queries_of_rows, keys, values, self.steps)?;
        let mixed = mixed.f_reshape([-1, queries * dim])?;
        Ok(mixed.f_linear(&layer.output, layer.output_bias.as_ref())?)
    }
}
