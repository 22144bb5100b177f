//! What the engine tells about itself, for gauges and progress lines.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

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
    /// What the scheduler counted.
    pub counters: Counters,
    /// Tokens drawn per second over the last [`WINDOW`]; 0 when idle that long.
    pub tokens_per_second: f64,
    /// Forward passes.
    pub passes: u64,
    /// Seconds spent in the runner.
    pub forward_seconds: f64,
    /// Version of the policy that is loaded.
    pub policy_version: u64,
}

/// Time over which [`Stats::tokens_per_second`] is taken.
pub const WINDOW: Duration = Duration::from_secs(10);

/// Time between two points of the window; more would only cost memory.
const SPACING: Duration = Duration::from_millis(100);

/// Rate of a growing counter over the last [`WINDOW`].
#[derive(Debug, Default)]
pub struct Rate {
    points: VecDeque<(Instant, u64)>,
}

impl Rate {
    /// Notes the counter's value at `now`.
    pub fn note(&mut self, now: Instant, count: u64) {
        // The newest point moves until it is far enough from the one before it.
        let newest_may_move = self.points.len() >= 2
            && self
                .points
                .get(self.points.len() - 2)
                .is_some_and(|(at, _)| now.duration_since(*at) < SPACING);
        if newest_may_move {
            self.points.pop_back();
        }
        self.points.push_back((now, count));
        while self.points.len() > 2
            && self
                .points
                .get(1)
                .is_some_and(|(at, _)| now.duration_since(*at) >= WINDOW)
        {
            self.points.pop_front();
        }
    }

    /// Starts the window anew at `now`: idle time before it does not count.
    pub fn restart(&mut self, now: Instant, count: u64) {
        self.points.clear();
        self.points.push_back((now, count));
    }

    /// Counts per second between the window's first and last point.
    pub fn per_second(&self) -> f64 {
        match (self.points.front(), self.points.back()) {
            (Some((from, first)), Some((to, last))) if to > from => {
                (last - first) as f64 / to.duration_since(*from).as_secs_f64()
            }
            _ => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_last_seconds() {
        let start = Instant::now();
        let mut rate = Rate::default();
        for tenth in 0..200u64 {
            rate.note(start + Duration::from_millis(100 * tenth), tenth);
        }
        assert!((rate.per_second() - 10.0).abs() < 0.2, "{}", rate.per_second());
        for tenth in 200..400u64 {
            rate.note(start + Duration::from_millis(100 * tenth), 200 + (tenth - 200) * 5);
        }
        assert!((rate.per_second() - 50.0).abs() < 1.0, "{}", rate.per_second());
        assert!(rate.points.len() < 110, "{}", rate.points.len());
    }

    #[test]
    fn points_close_together_do_not_pile_up() {
        let start = Instant::now();
        let mut rate = Rate::default();
        for milli in 0..1000u64 {
            rate.note(start + Duration::from_millis(milli), milli);
        }
        assert!(rate.points.len() < 20, "{}", rate.points.len());
        assert!((rate.per_second() - 1000.0).abs() < 1e-6);
    }
}
