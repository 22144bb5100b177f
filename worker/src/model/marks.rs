//! Which numbers of a model in one flat buffer changed since the marks were last cleared, a bit for each. Of a bfloat16 model that learns at
//! the rates of PPO a step changes a few in a hundred: what it adds to the others is too little to move them to a neighbour, and waits in
//! the master weights.

use std::ops::Range;

use anyhow::{Context, Result};
use tch::{Device, Kind, Tensor};

use crate::native::bytes::bytes_of;
use crate::ranks::shard::Shard;

/// Numbers of one byte.
const PER_BYTE: i64 = 8;

/// Marks of a flat buffer that ranks share: each sets those of its own part, which begin with a byte of their own.
#[derive(Debug)]
pub struct Marks {
    /// [ranks * bytes of a part] uint8; number `i` of a part is bit `i % 8` of its byte `i / 8`.
    bits: Tensor,
    /// Numbers of a part.
    full: i64,
}

/// Where each tensor lies in the flat buffer, and the marks of all, in this machine's memory.
#[derive(Debug)]
pub struct Changed {
    /// See there.
    pub marks: Marks,
    /// By name, in the order of the buffer.
    pub places: Vec<(String, Range<i64>)>,
}

impl Marks {
    /// None is set. `own` is a rank's part, of `count` ranks, of a buffer on `device`.
    ///
    /// # Errors
    /// When there is no memory for them.
    pub fn new(own: Shard, count: usize, device: Device) -> Result<Self> {
        let bytes = bytes_of_part(own.full) * count as i64;
        let bits = Tensor::f_zeros([bytes], (Kind::Uint8, device));
        Ok(Self {
            bits: bits.with_context(|| format!("no memory for {bytes} bytes of marks"))?,
            full: own.full,
        })
    }

    /// Sets none.
    ///
    /// # Errors
    /// When libtorch fails.
    pub fn clear(&self) -> Result<()> {
        let _ = self.bits.shallow_clone().f_zero_()?;
        Ok(())
    }

    /// Those of all ranks, each with as many bytes: what ranks exchange.
    pub fn bits(&self) -> &Tensor {
        &self.bits
    }

    /// Those of a rank's part.
    ///
    /// # Errors
    /// When there is no such rank.
    pub fn of_rank(&self, rank: usize) -> Result<Tensor> {
        let bytes = bytes_of_part(self.full);
        Ok(self.bits.f_narrow(0, rank as i64 * bytes, bytes)?)
    }

    /// In this machine's memory: the same marks where they lie there.
    ///
    /// # Errors
    /// When libtorch fails.
    pub fn here(&self) -> Result<Self> {
        Ok(Self {
            bits: self.bits.f_to_device(Device::Cpu)?,
            full: self.full,
        })
    }

    /// To be read by several threads.
    ///
    /// # Errors
    /// When the marks are not [here](Self::here).
    pub fn read(&self) -> Result<Bits<'_>> {
        Ok(Bits {
            bits: bytes_of(&self.bits)?,
            full: self.full,
        })
    }
}

/// [`Marks`] in this machine's memory.
#[derive(Clone, Copy, Debug)]
pub struct Bits<'a> {
    bits: &'a [u8],
    full: i64,
}

impl Bits<'_> {
    /// How many numbers are marked.
    pub fn count(&self) -> u64 {
        let mut count = 0;
        words(self.bits, |word, _| count += u64::from(word.count_ones()));
        count
    }

    /// Calls `found` with the place in `range` of every number of it that is marked, in their order.
    ///
    /// # Errors
    /// When there are no such numbers.
    pub fn each(&self, range: Range<i64>, mut found: impl FnMut(i64)) -> Result<()> {
        let (part, full) = (bytes_of_part(self.full), self.full.max(1));
        let mut at = range.start;
        while at < range.end {
            // As much of the range as lies in one rank's part.
            let (rank, first) = (at / full, at % full);
            let last = full.min(first + range.end - at);
            let bytes =
                usize::try_from(rank * part + first / PER_BYTE)?..usize::try_from(rank * part + bytes_of_part(last))?;
            let bytes = self.bits.get(bytes).context("there are no marks of such numbers")?;
            // Number of the part's first bit in `bytes`, counted in the range.
            let base = at - range.start - first % PER_BYTE;
            let until = base + first % PER_BYTE + last - first;
            words(bytes, |word, bit| {
                let place = base + bit;
                each_bit(word, |bit| {
                    let place = place + bit;
                    if (at - range.start..until).contains(&place) {
                        found(place);
                    }
                });
            });
            at += last - first;
        }
        Ok(())
    }
}

fn bytes_of_part(numbers: i64) -> i64 {
    numbers / PER_BYTE + i64::from(numbers % PER_BYTE > 0)
}

/// Calls `word` with up to 64 bits at a time, and the number of the first.
fn words(bytes: &[u8], mut word: impl FnMut(u64, i64)) {
    let (whole, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
    for (bytes, number) in whole.iter().chain([&last]).zip(0..) {
        word(u64::from_le_bytes(*bytes), 64 * number);
    }
}

fn each_bit(mut word: u64, mut found: impl FnMut(i64)) {
    while word != 0 {
        found(i64::from(word.trailing_zeros()));
        word &= word - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Marks of `numbers` numbers of `count` ranks where those that `is_marked` says are set.
    fn marked(numbers: i64, count: usize, is_marked: impl Fn(i64) -> bool) -> Marks {
        let marks = Marks::new(Shard::of(numbers, count, 0), count, Device::Cpu).unwrap();
        for rank in 0..count {
            let own = Shard::of(numbers, count, rank);
            let bits = marks.of_rank(rank).unwrap();
            for number in (own.start..own.end()).filter(|number| is_marked(*number)) {
                let place = number - own.start;
                let mut byte = bits.narrow(0, place / 8, 1);
                let _ = byte.bitwise_or_(1i64 << (place % 8));
            }
        }
        marks
    }

    #[test]
    fn marks_are_found_in_any_range_whatever_the_number_of_ranks() {
        let is_marked = |number: i64| number % 3 == 1 || number % 64 == 63;
        for (numbers, count) in [(1, 1), (7, 3), (300, 1), (301, 2), (1000, 3), (2, 4)] {
            let marks = marked(numbers, count, is_marked);
            for range in [
                0..numbers,
                0..1,
                numbers / 3..numbers,
                numbers / 2..numbers / 2 + numbers / 4,
            ] {
                let mut found = Vec::new();
                marks
                    .read()
                    .unwrap()
                    .each(range.clone(), |place| found.push(place))
                    .unwrap();
                let wanted: Vec<i64> = range.clone().filter(|number| is_marked(*number)).collect();
                let wanted: Vec<i64> = wanted.iter().map(|number| number - range.start).collect();
                assert_eq!(found, wanted, "{range:?} of {numbers}, {count} ranks");
            }
            let all = (0..numbers).filter(|number| is_marked(*number)).count();
            assert_eq!(marks.read().unwrap().count(), all as u64);
            marks.clear().unwrap();
            assert_eq!(marks.read().unwrap().count(), 0);
            marks
                .read()
                .unwrap()
                .each(0..numbers, |place| panic!("{place}"))
                .unwrap();
        }
    }

    #[test]
    fn numbers_that_there_are_none_of_are_an_error() {
        let marks = marked(10, 1, |_| true);
        assert!(marks.read().unwrap().each(0..17, |_| ()).is_err());
    }
}
