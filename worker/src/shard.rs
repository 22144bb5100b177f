//! Which part of a flat tensor a rank owns.

/// Elements `start..start + length` of a tensor that all ranks share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// First element.
    pub start: i64,
    /// How many; fewer for the last ranks where the elements do not divide.
    pub length: i64,
    /// Elements of the whole tensor.
    pub elements: i64,
    /// Elements of every shard but the last ones.
    pub full: i64,
}

impl Shard {
    /// The part of rank `rank` of `count`.
    pub fn of(elements: i64, count: usize, rank: usize) -> Self {
        let full = elements.div_euclid(count as i64) + i64::from(elements % count as i64 > 0);
        let start = (full * rank as i64).min(elements);
        Self {
            start,
            length: full.min(elements - start),
            elements,
            full,
        }
    }

    /// Elements of a tensor in which every rank's part is a full one.
    pub fn padded(&self, count: usize) -> i64 {
        self.full * count as i64
    }

    /// First element after it.
    pub fn end(&self) -> i64 {
        self.start + self.length
    }

    /// What `range` and the shard have in common: its first element and its length.
    pub fn overlap(&self, start: i64, end: i64) -> Option<(i64, i64)> {
        let (first, last) = (self.start.max(start), self.end().min(end));
        (first < last).then(|| (first, last - first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_cover_the_whole_once_and_none_is_longer_than_a_full_one() {
        for (elements, count) in [(10, 1), (10, 3), (3, 4), (8, 2), (0, 2)] {
            let shards: Vec<Shard> = (0..count).map(|rank| Shard::of(elements, count, rank)).collect();
            let mut next = 0;
            for shard in &shards {
                assert_eq!(shard.start, next);
                assert!(shard.length <= shard.full);
                next = shard.end();
            }
            assert_eq!(next, elements);
            assert!(shards[0].padded(count) >= elements);
        }
    }
}
