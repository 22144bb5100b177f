//! What the engine tells about itself, for gauges and progress lines.

use super::scheduler::Counters;

/// A snapshot, taken after each pass. Counters start at 0 with the engine and only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Sequences in the running set.
    pub running: usize,
    /// Sequences that wait for room.
    pub waiting: usize,
    /// Share of the cache's blocks in use, 0 to 1.
    pub kv_cache_usage: f64,
    /// The cache's blocks.
    pub cache_blocks: usize,
    /// Tokens that each of them holds.
    pub block_size: usize,
    /// What the scheduler counted.
    pub counters: Counters,
    /// Forward passes.
    pub passes: u64,
    /// Seconds spent in the runner.
    pub forward_seconds: f64,
    /// Version of the policy that is loaded.
    pub policy_version: u64,
}
