//! The decoder's tensors on the device, those of one input fused into one product. They are written in place: a captured graph
//! reads their addresses.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use tch::{Device, Tensor};

use crate::engine::changes::Changes;
use crate::engine::found_weights::find;
use crate::model::MergedWeights;
use crate::model::names::{EMBEDDING, LM_HEAD};
use crate::native::decoder_shape::DecoderShape;

/// Changed numbers that are written at once: of many a GPU that is nearly full has no room for their places.
const WRITTEN: usize = 1 << 22;

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

    /// Where each tensor of a model goes, by its name: views of the tensors here.
    fn places(&self, s: &DecoderShape) -> Result<BTreeMap<String, Tensor>> {
        let mut places = BTreeMap::new();
        let (q, kv) = (s.heads * s.head_dim, s.kv_heads * s.head_dim);
        for (index, layer) in self.layers.iter().enumerate() {
            // Parts of a fused tensor follow each other.
            let mut put = |whole: &Tensor, parts: &[(&str, usize)]| -> Result<()> {
                let mut row = 0;
                for (name, rows) in parts {
                    let rows = *rows as i64;
                    places.insert(format!("model.layers.{index}.{name}"), whole.f_narrow(0, row, rows)?);
                    row += rows;
                }
                Ok(())
            };
            let three = [
                ("self_attn.q_proj.weight", q),
                ("self_attn.k_proj.weight", kv),
                ("self_attn.v_proj.weight", kv),
            ];
            put(&layer.qkv, &three)?;
            put(&layer.output, &[("self_attn.o_proj.weight", s.hidden)])?;
            let two = [
                ("mlp.gate_proj.weight", s.intermediate),
                ("mlp.up_proj.weight", s.intermediate),
            ];
            put(&layer.gate_up, &two)?;
            put(&layer.down, &[("mlp.down_proj.weight", s.hidden)])?;
            put(&layer.attention_norm, &[("input_layernorm.weight", s.hidden)])?;
            put(&layer.mlp_norm, &[("post_attention_layernorm.weight", s.hidden)])?;
            if let Some(bias) = &layer.qkv_bias {
                let three = [
                    ("self_attn.q_proj.bias", q),
                    ("self_attn.k_proj.bias", kv),
                    ("self_attn.v_proj.bias", kv),
                ];
                put(bias, &three)?;
            }
            if let Some(bias) = &layer.output_bias {
                put(bias, &[("self_attn.o_proj.bias", s.hidden)])?;
            }
            if let Some([query, key]) = &layer.qk_norm {
                put(query, &[("self_attn.q_norm.weight", s.head_dim)])?;
                put(key, &[("self_attn.k_norm.weight", s.head_dim)])?;
            }
        }
        places.insert("model.norm.weight".into(), self.final_norm.shallow_clone());
        places.insert(EMBEDDING.into(), self.embedding.shallow_clone());
        if !s.tied {
            places.insert(LM_HEAD.into(), self.head.shallow_clone());
        }
        Ok(places)
    }

    /// Copies the tensors of `weights` over the present ones. `is_whole` is false while some are new and some old.
    pub fn load(&self, weights: &MergedWeights, shape: &DecoderShape, is_whole: &mut bool) -> Result<()> {
        let places = self.places(shape)?;
        // Everything is looked up first: a missing tensor must not leave a mixture of two policies.
        let found: Vec<_> = places
            .iter()
            .map(|(name, place)| Ok((place, find(weights, name, &place.size())?)))
            .collect::<Result<_>>()?;
        *is_whole = false;
        for (place, tensor) in found {
            // Merged when it is written, so that one merged tensor exists at a time.
            place.shallow_clone().f_copy_(&tensor.merge()?)?;
        }
        *is_whole = true;
        Ok(())
    }

    /// Writes what changed over it, as [`load`](Self::load) does with all.
    pub fn change(&self, changes: &Changes, shape: &DecoderShape, is_whole: &mut bool) -> Result<()> {
        let places = self.places(shape)?;
        let found = changes.placed(&places)?;
        *is_whole = false;
        for (place, change) in found {
            let mut numbers = change.positions().zip(change.floats());
            loop {
                let (positions, values): (Vec<i64>, Vec<f32>) = numbers.by_ref().take(WRITTEN).unzip();
                if positions.is_empty() {
                    break;
                }
                let values = Tensor::f_from_slice(&values)?
                    .f_to_device(place.device())?
                    .f_to_kind(place.kind())?;
                let positions = Tensor::f_from_slice(&positions)?.f_to_device(place.device())?;
                let _ = place.f_view([-1])?.f_index_copy_(0, &positions, &values)?;
            }
        }
        *is_whole = true;
        Ok(())
    }
}
