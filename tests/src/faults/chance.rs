//! Faults by a seeded generator: the same seed draws the same faults in the same order.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::stream::Disturbance;
use super::{Fault, Moment};

pub(super) struct Chance(StdRng);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    /// About every fourth write.
    pub fn of_write(&mut self) -> Option<Fault> {
        match self.0.random_range(0..100) {
            0..5 => Some(Fault::Refuse(409)),
            5..10 => Some(Fault::Refuse(429)),
            10..15 => Some(Fault::Refuse(500)),
            15..21 => Some(Fault::LoseAnswer),
            21..23 => Some(Fault::Kill(Moment::Before)),
            23..25 => Some(Fault::Kill(Moment::After)),
            _ => None,
        }
    }

    /// About every fourth event of a watch.
    pub fn of_event(&mut self) -> Option<Disturbance> {
        let pause = Duration::from_millis(self.0.random_range(20..400));
        match self.0.random_range(0..100) {
            0..10 => Some(Disturbance::Delay(pause)),
            10..20 => Some(Disturbance::Merge(pause)),
            20..24 => Some(Disturbance::Lose(pause)),
            24..26 => Some(Disturbance::Delay(pause * 5)),
            _ => None,
        }
    }
}
