//! Which numbers of a model in one flat buffer changed since the marks were last cleared, a bit for each. Of a bfloat16 model that learns at
//! the rates of PPO a step changes a few in a hundred: what it adds to the others is too little to move them to a neighbour, and waits in
//! the master weights.

use std::ops::Range;

use anyhow::{Context, Result};
use tch::{Device, Kind, Tensor};

use crate::native::bytes::bytes_of;
use crate::shard::Shard;

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

    /// Calls `found` with the places in `range` of all numbers of it that are marked, in their order, a few thousand at a time.
    ///
    /// # Errors
    /// When there are no such numbers.
    pub fn each(&self, range: Range<i64>, mut found: impl FnMut(&[i64])) -> Result<()> {
        let (part, full) = (bytes_of_part(self.full), self.full.max(1));
        let mut block = Block::new();
        let mut at = range.start;
        while at < range.end {
            // As much of the range as lies in one rank's part.
            let (rank, first) = (at / full, at % full);
            let last = full.min(first + range.end - at);
            let bytes =
                usize::try_from(rank * part + first / PER_BYTE)?..usize::try_from(rank * part + bytes_of_part(last))?;
            let bytes = self.bits.get(bytes).context("there are no marks of such numbers")?;
            let start = at - range.start;
            // Number of the part's first bit in `bytes`, counted in the range.
            let base = start - first % PER_BYTE;
            let until = start + last - first;
            words(bytes, |word, bit| {
                let place = base + bit;
                block.push(within(word, start - place..until - place), place);
                if block.is_full() {
                    found(block.take());
                }
            });
            at += last - first;
        }
        found(block.take());
        Ok(())
    }
}

/// Places that are gathered until they are worth a call.
struct Block {
    places: [i64; Block::ENOUGH + WORD],
    count: usize,
}

/// Bits of a word.
const WORD: usize = u64::BITS as usize;

impl Block {
    /// Far apart in memory is what they are places of, so many of it are fetched beside each other.
    const ENOUGH: usize = 1 << 12;
    fn new() -> Self {
        Self {
            places: [0; Self::ENOUGH + WORD],
            count: 0,
        }
    }

    fn is_full(&self) -> bool {
        self.count >= Self::ENOUGH
    }

    /// The bits of `word`, whose first is at `place`.
    fn push(&mut self, word: u64, place: i64) {
        // There is room for a whole word behind a block that is not full.
        let room = self
            .places
            .get_mut(self.count..)
            .and_then(|rest| rest.first_chunk_mut());
        let Some(room) = room else { return };
        self.count += unpack(word, place, room);
    }

    /// Those so far; the next block begins.
    fn take(&mut self) -> &[i64] {
        let count = std::mem::take(&mut self.count);
        self.places.get(..count).unwrap_or_default()
    }
}

/// Writes the places of the bits of `word`, whose first is at `place`, and says how many there are.
fn unpack(mut word: u64, place: i64, places: &mut [i64; WORD]) -> usize {
    // More than most words have: so many are written without a look at how many there are, which no processor can foretell.
    const USUAL: usize = 4;
    let count = word.count_ones() as usize;
    let mut write = |place_of: &mut i64| {
        *place_of = place + i64::from(word.trailing_zeros());
        word &= word.wrapping_sub(1);
    };
    let (usual, others) = places.split_at_mut(USUAL);
    usual.iter_mut().for_each(&mut write);
    if count > USUAL {
        others.iter_mut().take(count - USUAL).for_each(write);
    }
    count
}

/// The bits of `word` that lie in `range`, which is counted from its first.
fn within(word: u64, range: Range<i64>) -> u64 {
    let below = |end: i64| match u32::try_from(end.max(0)) {
        Ok(end) if end < u64::BITS => (1 << end) - 1,
        _ => u64::MAX,
    };
    word & below(range.end) & !below(range.start)
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
        for (numbers, count) in [(1, 1), (7, 3), (300, 1), (301, 2), (1000, 3), (2, 4), (15_001, 2)] {
            let marks = marked(numbers, count, is_marked);
            for range in [
                0..numbers,
                0..1,
                numbers / 3..numbers,
                numbers / 2..numbers / 2 + numbers / 4,
            ] {
                let mut found: Vec<i64> = Vec::new();
                marks
                    .read()
                    .unwrap()
                    .each(range.clone(), |places| found.extend(places))
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
                .each(0..numbers, |places| assert!(places.is_empty()))
                .unwrap();
        }
    }

    #[test]
    fn marks_of_all_numbers_are_all_of_them() {
        for numbers in [63, 64, 65, 200] {
            let (marks, mut found) = (marked(numbers, 1, |_| true), Vec::<i64>::new());
            let bits = marks.read().unwrap();
            bits.each(1..numbers, |places| found.extend(places)).unwrap();
            assert_eq!(found, (0..numbers - 1).collect::<Vec<_>>());
        }
    }

    #[test]
    fn numbers_that_there_are_none_of_are_an_error() {
        let marks = marked(10, 1, |_| true);
        assert!(marks.read().unwrap().each(0..17, |_| ()).is_err());
    }
}
