//! Where and how the ranks meet.

use std::time::Duration;

use tch::Device;

/// What a rank knows of the others before it meets them.
#[derive(Clone, Debug)]
pub struct Meeting {
    /// Where rank 0 serves the store.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// This rank.
    pub rank: usize,
    /// Ranks.
    pub count: usize,
    /// This process' own address, as the others reach it.
    pub own_host: String,
    /// Name of each rank in messages, its pod's.
    pub names: Vec<String>,
    /// What this rank computes on; all have the same kind.
    pub device: Device,
    /// The role's attempt: ranks of different attempts never meet.
    pub attempt: u32,
    /// How long things may take.
    pub timing: Timing,
}

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Until all ranks have come: pods are scheduled and images pulled in that time.
    pub join: Duration,
    /// For one collective: the longest that ranks may be apart.
    pub collective: Duration,
    /// Between two signs of life.
    pub beat: Duration,
    /// Without a sign of life a rank is lost: between collectives its process', within them its node's.
    pub silence: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            join: Duration::from_secs(1800),
            collective: Duration::from_secs(600),
            beat: Duration::from_secs(2),
            silence: Duration::from_secs(30),
        }
    }
}

impl Meeting {
    /// A rank as messages name it.
    pub fn name(&self, rank: usize) -> String {
        match self.names.get(rank) {
            Some(name) => format!("rank {rank} ({name})"),
            None => format!("rank {rank}"),
        }
    }
}
