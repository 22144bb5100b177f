//! Where each tensor of a model goes in the native decoder's weights, by its Hugging Face name.

use std::collections::BTreeMap;

use anyhow::Result;
use tch::{Device, Kind, Tensor};

use crate::native::bytes::bytes_of;
use crate::native::change::Change;
use crate::native::decoder_shape::DecoderShape;
use crate::native::packed::{Matrix, MatrixChange, PackedWeights, Vector};

/// What a tensor becomes.
#[derive(Clone, Copy, Debug)]
pub enum Slot {
    /// A part of a matrix.
    Rows(Matrix, usize),
    /// Numbers of a vector, from one on.
    Numbers(Vector, usize),
}

/// The place of one tensor.
#[derive(Clone, Debug)]
pub struct Place {
    /// 0 for what is not a layer's.
    pub layer: usize,
    /// What it becomes there.
    pub slot: Slot,
    /// Its shape.
    pub size: Vec<i64>,
}

/// Bytes of numbers that several threads write sooner than one.
const WORTH_THREADS: usize = 1 << 20;

/// Writes what changed of tensors, each at its place; `threads` compute.
///
/// # Errors
/// When a tensor has no such numbers.
pub fn change(weights: &mut PackedWeights, changes: &[(&Place, Change)], threads: usize) -> Result<()> {
    let mut matrices = Vec::new();
    for (place, change) in changes {
        match place.slot {
            Slot::Rows(matrix, part) => matrices.push(MatrixChange {
                layer: place.layer,
                matrix: (matrix, part),
                change: *change,
            }),
            Slot::Numbers(vector, first) => {
                for (at, number) in change.positions().zip(change.floats()) {
                    weights.set_vector(place.layer, vector, first + usize::try_from(at)?, &[number])?;
                }
            }
        }
    }
    let bytes: usize = changes.iter().map(|(_, change)| change.values.len()).sum();
    weights.change(&matrices, if bytes < WORTH_THREADS { 1 } else { threads })
}

/// The places of every tensor that the shape calls for.
pub fn places(s: &DecoderShape) -> BTreeMap<String, Place> {
    let (q, kv) = (s.heads * s.head_dim, s.kv_heads * s.head_dim);
    let mut places = BTreeMap::new();
    for layer in 0..s.layers {
        let mut put = |name: &str, slot: Slot, size: &[usize]| {
            let size = size.iter().map(|n| *n as i64).collect();
            places.insert(format!("model.layers.{layer}.{name}"), Place { layer, slot, size });
        };
        let (rows, numbers) = (Slot::Rows, Slot::Numbers);
        put("self_attn.q_proj.weight", rows(Matrix::Qkv, 0), &[q, s.hidden]);
        put("self_attn.k_proj.weight", rows(Matrix::Qkv, 1), &[kv, s.hidden]);
        put("self_attn.v_proj.weight", rows(Matrix::Qkv, 2), &[kv, s.hidden]);
        put("self_attn.o_proj.weight", rows(Matrix::Output, 0), &[s.hidden, q]);
        let gated = [s.intermediate, s.hidden];
        put("mlp.gate_proj.weight", rows(Matrix::GateUp, 0), &gated);
        put("mlp.up_proj.weight", rows(Matrix::GateUp, 1), &gated);
        let down = [s.hidden, s.intermediate];
        put("mlp.down_proj.weight", rows(Matrix::Down, 0), &down);
        let norms = [
            ("input_layernorm.weight", Vector::AttentionNorm),
            ("post_attention_layernorm.weight", Vector::MlpNorm),
        ];
        for (name, vector) in norms {
            put(name, numbers(vector, 0), &[s.hidden]);
        }
        if s.qkv_bias {
            put("self_attn.q_proj.bias", numbers(Vector::QkvBias, 0), &[q]);
            put("self_attn.k_proj.bias", numbers(Vector::QkvBias, q), &[kv]);
            put("self_attn.v_proj.bias", numbers(Vector::QkvBias, q + kv), &[kv]);
        }
        if s.qk_norm {
            put("self_attn.q_norm.weight", numbers(Vector::QueryNorm, 0), &[s.head_dim]);
            put("self_attn.k_norm.weight", numbers(Vector::KeyNorm, 0), &[s.head_dim]);
        }
    }
    let embedding = if s.tied { Matrix::Head } else { Matrix::Embedding };
    let mut put = |name: &str, slot: Slot, size: &[usize]| {
        let size = size.iter().map(|n| *n as i64).collect();
        places.insert(name.to_owned(), Place { layer: 0, slot, size });
    };
    put("model.norm.weight", Slot::Numbers(Vector::FinalNorm, 0), &[s.hidden]);
    let words = [s.vocab, s.hidden];
    put("model.embed_tokens.weight", Slot::Rows(embedding, 0), &words);
    if !s.tied {
        put("lm_head.weight", Slot::Rows(Matrix::Head, 0), &words);
    }
    places
}

impl Place {
    /// Puts the whole tensor there, converted to what the decoder stores; `threads` compute.
    ///
    /// # Errors
    /// When it is not of this size, or libtorch fails.
    pub fn set(&self, weights: &mut PackedWeights, tensor: &Tensor, threads: usize) -> Result<()> {
        let plain = |kind: Kind| tensor.f_to_device(Device::Cpu)?.f_to_kind(kind)?.f_contiguous();
        match self.slot {
            Slot::Rows(matrix, part) => {
                let rows = plain(weights.shape().kind)?;
                weights.set_rows(self.layer, (matrix, part), 0, bytes_of(&rows)?, threads)
            }
            Slot::Numbers(vector, first) => {
                let numbers = Vec::<f32>::try_from(&plain(Kind::Float)?)?;
                weights.set_vector(self.layer, vector, first, &numbers)
            }
        }
    }
}
