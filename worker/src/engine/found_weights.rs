//! The tensors that a decoder shape calls for, looked up by their Hugging Face names.

use anyhow::{Result, bail, ensure};
use tch::Tensor;

use super::decoder_shape::DecoderShape;
use crate::model::MergedWeights;
use crate::model::adapter::merged::Unmerged;

/// Tensors of one decoder block.
pub(super) struct FoundLayer<'a> {
    pub(super) qkv: [Unmerged<'a>; 3],
    pub(super) output: Unmerged<'a>,
    pub(super) gate_up: [Unmerged<'a>; 2],
    pub(super) down: Unmerged<'a>,
    pub(super) attention_norm: &'a Tensor,
    pub(super) mlp_norm: &'a Tensor,
    pub(super) qkv_bias: Option<[&'a Tensor; 3]>,
    pub(super) output_bias: Option<&'a Tensor>,
    pub(super) qk_norm: Option<[&'a Tensor; 2]>,
}

/// Every tensor a shape asks for, present and of the right size.
pub(super) struct Found<'a> {
    pub(super) layers: Vec<FoundLayer<'a>>,
    pub(super) final_norm: &'a Tensor,
    pub(super) head: Unmerged<'a>,
    pub(super) embedding: Unmerged<'a>,
}

/// The tensor called `name`, which must have that size.
///
/// # Errors
/// When it is missing or of another shape, naming it.
pub(super) fn find<'a>(weights: &'a MergedWeights, name: &str, size: &[usize]) -> Result<Unmerged<'a>> {
    let Some(tensor) = weights.get(name) else {
        bail!("the weights have no tensor {name}")
    };
    let size: Vec<i64> = size.iter().map(|n| *n as i64).collect();
    ensure!(
        tensor.weight.size() == size,
        "{name} has shape {:?}, the model needs {size:?}",
        tensor.weight.size()
    );
    Ok(tensor)
}

impl<'a> Found<'a> {
    /// # Errors
    /// When a tensor is missing or of another shape, naming it.
    pub(super) fn all(weights: &'a MergedWeights, s: &DecoderShape) -> Result<Self> {
        let matrix = |name: String, size: &[usize]| find(weights, &name, size);
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
                output_bias: match s.output_bias {
                    false => None,
                    true => Some(take(at("self_attn.o_proj.bias"), &[s.hidden])?),
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
