//! What flash attention computes, in plain operators: the kernel itself runs only on a GPU.

use anyhow::Result;
use tch::{Kind, Tensor};

use crate::native::flash::Packed;

/// Sequences of a call, as CUDA's grids have a most.
pub const MOST_SEQUENCES: i64 = 16;

/// As [`flash::attention`](crate::native::flash::attention), on any device and in any precision.
pub fn attention(packed: &Packed) -> Result<(Tensor, Tensor)> {
    let (rows, heads, dim) = packed.queries.size3()?;
    let kv_heads = packed.keys.size3()?.1;
    let numbers = |tensor: &Tensor| Vec::<i64>::try_from(&tensor.to_kind(Kind::Int64)).unwrap();
    for (name, tensor) in [("cu_q", packed.cu_q), ("cu_k", packed.cu_k)] {
        assert_eq!(tensor.kind(), Kind::Int, "{name}");
    }
    let (cu_q, cu_k) = (numbers(packed.cu_q), numbers(packed.cu_k));
    assert_eq!(*cu_q.last().unwrap(), rows);
    assert!(
        cu_q.len() as i64 - 1 <= MOST_SEQUENCES,
        "invalid configuration argument"
    );
    let output = packed.queries.zeros_like();
    let lse = Tensor::full([heads, rows], f64::INFINITY, (Kind::Float, packed.queries.device()));
    let used = packed.used_k.map(|used| {
        assert_eq!(
            (used.kind(), used.size1().unwrap() as usize),
            (Kind::Int, cu_q.len() - 1)
        );
        numbers(used)
    });
    for i in 0..cu_q.len() - 1 {
        let (first, count) = (cu_q[i], cu_q[i + 1] - cu_q[i]);
        let keys = used.as_ref().map_or(cu_k[i + 1] - cu_k[i], |used| used[i]);
        assert!(count <= packed.max_q && keys <= packed.max_k);
        if keys == 0 {
            continue;
        }
        let part = |all: &Tensor| {
            let part = all.narrow(0, cu_k[i], keys).to_kind(Kind::Float).transpose(0, 1);
            part.repeat_interleave_self_int(heads / kv_heads, 0, None)
        };
        let queries = packed
            .queries
            .narrow(0, first, count)
            .to_kind(Kind::Float)
            .transpose(0, 1);
        let mut scores = queries.matmul(&part(packed.keys).transpose(1, 2)) / (dim as f64).sqrt();
        if packed.causal {
            // The last query is beside the last key.
            let hidden = Tensor::ones([count, keys], (Kind::Bool, scores.device())).triu(keys - count + 1);
            scores = scores.masked_fill(&hidden, f64::NEG_INFINITY);
        }
        let mixed = scores
            .softmax(-1, Kind::Float)
            .matmul(&part(packed.values))
            .transpose(0, 1);
        output.narrow(0, first, count).copy_(&mixed);
        lse.narrow(1, first, count)
            .copy_(&scores.logsumexp([-1i64].as_slice(), false));
    }
    Ok((output, lse))
}
