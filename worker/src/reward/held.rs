//! Samples on their way through the sources of a reward.

use super::sample::ScoredSample;
use crate::serving::room::Room;

/// Samples to score, and the memory that they count for: what still reads them when their client has gone has it with it.
#[derive(Debug)]
pub(super) struct Held {
    samples: Vec<ScoredSample>,
    _room: Room,
}

impl Held {
    /// The samples of a body that counts for `room`.
    pub(super) fn new(samples: Vec<ScoredSample>, room: Room) -> Self {
        Self { samples, _room: room }
    }

    /// In their order.
    pub(super) fn samples(&self) -> &[ScoredSample] {
        &self.samples
    }
}
