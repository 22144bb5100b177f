//! A step is a kernel of `native/cuda`; products of many rows are cuBLAS'.

use anyhow::Result;
use tch::{Kind, Tensor};

use super::operators::Operators;
use super::{Layout, Parts, Projected, Steps, Stream};
use crate::native::cuda::Shim;
use crate::native::cuda::fused::{self, FEW};
use crate::native::decoder_shape::DecoderShape;

/// Most numbers of a row that the norm takes.
const WIDEST: usize = 32_768;

/// Whether the kernels take such a model; its heads are those that flash attention takes.
pub(in super::super) fn fits(shape: &DecoderShape) -> bool {
    let widths = [shape.hidden, shape.intermediate, shape.head_dim];
    shape.kind == Kind::BFloat16 && shape.hidden <= WIDEST && widths.iter().all(|width| width.is_multiple_of(8))
}

/// Our own kernels.
#[derive(Debug)]
pub(in super::super) struct Fused {
    pub shim: &'static Shim,
    /// Whether a few rows are multiplied by them, too.
    pub products: bool,
}

impl Fused {
    fn multiplies(&self, rows: &Tensor) -> Result<bool> {
        Ok(self.products && (1..=FEW).contains(&rows.size2()?.0))
    }
}

impl Steps for Fused {
    fn norm(&self, stream: &mut Stream, weight: &Tensor, eps: f64) -> Result<Tensor> {
        self.shim.norm(&stream.rows, stream.delta.take().as_ref(), weight, eps)
    }

    fn heads(&self, it: &Projected) -> Result<Tensor> {
        self.shim.heads(&fused::Heads {
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
        })
    }

    fn merge(&self, parts: &Parts) -> Result<Tensor> {
        let group = parts.heads.group();
        self.shim
            .merge(parts.answers, parts.lse, parts.used, parts.blocks, group)
    }

    fn product(&self, rows: &Tensor, matrix: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        match self.multiplies(rows)? {
            true => self.shim.product(rows, matrix, bias),
            false => Operators.product(rows, matrix, bias),
        }
    }

    fn gated(&self, rows: &Tensor, gate_up: &Tensor) -> Result<Tensor> {
        match self.multiplies(rows)? {
            true => self.shim.gated_product(rows, gate_up),
            false => self.shim.gate(&Operators.product(rows, gate_up, None)?),
        }
    }

    fn logits(&self, rows: &Tensor, head: &Tensor, logits: &Tensor) -> Result<()> {
        match self.multiplies(rows)? {
            true => self.shim.logits(rows, head, logits),
            false => Operators.logits(rows, head, logits),
        }
    }
}
