//! How long the steps to come take.

use std::time::{Duration, Instant};

use super::StepReport;

/// The newest step's share of the mean at the least: a change shows after some fifty steps, an evaluation now and then hardly moves it.
const LEAST_SHARE: f64 = 0.02;

/// Mean time from the end of a step to that of the next one, with the evaluations and checkpoints between: of all steps alike, and once
/// there are many, of recent ones most.
#[derive(Default)]
pub(super) struct TimeLeft {
    ended: Option<Instant>,
    steps: u32,
    seconds_per_step: f64,
}

impl TimeLeft {
    /// After a step that ended `now`.
    pub fn after(&mut self, step: &StepReport, now: Instant) -> Option<Duration> {
        // Before the first one the models were loaded and tried: only its own time is like that of others.
        let took = self.ended.map_or(step.wall, |ended| now.duration_since(ended));
        self.ended = Some(now);
        self.steps = self.steps.saturating_add(1);
        let share = (1.0 / f64::from(self.steps)).max(LEAST_SHARE);
        self.seconds_per_step += share * (took.as_secs_f64() - self.seconds_per_step);
        let left = step.total_steps.saturating_sub(step.step);
        Duration::try_from_secs_f64(self.seconds_per_step * left as f64).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds left after each step of a run that has 1000; each takes a second, and ends so long after the one before.
    fn left(seconds: impl IntoIterator<Item = u64>) -> Vec<f64> {
        let (mut time_left, mut now) = (TimeLeft::default(), Instant::now());
        let after = |(step, seconds): (u64, u64)| {
            now += Duration::from_secs(seconds);
            let report = StepReport {
                step,
                total_steps: 1000,
                wall: Duration::from_secs(1),
                ..StepReport::default()
            };
            time_left.after(&report, now).unwrap().as_secs_f64()
        };
        (1..).zip(seconds).map(after).collect()
    }

    #[test]
    fn what_happens_between_steps_counts_and_what_came_before_the_first_does_not() {
        // The models load for ten minutes; an evaluation or a checkpoint takes two seconds after every second step.
        assert_eq!(left([600, 3, 1, 3])[..2], [999.0, 2.0 * 998.0]);
        let last = left([600, 3, 1, 3])[3];
        assert!((last - 2.0 * 996.0).abs() < 1e-6, "{last}");
    }

    #[test]
    fn a_rare_evaluation_hardly_moves_it() {
        let steps = (1..=200u64).map(|step| if step.is_multiple_of(50) { 51 } else { 1 });
        let left = left(steps);
        for step in [149, 150, 199, 200] {
            let mean = left[step - 1] / (1000.0 - step as f64);
            assert!((1.5..2.8).contains(&mean), "{mean} s a step after {step}");
        }
    }

    #[test]
    fn it_follows_a_run_that_becomes_slower() {
        let steps = (0..250).map(|step| if step < 50 { 1 } else { 3 });
        let mean = left(steps)[249] / 750.0;
        assert!((2.9..3.0).contains(&mean), "{mean} s a step");
    }
}
