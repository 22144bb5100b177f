//! Passes of one token a sequence: over tensors that stay where they are, so that a CUDA graph captured once is replayed for each.
//!
//! Launching the kernels of a small model takes longer than running them; a graph launches all of them at once. A graph is
//! for one number of sequences and of blocks each, so passes are filled up to the next power of two of both. With a graph or
//! without, [`Bucket::compute`] is what runs: everything from ids to logits, and with our own kernels to drawn tokens. So a pass is one
//! copy to the device, a graph, and one copy back.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use tch::{Device, Kind, Tensor};

use super::Placement;
use super::blockwise::{self, Blockwise};
use super::cache::Cache;
use super::decoder::Decoder;
use super::draws;
use super::gathered::Gathered;
use super::groups::{Group, Inputs, slot};
use super::kernel::{Heads, Kernel};
use crate::native::batch::{Batch, Draw, Drawn};
use crate::native::cuda::{Graph, Pool, Shim};
use crate::native::decoder_shape::DecoderShape;
use crate::native::device::{Staging, UsualOperators};

/// The passes that were seen so far.
#[derive(Debug)]
pub(super) struct Decode {
    /// Most sequences of a pass.
    most: usize,
    filler_block: i64,
    fixed: Fixed,
    graphs: Option<Graphs>,
    staging: Staging,
    /// By (blocks, sequences).
    buckets: BTreeMap<(usize, usize), Bucket>,
}

/// What passes of all sizes have in common.
#[derive(Debug)]
struct Fixed {
    kernel: Kernel,
    heads: Heads,
    device: Device,
    /// What passes answer, `[most, vocab]`, float32. Outside of the memory that graphs share: there a graph's answer may be spoilt by the
    /// next.
    logits: Tensor,
    /// What the kernels drew, `[most]`, int64.
    drawn: Tensor,
    /// With our own kernels tokens are drawn in the pass.
    fused: Option<&'static Shim>,
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
    /// The pass as [`Fixed::numbers_of`] has it, int64.
    numbers: Tensor,
    graph: Option<Graph>,
}

/// What a pass gave.
#[derive(Debug)]
pub(super) struct Answer {
    /// Of the batch's rows, `[rows, vocab]`, float32; valid until the next pass.
    pub logits: Tensor,
    /// What was drawn; None: that is still to be done.
    pub drawn: Option<Vec<Drawn>>,
}

impl Decode {
    /// With graphs where `graphs` is given; the calling thread must have a stream of its own then. With our own kernels where `fused` is.
    pub fn new(
        shape: &DecoderShape,
        placement: &Placement,
        graphs: Option<&'static Shim>,
        fused: Option<&'static Shim>,
    ) -> Result<Self> {
        let (most, device) = (placement.max_sequences.max(1), placement.device);
        let rows = i64::try_from(most)?;
        let graphs = match graphs {
            Some(shim) => Some(Graphs {
                pool: shim.pool()?,
                shim,
            }),
            None => None,
        };
        Ok(Self {
            most,
            filler_block: Cache::filler_block(placement),
            fixed: Fixed {
                kernel: placement.kernel,
                heads: Heads::of(shape),
                device,
                logits: Tensor::f_zeros([rows, shape.vocab as i64], (Kind::Float, device))?,
                drawn: Tensor::f_zeros([rows], (Kind::Int64, device))?,
                fused,
            },
            graphs,
            staging: Staging::new(0, device)?,
            buckets: BTreeMap::new(),
        })
    }

    /// Numbers of sequences that passes were filled up to.
    #[cfg(test)]
    pub fn sizes_seen(&self) -> Vec<usize> {
        let sizes: std::collections::BTreeSet<usize> = self.buckets.keys().map(|(_, sequences)| *sequences).collect();
        sizes.into_iter().collect()
    }

    /// Whether every pass has one.
    #[cfg(test)]
    pub fn has_graphs(&self) -> bool {
        self.buckets.values().all(|bucket| bucket.graph.is_some())
    }

    /// Whether the batch is one token of each sequence, with its successor drawn.
    pub fn takes(&self, flat: &Batch) -> bool {
        flat.chunks.len() <= self.most
            && flat.chunks.iter().all(|chunk| chunk.rows == 1)
            && flat.logit_rows.len() == flat.tokens.len()
    }

