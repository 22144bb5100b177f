//! Ragged sequences, packed end to end: what enters a device, once per forward pass.

use anyhow::{Context, Result, ensure};
use tch::{Device, Kind, Tensor};

use crate::native::device::send;

/// Sequences packed end to end: what a forward pass computes. No padding.
#[derive(Debug)]
pub struct TokenBatch {
    /// `[tokens]`, int64.
    pub ids: Tensor,
    /// Place of each token in its own sequence: `[tokens]`, int64.
    pub positions: Tensor,
    /// First row of each sequence, and the row after the last: `[sequences + 1]`, int32.
    pub boundaries: Tensor,
    /// Tokens of each sequence, in order; every one at least 1.
    pub lengths: Vec<usize>,
    /// The greatest id.
    pub greatest: i64,
}

impl TokenBatch {
    /// Packs sequences of token ids.
    ///
    /// # Errors
    /// When there is no sequence or one is empty.
    pub fn new<S: AsRef<[u32]>>(sequences: &[S]) -> Result<Self> {
        ensure!(!sequences.is_empty(), "a batch needs at least one sequence");
        let lengths: Vec<usize> = sequences.iter().map(|sequence| sequence.as_ref().len()).collect();
        if let Some(empty) = lengths.iter().position(|length| *length == 0) {
            anyhow::bail!("sequence {empty} of the batch is empty");
        }
        let ids: Vec<i64> = sequences
            .iter()
            .flat_map(|s| s.as_ref().iter().map(|id| i64::from(*id)))
            .collect();
        let positions: Vec<i64> = lengths.iter().flat_map(|length| 0..*length as i64).collect();
        let ends = lengths.iter().scan(0i32, |row, length| {
            *row = row.checked_add(i32::try_from(*length).ok()?)?;
            Some(*row)
        });
        let boundaries: Vec<i32> = std::iter::once(0).chain(ends).collect();
        ensure!(
            boundaries.len() == lengths.len() + 1,
            "a batch of more than {} tokens",
            i32::MAX
        );
        Ok(Self {
            greatest: ids.iter().copied().max().unwrap_or(0),
            ids: Tensor::f_from_slice(&ids)?,
            positions: Tensor::f_from_slice(&positions)?,
            boundaries: Tensor::f_from_slice(&boundaries)?,
            lengths,
        })
    }

    /// Tokens of all sequences together.
    pub fn tokens(&self) -> usize {
        self.lengths.iter().sum()
    }

    /// Row of each sequence's first token.
    pub fn starts(&self) -> Vec<usize> {
        let next = |row: &mut usize, length: &usize| {
            let start = *row;
            *row += length;
            Some(start)
        };
        self.lengths.iter().scan(0, next).collect()
    }

    /// Row of each sequence's last token: `[sequences]`, int64.
    ///
    /// # Errors
    /// When libtorch fails.
    pub fn last_rows(&self) -> Result<Tensor> {
        let rows: Vec<i64> = self
            .starts()
            .iter()
            .zip(&self.lengths)
            .map(|(start, length)| (start + length - 1) as i64)
            .collect();
        Ok(Tensor::f_from_slice(&rows)?)
    }

    /// The same batch on a device.
    ///
    /// # Errors
    /// When libtorch fails.
    pub fn on(&self, device: Device) -> Result<Self> {
        let [ids, positions, boundaries] = together([&self.ids, &self.positions, &self.boundaries], device)?;
        Ok(Self {
            ids,
            positions,
            boundaries: boundaries.f_to_kind(Kind::Int)?,
            lengths: self.lengths.clone(),
            greatest: self.greatest,
        })
    }
}

/// Vectors of whole numbers on a device, in one transfer: each would cost as much as all. They are int64 there.
///
/// # Errors
/// When libtorch fails.
pub fn together<const N: usize>(vectors: [&Tensor; N], device: Device) -> Result<[Tensor; N]> {
    let wide = |vector: &Tensor| vector.f_to_kind(Kind::Int64);
    let wide = vectors
        .iter()
        .map(|vector| wide(vector))
        .collect::<Result<Vec<_>, _>>()?;
    let parts = match device {
        Device::Cpu => wide,
        _ => {
            let lengths: Vec<i64> = wide.iter().map(|vector| vector.numel() as i64).collect();
            send(&Tensor::f_cat(&wide, 0)?, device)?.f_split_with_sizes(lengths, 0)?
        }
    };
    parts.try_into().ok().context("a transfer lost a part")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boundaries_are_where_sequences_begin_and_the_last_ends() {
        let batch = TokenBatch::new(&[vec![5u32, 6], vec![9], vec![1, 2, 3]]).unwrap();
        assert_eq!(batch.boundaries, Tensor::from_slice(&[0i32, 2, 3, 6]));
        assert_eq!((batch.greatest, batch.tokens(), batch.starts()), (9, 6, vec![0, 2, 3]));
        let same = batch.on(Device::Cpu).unwrap();
        assert_eq!((same.boundaries.kind(), same.ids), (Kind::Int, batch.ids));
    }
}
