//! What a pass computes, on the device: ids, positions, places in the cache, and rows grouped by how they attend.

use std::collections::BTreeMap;

use anyhow::Result;
use tch::{Device, Tensor};

use super::blockwise::{self, Blockwise};
use super::chunked::Chunked;
use super::gathered::Gathered;
use super::kernel::{Heads, Kernel};
use super::steps::{Layout, Steps};
use crate::native::batch::{Batch, Chunk};
use crate::native::decoder_shape::DecoderShape;
use crate::native::device::send;

/// Rows of a pass.
#[derive(Debug)]
pub(super) struct Inputs {
    /// Token of each row, `[rows]`, int64.
    pub ids: Tensor,
    /// Its position in its sequence, `[rows]`, int64.
    pub positions: Tensor,
    /// Its position in the cache, `[rows]`, int64.
    pub slots: Tensor,
    groups: Vec<Group>,
    /// Of each row its place in the groups' answers, end to end; None: the only group answers in order.
    order: Option<Tensor>,
}

/// Rows that attend in one call.
#[derive(Debug)]
pub(super) enum Group {
    /// Any rows, over copies of their blocks.
    Gathered(Gathered),
    /// One row a sequence, over the blocks where they lie.
    Blockwise(Blockwise),
    /// Several rows a sequence, packed.
    Chunked(Chunked),
}

impl Inputs {
    /// The rows of a batch that was checked.
    pub fn new(flat: &Batch, shape: &DecoderShape, kernel: Kernel, device: Device) -> Result<Self> {
        let block_size = kernel.block_size() as i64;
        let send = |numbers: Vec<i64>| send(&Tensor::f_from_slice(&numbers)?, device);
        let positions = flat.chunks.iter().flat_map(position_range);
        let slots = flat
            .chunks
            .iter()
            .flat_map(|chunk| position_range(chunk).map(move |position| slot(flat, chunk, position, block_size)));
        let heads = Heads::of(shape);
        let mut places = Places::default();
        let mut groups = Vec::new();
        let classes = classes(flat, kernel);
        let is_one = classes.len() == 1;
        let mut is_in_order = false;
        for members in classes {
            let members: Vec<&Chunk> = members.iter().filter_map(|i| flat.chunks.get(*i)).collect();
            let width = members.iter().map(|chunk| i64::from(chunk.rows)).max().unwrap_or(1);
            // Where a group is the whole pass as it is, nothing is gathered for it.
            let mut rows_of_group = |rows: Vec<i64>| {
                is_in_order = is_one && rows.iter().copied().eq(0..flat.tokens.len() as i64);
                let rows = places.take(rows);
                (!is_in_order).then(|| send(rows)).transpose()
            };
            groups.push(match kernel.flash {
                Some(flash) if width > 1 => {
                    let rows = rows_of_group(members.iter().flat_map(|chunk| row_range(chunk)).collect())?;
                    let keys = members
                        .iter()
                        .flat_map(|chunk| (0..end(chunk)).map(move |position| slot(flat, chunk, position, block_size)));
                    let lengths: Vec<(i64, i64)> = members
                        .iter()
                        .map(|chunk| (i64::from(chunk.rows), end(chunk)))
                        .collect();
                    Group::Chunked(Chunked::new(rows, send(keys.collect())?, &lengths, flash.varlen)?)
                }
                flash => {
                    // Shorter chunks repeat their last row; nobody reads its answer.
                    let padded = |chunk: &&Chunk, from: i64| {
                        let last = i64::from(chunk.rows) - 1;
                        (0..width).map(move |row| from + row.min(last)).collect::<Vec<_>>()
                    };
                    let rows = members.iter().flat_map(|it| padded(it, i64::from(it.first_row)));
                    let rows = rows_of_group(rows.collect())?;
                    let at: Vec<i64> = members.iter().flat_map(|it| padded(it, i64::from(it.start))).collect();
                    let table = table(flat, &members, block_size);
                    let count = members.len() as i64;
                    match flash {
                        Some(flash) => {
                            let numbers = blockwise::numbers(&at, &table, heads, block_size);
                            let numbers = super::send(&Tensor::f_from_slice(&numbers)?, device)?;
                            Group::Blockwise(Blockwise::new(rows, &numbers, count, heads, block_size, flash)?)
                        }
                        None => {
                            let (table, at) = (send(table)?.f_view([count, -1])?, send(at)?.f_view([-1, width])?);
                            Group::Gathered(Gathered::new(rows, &table, &at, heads, block_size)?)
                        }
                    }
                }
            });
        }
        Ok(Self {
            ids: send(flat.tokens.iter().map(|token| i64::from(*token)).collect())?,
            positions: send(positions.collect())?,
            slots: send(slots.collect())?,
            groups,
            order: match is_in_order {
                true => None,
                false => Some(send(places.order(flat.tokens.len()))?),
            },
        })
    }

