//! Blocks of the paged key/value cache: which sequence holds which, as plain numbers.

/// Hands out cache blocks and counts their holders. A block is free when nobody holds it; a block that several hold is read
/// by all of them and written by none.
#[derive(Debug)]
pub struct Blocks {
    /// Tokens one block holds.
    size: usize,
    /// Holders of each block.
    holders: Vec<u32>,
    /// Blocks nobody holds; the last returned is handed out first, while the processor may still have it in its cache.
    free: Vec<u32>,
}

impl Blocks {
    /// A cache of `count` blocks of `size` tokens each, all free.
    pub fn new(count: usize, size: usize) -> Self {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        Self {
            size: size.max(1),
            holders: vec![0; count as usize],
            free: (0..count).rev().collect(),
        }
    }

    /// Tokens one block holds.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Blocks of the cache.
    pub fn total(&self) -> usize {
        self.holders.len()
    }

    /// Blocks nobody holds.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Blocks somebody holds.
    pub fn used(&self) -> usize {
        self.total() - self.free()
    }

    /// Blocks that `tokens` tokens fill, the last perhaps in part.
    pub fn needed(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.size)
    }

    /// Takes a free block for one holder; None when all are held.
    pub fn allocate(&mut self) -> Option<u32> {
        let block = self.free.pop()?;
        self.holders[block as usize] = 1;
        Some(block)
    }

    /// Adds a holder to every block of `table`: a fork. Nothing is copied until one of the holders writes.
    pub fn share(&mut self, table: &[u32]) -> Vec<u32> {
        for &block in table {
            self.holders[block as usize] += 1;
        }
        table.to_vec()
    }

    /// Whether somebody else holds the block too, so that it must be copied before it is written.
    pub fn is_shared(&self, block: u32) -> bool {
        self.holders[block as usize] > 1
    }

    /// Gives up one hold on the block; the last holder frees it.
    pub fn release(&mut self, block: u32) {
        let holders = &mut self.holders[block as usize];
        debug_assert!(*holders > 0, "block {block} is released more often than it is held");
        *holders = holders.saturating_sub(1);
        if *holders == 0 {
            self.free.push(block);
        }
    }

    /// Gives up one hold on every block of `table`.
    pub fn release_all(&mut self, table: Vec<u32>) {
        // Reversed, so that the free list hands them out again in order.
        for block in table.into_iter().rev() {
            self.release(block);
        }
    }

    /// Holders of every block, by block.
    pub fn holders(&self) -> &[u32] {
        &self.holders
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_block_is_either_free_once_or_held(operations in prop::collection::vec((0u8..3, 0usize..64), 1..200)) {
            let mut blocks = Blocks::new(12, 4);
            let mut tables: Vec<Vec<u32>> = Vec::new();
            for (operation, pick) in operations {
                match operation {
                    0 => tables.extend(blocks.allocate().map(|block| vec![block])),
                    1 if !tables.is_empty() => {
                        let fork = blocks.share(&tables[pick % tables.len()]);
                        tables.push(fork);
                    }
                    2 if !tables.is_empty() => {
                        let table = tables.swap_remove(pick % tables.len());
                        blocks.release_all(table);
                    }
                    _ => {}
                }
                let held: HashSet<u32> = tables.iter().flatten().copied().collect();
                let free: HashSet<u32> = blocks.free.iter().copied().collect();
                prop_assert_eq!(free.len(), blocks.free(), "a block is on the free list twice");
                prop_assert!(held.is_disjoint(&free));
                prop_assert_eq!(held.len() + free.len(), 12);
                for block in 0..12 {
                    let holders = tables.iter().flatten().filter(|&&held| held == block).count();
                    prop_assert_eq!(blocks.holders()[block as usize] as usize, holders);
                    prop_assert_eq!(blocks.is_shared(block), holders > 1);
                }
            }
        }
    }

    #[test]
    fn an_empty_cache_hands_out_nothing() {
        let mut blocks = Blocks::new(1, 16);
        assert!(blocks.allocate().is_some());
        assert_eq!(blocks.allocate(), None);
        assert_eq!(blocks.needed(0), 0);
        assert_eq!(blocks.needed(16), 1);
        assert_eq!(blocks.needed(17), 2);
    }
}
