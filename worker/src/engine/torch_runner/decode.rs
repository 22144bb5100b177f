//! Passes of one token a sequence: over tensors that stay where they are, so that a CUDA graph captured once is replayed for each.
//!
//! Launching the kernels of a small model takes longer than running them; a graph launches all of them at once. A graph is
//! for one number of sequences and of blocks each, so passes are filled up to the next power of two of both. With a graph or
//! without, [`Bucket::compute`] is what runs.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use tch::{Device, Kind, Tensor};

use super::Placement;
use super::cache::Cache;
use super::decoder::Decoder;
use super::groups::{Inputs, slot};
use super::kernel::Kernel;
use crate::engine::decoder_shape::DecoderShape;
use crate::native::batch::Batch;
use crate::native::cuda::{Graph, Pool, Shim};
use crate::native::device::{UsualOperators, send};

/// The passes that were seen so far.
#[derive(Debug)]
pub(super) struct Decode {
    shape: DecoderShape,
    kernel: Kernel,
    device: Device,
    /// Most sequences of a pass.
    most: usize,
    filler_block: i64,
    graphs: Option<Graphs>,
    /// By (blocks, sequences).
    buckets: BTreeMap<(usize, usize), Bucket>,
}

/// What graphs are captured with. They share a pool of memory: they are replayed one after another, and leave their answer
/// outside of it.
#[derive(Debug)]
struct Graphs {
    shim: &'static Shim,
    /// Of those that are captured next.
    pool: Pool,
}

/// Passes of so many sequences over so many blocks each, or less.
#[derive(Debug)]
struct Bucket {
    sequences: usize,
    blocks: usize,
    /// Ids, positions and places in the cache of the rows, then their blocks; int64.
    numbers: Tensor,
    /// What the last layer makes of the rows, `[sequences, hidden]`.
    output: Tensor,
    graph: Option<Graph>,
}

impl Decode {
    /// With graphs where `shim` is given. The calling thread must have a stream of its own then.
    pub fn new(shape: &DecoderShape, placement: &Placement, shim: Option<&'static Shim>) -> Result<Self> {
        let graphs = match shim {
            Some(shim) => Some(Graphs {
                pool: shim.pool()?,
                shim,
            }),
            None => None,
        };
        Ok(Self {
            shape: shape.clone(),
            kernel: placement.kernel,
            device: placement.device,
            most: placement.max_sequences.max(1),
            filler_block: Cache::filler_block(placement),
            graphs,
            buckets: BTreeMap::new(),
        })
    }

    /// Numbers of sequences that passes were filled up to.
    #[cfg(test)]
    pub fn sizes_seen(&self) -> Vec<usize> {
        let sizes: std::collections::BTreeSet<usize> = self.buckets.keys().map(|(_, sequences)| *sequences).collect();
        sizes.into_iter().collect()
    }

    /// Whether the batch is one token of each sequence, with its successor drawn.
    pub fn takes(&self, flat: &Batch) -> bool {
        flat.chunks.len() <= self.most
            && flat.chunks.iter().all(|chunk| chunk.rows == 1)
            && flat.logit_rows.len() == flat.tokens.len()
    }

    /// What the last layer makes of the batch's rows, `[rows, hidden]`; valid until the next call.
    pub fn run(&mut self, flat: &Batch, decoder: &Decoder) -> Result<Tensor> {
        let block_size = self.kernel.block_size();
        let blocks = flat.chunks.iter().map(|chunk| chunk.start as usize / block_size + 1);
        let blocks = blocks.max().unwrap_or(1).next_power_of_two();
        let sequences = flat.chunks.len().next_power_of_two().min(self.most);
        self.prepare(blocks, sequences, decoder)?;
        let bucket = self
            .buckets
            .get_mut(&(blocks, sequences))
            .context("a pass of unknown size")?;
        let numbers = bucket.numbers_of(flat, block_size, self.filler_block);
        let numbers = send(&Tensor::f_from_slice(&numbers)?, self.device)?;
        bucket.numbers.f_copy_(&numbers)?;
        match &bucket.graph {
            Some(graph) => graph.replay()?,
            None => bucket.compute(decoder, &self.shape, self.kernel)?,
        }
        Ok(bucket.output.f_narrow(0, 0, flat.chunks.len() as i64)?)
    }

