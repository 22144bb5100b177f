//! Which prompts a step takes: a function of seed and step number alone, so that resuming needs only the step.

use ppo_crds::run_config::RunLength;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// The order in which a run goes through its prompts.
///
/// Episode after episode, each a permutation of all prompts, form one endless stream; step `s` takes places
/// `s * batch .. (s + 1) * batch` of it. So a batch may begin in one episode and end in the next, and no prompt is left out
/// in between.
///
/// The permutation of an episode: ChaCha8 keyed by seed (8 bytes, little-endian), episode (8 bytes, little-endian) and the
/// 16 bytes `ppo prompt order`; a draw is two 32-bit words of the key stream, the low one first; then Fisher-Yates from the
/// last place `i = n - 1` down to 1, exchanging place `i` with place `floor(draw * (i + 1) / 2^64)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptOrder {
    /// The run's seed.
    pub seed: u64,
    /// Number of prompts; at least 1.
    pub prompts: usize,
    /// Prompts per step.
    pub batch: usize,
    /// Without it every episode is in the file's order.
    pub shuffle: bool,
}

impl PromptOrder {
    /// Indices of the prompts of a step, counted from 0. A set smaller than a batch repeats within it.
    pub fn batch(&self, step: u64) -> Vec<usize> {
        let prompts = self.prompts.max(1) as u64;
        let mut episode: Option<(u64, Vec<usize>)> = None;
        let mut indices = Vec::with_capacity(self.batch);
        for place in 0..self.batch as u64 {
            let place = u128::from(step) * self.batch as u128 + u128::from(place);
            let wanted = (place / u128::from(prompts)) as u64;
            let offset = (place % u128::from(prompts)) as usize;
            let order = match episode.take() {
                Some((number, order)) if number == wanted => order,
                _ => self.episode(wanted),
            };
            indices.push(order[offset]);
            episode = Some((wanted, order));
        }
        indices
    }

    /// The episode in which a step begins, counted from 0.
    pub fn episode_of(&self, step: u64) -> u64 {
        (u128::from(step) * self.batch as u128 / self.prompts.max(1) as u128) as u64
    }

    /// The permutation of one episode.
    fn episode(&self, episode: u64) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.prompts.max(1)).collect();
        if !self.shuffle {
            return order;
        }
        let mut key = [0; 32];
        key[..8].copy_from_slice(&self.seed.to_le_bytes());
        key[8..16].copy_from_slice(&episode.to_le_bytes());
        key[16..].copy_from_slice(b"ppo prompt order");
        let mut stream = ChaCha8Rng::from_seed(key);
        for i in (1..order.len()).rev() {
            let (low, high) = (stream.next_u32(), stream.next_u32());
            let draw = u64::from(high) << 32 | u64::from(low);
            let j = (u128::from(draw) * (i as u128 + 1)) >> 64;
            order.swap(i, j as usize);
        }
        order
    }
}

/// Steps of a run: as many as asked, or as many whole batches as `episodes` passes hold, at least one.
///
/// `floor(episodes * prompts / batch)`: only in the last episode up to `batch - 1` prompts are left over, since a step takes
/// whole batches. A set smaller than one batch makes one step.
pub fn total_steps(length: RunLength, prompts: usize, batch: usize) -> u64 {
    match length {
        RunLength::Steps(steps) => steps,
        RunLength::Episodes(episodes) => {
            let steps = u128::from(episodes) * prompts as u128 / batch.max(1) as u128;
            u64::try_from(steps).unwrap_or(u64::MAX).max(1)
        }
    }
}
