//! Attention of prompts, and of pieces of them, by flash attention over packed rows.

use anyhow::Result;
use tch::{Kind, Tensor};

use super::groups::chosen;
use super::kernel::Varlen;
use crate::native::device::send;
use crate::native::flash::Packed;

/// Several rows of each sequence, over every key up to the last of them. Keys are copied out of their blocks to lie end to end, those
/// of this pass too: a fraction of what the products of a prompt cost, and one path for prompts and what follows.
#[derive(Debug)]
pub(super) struct Chunked {
    /// Rows of the batch, `[rows]`; None: all of them in order.
    rows: Option<Tensor>,
    /// Where their sequences' keys lie in the cache, `[key rows]`.
    slots: Tensor,
    /// First row of each sequence, and the number of all; int32.
    cu_q: Tensor,
    /// The same of keys.
    cu_k: Tensor,
    max_q: i64,
    max_k: i64,
    varlen: Varlen,
}

impl Chunked {
    /// `lengths` are (rows, keys) of each sequence.
    pub fn new(rows: Option<Tensor>, slots: Tensor, lengths: &[(i64, i64)], varlen: Varlen) -> Result<Self> {
        let device = slots.device();
        let ends = |of: fn(&(i64, i64)) -> i64| -> Result<Tensor> {
            let mut ends = vec![0i32];
            let mut end = 0;
            for length in lengths {
                end += of(length);
                ends.push(i32::try_from(end)?);
            }
            send(&Tensor::f_from_slice(&ends)?.f_to_kind(Kind::Int)?, device)
        };
        Ok(Self {
            cu_q: ends(|(rows, _)| *rows)?,
            cu_k: ends(|(_, keys)| *keys)?,
            max_q: lengths.iter().map(|(rows, _)| *rows).max().unwrap_or(0),
            max_k: lengths.iter().map(|(_, keys)| *keys).max().unwrap_or(0),
            rows,
            slots,
            varlen,
        })
    }

    /// `queries` `[rows of the batch, heads, head_dim]` over a layer's cache, to `[rows, heads, head_dim]`.
    pub fn attend(&self, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
        let (mixed, _) = (self.varlen)(&Packed {
            queries: &chosen(queries, self.rows.as_ref())?,
            keys: &keys.f_index_select(0, &self.slots)?,
            values: &values.f_index_select(0, &self.slots)?,
            cu_q: &self.cu_q,
            cu_k: &self.cu_k,
            used_k: None,
            max_q: self.max_q,
            max_k: self.max_k,
            causal: true,
        })?;
        Ok(mixed)
    }
}
