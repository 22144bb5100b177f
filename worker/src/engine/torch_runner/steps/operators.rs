//! A step is several of libtorch's operators.

use anyhow::{Context, Result, bail};
use tch::{Kind, Tensor};

use super::{Layout, Parts, Projected, Steps, Stream};
use crate::engine::torch_runner::kernel::Heads;
use crate::native::training::wide_linear;

/// Libtorch's operators.
#[derive(Debug)]
pub(in super::super) struct Operators;

impl Steps for Operators {
    fn norm(&self, stream: &mut Stream, weight: &Tensor, eps: f64) -> Result<Tensor> {
        if let Some(delta) = stream.delta.take() {
            stream.rows = stream.rows.f_add(&delta)?;
        }
        Ok(stream.rows.f_rms_norm(weight.size(), Some(weight), eps)?)
    }

    fn heads(&self, it: &Projected) -> Result<Tensor> {
        let Heads { queries, keys, dim } = it.heads;
        let projected = it.rows.f_view([-1, queries + 2 * keys, dim])?;
        let turned = it.rotary.turn(&normed_heads(it, &projected)?)?;
        let new_keys = turned.f_narrow(1, queries, keys)?;
        let new_values = projected.f_narrow(1, queries + keys, keys)?;
        for (all, new) in [(it.cache.0, new_keys), (it.cache.1, new_values)] {
            let _ = all.shallow_clone().f_index_put_(&[Some(it.slots)], &new, false)?;
        }
        arranged(&turned.f_narrow(1, 0, queries)?, it.heads, it.layout)
    }

    fn merge(&self, parts: &Parts) -> Result<Tensor> {
        let (Heads { queries, keys: kv, dim }, blocks) = (parts.heads, parts.blocks);
        let group = parts.heads.group();
        let answers = parts.answers.f_view([-1, blocks, group, kv, dim])?;
        let mixed = if blocks == 1 {
            answers.f_squeeze_dim(1)?
        } else {
            // A block without keys answers +infinity (FlashAttention 2) or -infinity: neither counts.
            let absent = parts.used.f_eq(0)?.f_view([-1, blocks, 1, 1])?;
            let weights = parts
                .lse
                .f_view([kv, -1, blocks, group])?
                .f_permute([1, 2, 3, 0])?
                .f_masked_fill(&absent, f64::NEG_INFINITY)?
                .f_softmax(1, Kind::Float)?;
            let weighted = answers.f_mul(&weights.f_unsqueeze(-1)?)?;
            weighted
                .f_sum_dim_intlist([1i64].as_slice(), false, Kind::Float)?
                .f_to_kind(parts.answers.kind())?
        };
        Ok(mixed.f_transpose(1, 2)?.f_reshape([-1, queries, dim])?)
    }

    fn product(&self, rows: &Tensor, matrix: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        Ok(rows.f_linear(matrix, bias)?)
    }

    fn gated(&self, rows: &Tensor, gate_up: &Tensor) -> Result<Tensor> {
        let both = self.product(rows, gate_up, None)?;
        let halves = both.f_chunk(2, -1).context("splitting gate and up")?;
        let [gate, up] = halves.as_slice() else {
            bail!("gate and up are of odd width")
        };
        Ok(gate.f_silu()?.f_mul(up)?)
    }

    fn logits(&self, rows: &Tensor, head: &Tensor, logits: &Tensor) -> Result<()> {
        if head.kind() == Kind::Float {
            let _ = rows.f_mm_out(logits, &head.f_tr()?)?;
        } else if head.device().is_cuda() {
            // Sums are float32 until they are stored: bfloat16 would move a logit of 20 by up to 0.06. Only CUDA has the operator.
            let _ = rows.f_mm_dtype_out(logits, &head.f_tr()?, Kind::Float)?;
        } else {
            // Libtorch's own product on a CPU would round them.
            logits.shallow_clone().f_copy_(&wide_linear(rows, head, None)?)?;
        }
        Ok(())
    }
}

/// Query and key heads before they are turned, `[rows, heads + kv_heads, head_dim]`.
fn normed_heads(it: &Projected, projected: &Tensor) -> Result<Tensor> {
    let Heads { queries, keys, dim } = it.heads;
    let Some([query_norm, key_norm]) = it.norms else {
        return Ok(projected.f_narrow(1, 0, queries + keys)?);
    };
    let normed = |first: i64, count: i64, weight: &Tensor| {
        let heads = projected.f_narrow(1, first, count)?.f_contiguous()?;
        heads.f_rms_norm([dim], Some(weight), it.eps)
    };
    let parts = [normed(0, queries, query_norm)?, normed(queries, keys, key_norm)?];
    Ok(Tensor::f_cat(&parts, 1)?)
}

/// Queries `[rows, heads, head_dim]` in the order of `layout`.
pub(in super::super) fn arranged(queries: &Tensor, heads: Heads, layout: Layout) -> Result<Tensor> {
    let (Heads { keys: kv, dim, .. }, group) = (heads, heads.group());
    Ok(match layout {
        Layout::Rows => queries.shallow_clone(),
        Layout::Blocks(blocks) => queries
            .f_reshape([-1, 1, kv, group, dim])?
            .f_transpose(2, 3)?
            .f_expand([-1, blocks, group, kv, dim], false)?
            .f_reshape([-1, kv, dim])?
            // Of one row over one block that is still a view, and flash attention would answer in its order.
            .f_contiguous()?,
    })
}
