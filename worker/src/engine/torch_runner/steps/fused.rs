//! A step is a kernel of `native/cuda`.

use anyhow::Result;
use tch::{Kind, Tensor};

use super::{Layout, Parts, Projected, Steps, Stream};
use crate::engine::decoder_shape::DecoderShape;
use crate::native::cuda::{Shim, fused};

/// Most numbers of a row that the norm takes.
const WIDEST: usize = 32_768;

/// Whether the kernels take such a model; its heads are those that flash attention takes.
pub(in super::super) fn fits(shape: &DecoderShape) -> bool {
    let widths = [shape.hidden, shape.intermediate, shape.head_dim];
    shape.kind == Kind::BFloat16 && shape.hidden <= WIDEST && widths.iter().all(|width| width.is_multiple_of(8))
}

impl Steps for Shim {
    fn norm(&self, stream: &mut Stream, weight: &Tensor, eps: f64) -> Result<Tensor> {
        Shim::norm(self, &stream.rows, stream.delta.take().as_ref(), weight, eps)
    }

    fn heads(&self, it: &Projected) -> Result<Tensor> {
        Shim::heads(
            self,
            &fused::Heads {
                projected: it.rows,
                norms: it.norms,
                frequencies: it.rotary.frequencies(),
                positions: it.rotary.positions(),
                slots: it.slots,
                keys: it.cache.0,
                values: it.cache.1,
                heads: it.heads.queries,
                copies: match it.layout {
                    Layout::Rows => 0,
                    Layout::Blocks(blocks) => blocks,
                },
                eps: it.eps,
            },
        )
    }

    fn merge(&self, parts: &Parts) -> Result<Tensor> {
        Shim::merge(
            self,
            parts.answers,
            parts.lse,
            parts.used,
            parts.blocks,
            parts.heads.group(),
        )
    }

    fn gate(&self, both: &Tensor) -> Result<Tensor> {
        Shim::gate(self, both)
    }
}
