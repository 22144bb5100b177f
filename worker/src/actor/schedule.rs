//! The learning rate as a function of the update's number. Pure.

use ppo_crds::spec::{OptimizerSpec, Schedule};

/// Factor on the learning rate at `update` (from 0) of `total`: a linear rise over the warm-up to 1 at its last update, then
/// the schedule from 1 down to `minLearningRateRatio` at the last update. transformers and verl start the rise at 0, one update
/// later, which makes their first update none, and end the decay one after the last.
pub fn factor(spec: &OptimizerSpec, update: u64, total: u64) -> f64 {
    let warmup = spec.warmup_of(total);
    if update < warmup {
        return (update + 1) as f64 / warmup as f64;
    }
    let span = total.saturating_sub(warmup + 1).max(1) as f64;
    let progress = ((update - warmup) as f64 / span).min(1.0);
    let floor = spec.min_learning_rate_ratio;
    match spec.schedule {
        Schedule::Constant => 1.0,
        Schedule::Linear => floor + (1.0 - floor) * (1.0 - progress),
        Schedule::Cosine => floor + (1.0 - floor) * 0.5 * (1.0 + (std::f64::consts::PI * progress).cos()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(schedule: Schedule, warmup_updates: u64) -> OptimizerSpec {
        OptimizerSpec {
            schedule,
            warmup_updates,
            min_learning_rate_ratio: 0.1,
            ..OptimizerSpec::default()
        }
    }

    #[test]
    fn warm_up_rises_to_the_full_rate_and_never_starts_at_zero() {
        let spec = spec(Schedule::Constant, 4);
        let rates: Vec<f64> = (0..6).map(|update| factor(&spec, update, 6)).collect();
        assert_eq!(rates, [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]);
        let share = OptimizerSpec {
            warmup_ratio: Some(0.5),
            ..OptimizerSpec::default()
        };
        assert_eq!([0, 3, 4].map(|update| factor(&share, update, 8)), [0.25, 1.0, 1.0]);
    }

    #[test]
    fn every_schedule_starts_full_falls_monotonically_and_ends_at_the_floor() {
        for schedule in [Schedule::Linear, Schedule::Cosine] {
            let spec = spec(schedule, 10);
            let rates: Vec<f64> = (10..100).map(|update| factor(&spec, update, 100)).collect();
            assert_eq!(rates[0], 1.0);
            assert!(rates.windows(2).all(|pair| pair[1] <= pair[0]));
            assert!((rates[89] - 0.1).abs() < 1e-12);
        }
    }

    #[test]
    fn each_schedule_has_its_own_course_between_the_ends() {
        let at = |schedule| factor(&spec(schedule, 0), 25, 101);
        assert_eq!(at(Schedule::Constant), 1.0);
        // A quarter of the way from 1 to 0.1; and where the cosine of an eighth of a turn is.
        assert!((at(Schedule::Linear) - 0.775).abs() < 1e-12);
        assert!((at(Schedule::Cosine) - (0.1 + 0.45 * (1.0 + 0.5_f64.sqrt()))).abs() < 1e-12);
    }

    #[test]
    fn a_run_longer_or_shorter_than_planned_stays_in_bounds() {
        for schedule in [Schedule::Constant, Schedule::Linear, Schedule::Cosine] {
            for (update, total) in [(0, 0), (0, 1), (7, 1), (1000, 10)] {
                let rate = factor(&spec(schedule, 0), update, total);
                assert!((0.1..=1.0).contains(&rate), "{schedule:?} {update}/{total}: {rate}");
            }
        }
    }
}
