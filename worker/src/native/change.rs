//! The numbers of one tensor that a step changed: where they lie, by the gaps between them, and what they are now.

/// Numbers that one byte of gaps counts at most; a byte of so much says that none of them changed, and that the gap goes on.
const FAR: u8 = u8::MAX;

/// What changed of one tensor.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// The tensor's name in Hugging Face layout.
    pub name: &'a str,
    /// How many numbers lie before each: see [`positions`].
    pub gaps: &'a [u8],
    /// What each is now: its bfloat16, the lower byte first.
    pub values: &'a [u8],
}

impl Change<'_> {
    /// Whether it has a value for each of its places, and all of them are places of a tensor of so many `numbers`.
    ///
    /// # Errors
    /// What is wrong otherwise.
    pub fn check(&self, numbers: i64) -> Result<(), String> {
        // Sums of bytes, which a processor adds dozens of at a time, where place by place is one after the other.
        let count = self.gaps.iter().filter(|gap| **gap != FAR).count();
        let unchanged: u64 = self.gaps.iter().map(|gap| u64::from(*gap)).sum();
        let (name, bytes, end) = (self.name, self.values.len(), unchanged + count as u64);
        if bytes != 2 * count {
            return Err(format!("has {bytes} bytes of {name} for {count} numbers"));
        }
        if u64::try_from(numbers).is_ok_and(|numbers| end > numbers) {
            return Err(format!("has number {} of {name}, which has {numbers}", end - 1));
        }
        Ok(())
    }

    /// The places of its numbers, in their order.
    pub fn positions(&self) -> impl Iterator<Item = i64> + '_ {
        positions(self.gaps)
    }

    /// Its numbers as float32.
    pub fn floats(&self) -> impl Iterator<Item = f32> + '_ {
        let halves = self.values.as_chunks::<2>().0.iter();
        halves.map(|half| f32::from_bits(u32::from(u16::from_le_bytes(*half)) << 16))
    }
}

/// Writes the places of a tensor's changed numbers, which ascend, as the gaps between them: how many unchanged ones lie before each. Where
/// a step changes a few in a hundred that is a byte for each.
#[derive(Debug, Default)]
pub struct Gaps {
    /// The bytes so far.
    pub bytes: Vec<u8>,
    next: i64,
}

impl Gaps {
    /// The next places.
    pub fn extend(&mut self, positions: &[i64]) {
        self.bytes.reserve(positions.len());
        for position in positions {
            let mut gap = position - self.next;
            while gap >= i64::from(FAR) {
                self.bytes.push(FAR);
                gap -= i64::from(FAR);
            }
            self.bytes.push(gap as u8);
            self.next = position + 1;
        }
    }
}

/// The places that [`Gaps`] wrote.
pub fn positions(gaps: &[u8]) -> impl Iterator<Item = i64> + '_ {
    let mut next = 0;
    gaps.iter().filter_map(move |gap| {
        next += i64::from(*gap);
        if *gap == FAR {
            return None;
        }
        next += 1;
        Some(next - 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_come_back_from_their_gaps_however_far_apart_they_are() {
        for places in [
            vec![],
            vec![0],
            vec![254],
            vec![255, 256, 257],
            vec![0, 1, 255, 511, 766, 767, 1_000_000],
            vec![509, 510, 1021],
        ] {
            let mut gaps = Gaps::default();
            gaps.extend(&places);
            assert_eq!(positions(&gaps.bytes).collect::<Vec<_>>(), places);
        }
    }

    #[test]
    fn places_are_the_tensors_up_to_its_last_number() {
        for places in [&[0i64, 1, 2][..], &[254], &[255], &[1, 600, 601], &[0, 1019, 1020]] {
            let mut gaps = Gaps::default();
            gaps.extend(places);
            let values = vec![0; 2 * places.len()];
            let change = Change {
                name: "w",
                gaps: &gaps.bytes,
                values: &values,
            };
            let last = places.last().unwrap();
            change.check(last + 1).unwrap();
            let error = change.check(*last).unwrap_err();
            assert_eq!(error, format!("has number {last} of w, which has {last}"));
            let short = Change {
                values: &values[2..],
                ..change
            };
            assert!(short.check(last + 1).unwrap_err().contains("bytes of w for"));
        }
    }

    #[test]
    fn neighbours_take_a_byte_each() {
        let mut gaps = Gaps::default();
        gaps.extend(&(5..100).collect::<Vec<_>>());
        assert_eq!(gaps.bytes.len(), 95);
    }
}