    /// Makes what passes over so many blocks need: with graphs for every number of sequences at once, the largest first, so
    /// that the smaller find room in the memory that it left.
    fn prepare(&mut self, blocks: usize, sequences: usize, decoder: &Decoder) -> Result<()> {
        if self.buckets.contains_key(&(blocks, sequences)) {
            return Ok(());
        }
        let wanted = match self.graphs {
            Some(_) => sizes(self.most),
            None => vec![sequences],
        };
        for sequences in wanted.into_iter().rev() {
            let mut bucket = Bucket::new(sequences, blocks, &self.shape, self.device)?;
            if let Some(graphs) = &mut self.graphs {
                let filler = bucket.numbers_of(&Batch::default(), self.kernel.block_size(), self.filler_block);
                bucket.numbers.f_copy_(&Tensor::f_from_slice(&filler)?)?;
                match bucket.captured(decoder, &self.shape, self.kernel, graphs) {
                    Ok(graph) => bucket.graph = Some(graph),
                    Err(error) => {
                        tracing::warn!("passes of one size are decoded without a CUDA graph: {error:#}");
                        // Others may be captured all the same, smaller ones need less memory; but not into a pool that a
                        // failed capture was the only one of.
                        graphs.pool = graphs.shim.pool()?;
                    }
                }
            }
            self.buckets.entry((blocks, sequences)).or_insert(bucket);
        }
        Ok(())
    }
}

/// Numbers of sequences that passes are filled up to: powers of two, and the most there may be.
fn sizes(most: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> = std::iter::successors(Some(1), |size| Some(size * 2))
        .take_while(|size| *size < most)
        .collect();
    sizes.push(most);
    sizes
}

impl Bucket {
    fn new(sequences: usize, blocks: usize, shape: &DecoderShape, device: Device) -> Result<Self> {
        let count = i64::try_from(sequences * (3 + blocks))?;
        Ok(Self {
            sequences,
            blocks,
            numbers: Tensor::f_zeros([count], (Kind::Int64, device))?,
            output: Tensor::f_zeros([sequences as i64, shape.hidden as i64], (shape.kind, device))?,
            graph: None,
        })
    }

    /// The batch as numbers, filled up with rows that see one position of the filler block.
    fn numbers_of(&self, flat: &Batch, block_size: usize, filler_block: i64) -> Vec<i64> {
        let (sequences, block_size) = (self.sequences, block_size as i64);
        let mut numbers = vec![0; sequences * (3 + self.blocks)];
        let (ids, rest) = numbers.split_at_mut(sequences);
        let (positions, rest) = rest.split_at_mut(sequences);
        let (slots, table) = rest.split_at_mut(sequences);
        slots.fill(filler_block * block_size);
        table.fill(filler_block);
        for (i, (chunk, token)) in flat.chunks.iter().zip(&flat.tokens).enumerate() {
            let position = i64::from(chunk.start);
            ids[i] = i64::from(*token);
            positions[i] = position;
            slots[i] = slot(flat, chunk, position, block_size);
            for block in 0..=(position / block_size) {
                let number = slot(flat, chunk, block * block_size, block_size) / block_size;
                table[i * self.blocks + block as usize] = number;
            }
        }
        numbers
    }

    /// The pass over `numbers`, into `output`. Reads and writes nothing else that a later pass might move, and waits for nothing.
    fn compute(&self, decoder: &Decoder, shape: &DecoderShape, kernel: Kernel) -> Result<()> {
        let n = self.sequences as i64;
        let part = |i: i64| self.numbers.f_narrow(0, i * n, n);
        let table = self.numbers.f_narrow(0, 3 * n, n * self.blocks as i64)?;
        let inputs = Inputs::single(
            [part(0)?, part(1)?, part(2)?],
            &table.f_view([n, self.blocks as i64])?,
            shape,
            kernel,
        )?;
        let hidden = decoder.trunk(&inputs)?;
        Ok(self.output.shallow_clone().f_copy_(&hidden)?)
    }

    /// [`compute`](Self::compute) as a graph. It runs once before: what libraries load or reserve at first use cannot be captured.
    fn captured(&self, decoder: &Decoder, shape: &DecoderShape, kernel: Kernel, graphs: &Graphs) -> Result<Graph> {
        let what = || {
            format!(
                "capturing a pass of {} sequences over {} blocks",
                self.sequences, self.blocks
            )
        };
        // What a backward pass in another thread requires for a moment would stay in the graph for good.
        let _usual = UsualOperators::hold();
        self.compute(decoder, shape, kernel).with_context(what)?;
        // The pool has memory of its own: what that pass left free would be taken a second time.
        graphs.shim.empty_cache().with_context(what)?;
        graphs
            .shim
            .capture(graphs.pool, || self.compute(decoder, shape, kernel))
            .with_context(what)
    }
}

#[cfg(test)]
mod tests {
    use super::sizes;

    #[test]
    fn passes_are_filled_up_to_powers_of_two_and_the_most_there_may_be() {
        assert_eq!(sizes(1), [1]);
        assert_eq!(sizes(8), [1, 2, 4, 8]);
        assert_eq!(sizes(100), [1, 2, 4, 8, 16, 32, 64, 100]);
    }
}
