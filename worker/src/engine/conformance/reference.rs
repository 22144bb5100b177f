//! A decoder written with plain tensor operators in float32, to compare with. For bfloat16 it rounds what the native decoder
//! rounds: inputs of products, keys and values.

use tch::{Device, Kind, Tensor};

use crate::model::Weights;
use crate::native::decoder_shape::DecoderShape;

/// Logits `[tokens, vocab]` of one sequence.
pub fn logits(s: &DecoderShape, weights: &Weights, tokens: &[u32]) -> Tensor {
    let get = |name: &str| weights.0[name].to_kind(Kind::Float);
    let ids: Vec<i64> = tokens.iter().map(|token| i64::from(*token)).collect();
    let (n, heads, kv_heads, d) = (ids.len() as i64, s.heads as i64, s.kv_heads as i64, s.head_dim as i64);
    let norm = |x: &Tensor, weight: &Tensor| {
        let mean = (x * x).mean_dim(-1, true, Kind::Float);
        x * (mean + f64::from(s.rms_eps)).rsqrt() * weight
    };
    let stored = |x: Tensor| x.to_kind(s.kind).to_kind(Kind::Float);
    let positions = Tensor::arange(n, (Kind::Float, Device::Cpu));
    let angles = positions.outer(&Tensor::from_slice(&s.inv_freq));
    let angles = Tensor::cat(&[&angles, &angles], -1).unsqueeze(1); // [tokens, 1, head_dim]
    let (cos, sin) = (angles.cos(), angles.sin());
    let rotate = |x: Tensor| {
        let halves = x.chunk(2, -1);
        &x * &cos + Tensor::cat(&[-&halves[1], halves[0].shallow_clone()], -1) * &sin
    };
    let embedding = get("model.embed_tokens.weight");
    let mut x = embedding.index_select(0, &Tensor::from_slice(&ids));
    for i in 0..s.layers {
        let at = |name: &str| get(&format!("model.layers.{i}.{name}"));
        let y = stored(norm(&x, &at("input_layernorm.weight")));
        let project = |which: &str, heads: i64| {
            let mut out = y.matmul(&at(&format!("self_attn.{which}_proj.weight")).tr());
            if s.qkv_bias {
                out += at(&format!("self_attn.{which}_proj.bias"));
            }
            let out = out.view([n, heads, d]);
            match which {
                "q" | "k" if s.qk_norm => norm(&out, &at(&format!("self_attn.{which}_norm.weight"))),
                _ => out,
            }
        };
        let q = rotate(project("q", heads)).transpose(0, 1);
        let k = stored(rotate(project("k", kv_heads)))
            .transpose(0, 1)
            .repeat_interleave_self_int(heads / kv_heads, 0, None);
        let v = stored(project("v", kv_heads))
            .transpose(0, 1)
            .repeat_interleave_self_int(heads / kv_heads, 0, None);
        let mask = Tensor::full([n, n], f64::NEG_INFINITY, (Kind::Float, Device::Cpu)).triu(1);
        let attention = (q.matmul(&k.transpose(1, 2)) / (d as f64).sqrt() + mask).softmax(-1, Kind::Float);
        let mixed = stored(attention.matmul(&v).transpose(0, 1).reshape([n, heads * d]));
        x += mixed.matmul(&at("self_attn.o_proj.weight").tr());
        if s.output_bias {
            x += at("self_attn.o_proj.bias");
        }
        let y = stored(norm(&x, &at("post_attention_layernorm.weight")));
        let gated =
            stored(y.matmul(&at("mlp.gate_proj.weight").tr()).silu() * y.matmul(&at("mlp.up_proj.weight").tr()));
        x += gated.matmul(&at("mlp.down_proj.weight").tr());
    }
    let head = if s.tied { embedding } else { get("lm_head.weight") };
    stored(norm(&x, &get("model.norm.weight"))).matmul(&head.tr())
}
