//! Ragged sequences, packed end to end.

use anyhow::{Result, ensure};
use tch::{Device, Tensor};

/// Sequences packed end to end: what a forward pass computes. No padding.
#[derive(Debug)]
pub struct TokenBatch {
    /// `[tokens]`, int64.
    pub ids: Tensor,
    /// Place of each token in its own sequence: `[tokens]`, int64.
    pub positions: Tensor,
    /// Tokens of each sequence, in order; every one at least 1.
    pub lengths: Vec<usize>,
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
        Ok(Self {
            ids: Tensor::f_from_slice(&ids)?,
            positions: Tensor::f_from_slice(&positions)?,
            lengths,
        })
    }

    /// Packs the real tokens of padded `rows`: the first `lengths[i]` of each row, or the last when `left_padded`.
    ///
    /// # Errors
    /// When a length is 0 or longer than its row, or the counts differ.
    pub fn from_padded<S: AsRef<[u32]>>(rows: &[S], lengths: &[usize], left_padded: bool) -> Result<Self> {
        ensure!(
            rows.len() == lengths.len(),
            "{} rows, but {} lengths",
            rows.len(),
            lengths.len()
        );
        let mut sequences = Vec::with_capacity(rows.len());
        for (number, (row, length)) in rows.iter().zip(lengths).enumerate() {
            let row = row.as_ref();
            ensure!(
                *length <= row.len(),
                "row {number} has {} tokens, its length says {length}",
                row.len()
            );
            sequences.push(if left_padded {
                &row[row.len() - length..]
            } else {
                &row[..*length]
            });
        }
        Self::new(&sequences)
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
        Ok(Tensor::f_from_slice(&rows)?.f_to_device(self.ids.device())?)
    }

    /// The same batch on a device.
    ///
    /// # Errors
    /// When libtorch fails.
    pub fn to_device(&self, device: Device) -> Result<Self> {
        let (ids, positions) = (self.ids.f_to_device(device)?, self.positions.f_to_device(device)?);
        Ok(Self {
            ids,
            positions,
            lengths: self.lengths.clone(),
        })
    }
}