    /// One row a sequence over tensors that are on the device already: `ids`, `positions` and `slots` `[rows]`, and the group of all.
    pub fn single([ids, positions, slots]: [Tensor; 3], group: Group) -> Self {
        Self {
            ids,
            positions,
            slots,
            groups: vec![group],
            order: None,
        }
    }

    /// How [`attend`](Self::attend) takes queries.
    pub fn layout(&self) -> Layout {
        match self.groups.as_slice() {
            [Group::Blockwise(only)] => only.layout(),
            _ => Layout::Rows,
        }
    }

    /// Attention of all rows over a layer's cache, to `[rows, heads, head_dim]`.
    pub fn attend(&self, queries: &Tensor, keys: &Tensor, values: &Tensor, steps: &dyn Steps) -> Result<Tensor> {
        let answer = |group: &Group| match group {
            Group::Gathered(group) => group.attend(queries, keys, values),
            Group::Blockwise(group) => group.attend(queries, keys, values, steps),
            Group::Chunked(group) => group.attend(queries, keys, values),
        };
        let all = match self.groups.as_slice() {
            [only] => answer(only)?,
            several => Tensor::f_cat(&several.iter().map(answer).collect::<Result<Vec<_>>>()?, 0)?,
        };
        match &self.order {
            Some(order) => Ok(all.f_index_select(0, order)?),
            None => Ok(all),
        }
    }
}

/// The rows of a group, of all of a pass; None: it is all of them, in order.
pub(super) fn chosen(queries: &Tensor, rows: Option<&Tensor>) -> Result<Tensor> {
    Ok(match rows {
        Some(rows) => queries.f_index_select(0, rows)?,
        None => queries.shallow_clone(),
    })
}

/// Chunks that attend together, by number. For flash attention single rows apart from longer chunks, whose lengths may differ; else
/// chunks of about as many rows over about as many blocks, since each is filled up to the longest.
fn classes(flat: &Batch, kernel: Kernel) -> Vec<Vec<usize>> {
    let mut classes: BTreeMap<(u64, u64), Vec<usize>> = BTreeMap::new();
    for (i, chunk) in flat.chunks.iter().enumerate() {
        let blocks = end(chunk) as u64 / kernel.block_size() as u64 + 1;
        let class = match kernel.flash {
            Some(_) => (u64::from(chunk.rows > 1), 0),
            None => ((chunk.rows as u64).next_power_of_two(), blocks.next_power_of_two()),
        };
        classes.entry(class).or_default().push(i);
    }
    classes.into_values().collect()
}

/// Positions after a chunk's last row.
fn end(chunk: &Chunk) -> i64 {
    i64::from(chunk.start) + i64::from(chunk.rows)
}

fn position_range(chunk: &Chunk) -> std::ops::Range<i64> {
    i64::from(chunk.start)..end(chunk)
}

fn row_range(chunk: &Chunk) -> std::ops::Range<i64> {
    i64::from(chunk.first_row)..i64::from(chunk.first_row) + i64::from(chunk.rows)
}

/// Where a position of a chunk's sequence lies in the cache.
pub(super) fn slot(flat: &Batch, chunk: &Chunk, position: i64, block_size: i64) -> i64 {
    let block = flat
        .blocks
        .get(chunk.first_block as usize + (position / block_size) as usize);
    // Every batch was checked: there is one.
    block.map_or(0, |block| i64::from(*block) * block_size + position % block_size)
}

/// Blocks of the chunks' sequences, each filled up to the longest with a block of its own.
fn table(flat: &Batch, members: &[&Chunk], block_size: i64) -> Vec<i64> {
    let blocks = |chunk: &Chunk| (end(chunk) + block_size - 1) / block_size;
    let widest = members.iter().map(|chunk| blocks(chunk)).max().unwrap_or(1);
    let row = |chunk: &&Chunk| {
        let last = blocks(chunk) - 1;
        let entry = |i: i64| slot(flat, chunk, i.min(last) * block_size, block_size) / block_size;
        (0..widest).map(entry).collect::<Vec<_>>()
    };
    members.iter().flat_map(row).collect()
}

/// Where each row of the batch comes in the groups' answers.
#[derive(Default)]
struct Places {
    /// (row, place); of a row that a group repeats the first place counts.
    taken: BTreeMap<i64, i64>,
    next: i64,
}

impl Places {
    fn take(&mut self, rows: Vec<i64>) -> Vec<i64> {
        for row in &rows {
            self.taken.entry(*row).or_insert(self.next);
            self.next += 1;
        }
        rows
    }

    fn order(&self, rows: usize) -> Vec<i64> {
        (0..rows as i64)
            .map(|row| self.taken.get(&row).copied().unwrap_or(0))
            .collect()
    }
}