    pub fn run(&mut self, flat: &Batch, decoder: &Decoder) -> Result<Answer> {
        let block_size = self.fixed.kernel.block_size();
        let blocks = flat.chunks.iter().map(|chunk| chunk.start as usize / block_size + 1);
        let blocks = blocks.max().unwrap_or(1).next_power_of_two();
        let sequences = flat.chunks.len().next_power_of_two().min(self.most);
        self.prepare(blocks, sequences, decoder)?;
        let bucket = self
            .buckets
            .get(&(blocks, sequences))
            .context("a pass of unknown size")?;
        // Draws that the pass does not make are made of its logits.
        let is_drawn = self.fixed.fused.is_some() && flat.draws.len() <= sequences && draws::are_plain(&flat.draws);
        let draws = if is_drawn { flat.draws.as_slice() } else { &[] };
        let numbers = bucket.numbers_of(flat, draws, &self.fixed, self.filler_block);
        self.staging.send(&numbers, &bucket.numbers)?;
        match &bucket.graph {
            Some(graph) => graph.replay()?,
            None => bucket.compute(decoder, &self.fixed)?,
        }
        let drawn = match is_drawn {
            true => {
                let answers = self.fixed.drawn.f_narrow(0, 0, draws.len() as i64)?;
                let answers = self.staging.fetch(&answers)?;
                Some(answers.into_iter().map(draws::answer).collect())
            }
            false => None,
        };
        Ok(Answer {
            logits: self.fixed.logits.f_narrow(0, 0, flat.chunks.len() as i64)?,
            drawn,
        })
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
        let words = Bucket::words(self.most, blocks, &self.fixed);
        if self.staging.count() < words {
            self.staging = Staging::new(words, self.fixed.device)?;
        }
        for (i, sequences) in wanted.into_iter().rev().enumerate() {
            let mut bucket = Bucket::new(sequences, blocks, &self.fixed)?;
            if let Some(graphs) = &mut self.graphs {
                let filler = bucket.numbers_of(&Batch::default(), &[], &self.fixed, self.filler_block);
                self.staging.send(&filler, &bucket.numbers)?;
                match bucket.captured(decoder, &self.fixed, graphs, i == 0) {
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
    fn new(sequences: usize, blocks: usize, fixed: &Fixed) -> Result<Self> {
        let count = i64::try_from(Self::words(sequences, blocks, fixed))?;
        Ok(Self {
            sequences,
            blocks,
            numbers: Tensor::f_zeros([count], (Kind::Int64, fixed.device))?,
            graph: None,
        })
    }

    /// Numbers of a pass: draws (the first, as the kernels want them at a multiple of 16 bytes); ids, positions and places in the cache of
    /// the rows; their blocks, or what [`Blockwise`] has to know of them, two to a number.
    fn words(sequences: usize, blocks: usize, fixed: &Fixed) -> usize {
        let of_attention = match fixed.kernel.flash {
            Some(_) => blockwise::count(sequences, blocks).div_ceil(2),
            None => sequences * blocks,
        };
        sequences * (draws::WORDS as usize + 3) + of_attention
    }

    /// The batch as numbers, filled up with rows that see one position of the filler block, and with draws that nobody reads.
    fn numbers_of(&self, flat: &Batch, draws: &[Draw], fixed: &Fixed, filler_block: i64) -> Vec<i64> {
        let (sequences, block_size) = (self.sequences, fixed.kernel.block_size() as i64);
        let mut table = vec![filler_block; sequences * self.blocks];
        let mut numbers = Vec::with_capacity(Self::words(sequences, self.blocks, fixed));
        numbers.extend(draws.iter().flat_map(draws::words));
        numbers.resize(sequences * (draws::WORDS as usize + 3), 0);
        let (ids, rest) = numbers
            .split_at_mut(sequences * draws::WORDS as usize)
            .1
            .split_at_mut(sequences);
        let (positions, slots) = rest.split_at_mut(sequences);
        slots.fill(filler_block * block_size);
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
        if fixed.kernel.flash.is_none() {
            numbers.extend(table);
            return numbers;
        }
        let pairs = blockwise::numbers(positions, &table, fixed.heads, block_size);
        let pair = |pair: &[i32]| {
            pair.iter()
                .rev()
                .fold(0, |word, half| word << 32 | i64::from(*half as u32))
        };
        numbers.extend(pairs.chunks(2).map(pair));
        numbers
    }

    /// The pass over `numbers`, to logits and drawn tokens. Reads and writes nothing else that a later pass might move, and waits for
    /// nothing.
    fn compute(&self, decoder: &Decoder, fixed: &Fixed) -> Result<()> {
        let (n, blocks, block_size) = (
            self.sequences as i64,
            self.blocks as i64,
            fixed.kernel.block_size() as i64,
        );
        let part = |i: i64, count: i64| self.numbers.f_narrow(0, i * n, count);
        let first = draws::WORDS;
        let (ids, positions, slots) = (part(first, n)?, part(first + 1, n)?, part(first + 2, n)?);
        let of_attention = part(first + 3, self.numbers.size1()? - (first + 3) * n)?;
        let group = match fixed.kernel.flash {
            Some(flash) => {
                let numbers = of_attention.f_view_dtype(Kind::Int)?;
                let numbers = numbers.f_narrow(0, 0, blockwise::count(self.sequences, self.blocks) as i64)?;
                Group::Blockwise(Blockwise::new(None, &numbers, n, fixed.heads, block_size, flash)?)
            }
            None => {
                let (table, at) = (of_attention.f_view([n, blocks])?, positions.f_unsqueeze(1)?);
                Group::Gathered(Gathered::new(None, &table, &at, fixed.heads, block_size)?)
            }
        };
        let mut stream = decoder.trunk(&Inputs::single([ids, positions, slots], group))?;
        let logits = fixed.logits.f_narrow(0, 0, n)?;
        decoder.logits_into(&mut stream, &logits)?;
        if let Some(shim) = fixed.fused {
            let draws = part(0, first * n)?.f_view([n, first])?;
            shim.draw(&logits, &draws, &fixed.drawn.f_narrow(0, 0, n)?)?;
        }
        Ok(())
    }

    /// [`compute`](Self::compute) as a graph. It runs once before: what libraries load or reserve at first use cannot be captured.
    fn captured(&self, decoder: &Decoder, fixed: &Fixed, graphs: &Graphs, is_first: bool) -> Result<Graph> {
        let what = || {
            format!(
                "capturing a pass of {} sequences over {} blocks",
                self.sequences, self.blocks
            )
        };
        // What a backward pass in another thread requires for a moment would stay in the graph for good.
        let _usual = UsualOperators::hold();
        self.compute(decoder, fixed).with_context(what)?;
        // The pool has memory of its own: what the largest pass left free would be taken a second time.
        if is_first {
            graphs.shim.empty_cache().with_context(what)?;
        }
        graphs
            .shim
            .capture(graphs.pool, || self.compute(decoder, fixed))
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
