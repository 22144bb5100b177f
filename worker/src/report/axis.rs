//! Ranges and ticks of an axis.

/// From where to where, and where the ticks are.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub from: f64,
    pub to: f64,
    pub ticks: Vec<f64>,
}

impl Axis {
    /// An axis for finite values: it starts and ends on ticks, and takes zero in where that costs little.
    pub fn of_values(values: impl Iterator<Item = f64>) -> Axis {
        let (least, greatest) = range(values).unwrap_or((0.0, 1.0));
        let spread = greatest - least;
        // A constant gets room around it, and zero is shown where it is near.
        let (least, greatest) = match spread {
            spread if spread <= f64::EPSILON * greatest.abs().max(f64::MIN_POSITIVE) => {
                let room = if least == 0.0 { 1.0 } else { least.abs() * 0.5 };
                (least - room, greatest + room)
            }
            _ if least > 0.0 && least < spread => (0.0, greatest),
            _ if greatest < 0.0 && -greatest < spread => (least, 0.0),
            _ => (least, greatest),
        };
        let step = nice_step((greatest - least) / 4.0, &[1.0, 2.0, 2.5, 5.0]);
        let (first, last) = ((least / step).floor(), (greatest / step).ceil());
        let ticks: Vec<f64> = (0..=(last - first) as usize)
            .map(|tick| (first + tick as f64) * step)
            .collect();
        Axis {
            from: first * step,
            to: last * step,
            ticks,
        }
    }

    /// The same for shares: where all are from 0 to 1, so is the axis.
    pub fn of_shares(values: impl Iterator<Item = f64> + Clone) -> Axis {
        let whole = 0.0..=1.0;
        let axis = Axis::of_values(values.clone());
        if !values
            .filter(|value| value.is_finite())
            .all(|share| whole.contains(&share))
        {
            return axis;
        }
        Axis {
            from: axis.from.max(0.0),
            to: axis.to.min(1.0),
            ticks: axis.ticks.into_iter().filter(|tick| whole.contains(tick)).collect(),
        }
    }

    /// An axis for step numbers: whole ticks inside, ends where the steps end.
    pub fn of_steps(steps: impl Iterator<Item = f64>) -> Axis {
        let (from, to) = range(steps).unwrap_or((0.0, 1.0));
        if from == to {
            return Axis {
                from: from - 1.0,
                to: to + 1.0,
                ticks: vec![from],
            };
        }
        let step = nice_step((to - from) / 6.0, &[1.0, 2.0, 5.0]).max(1.0);
        let (first, last) = ((from / step).ceil(), (to / step).floor());
        let ticks = (0..=(last - first).max(0.0) as usize)
            .map(|tick| (first + tick as f64) * step)
            .collect();
        Axis { from, to, ticks }
    }

    /// Where a value lies between the ends, 0 to 1.
    pub fn share(&self, value: f64) -> f64 {
        (value - self.from) / (self.to - self.from)
    }
}

fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.filter(|value| value.is_finite()).fold(None, |range, value| {
        let (least, greatest) = range.unwrap_or((value, value));
        Some((value.min(least), value.max(greatest)))
    })
}

/// The least of the factors times a power of ten that is at least `step`.
fn nice_step(step: f64, factors: &[f64]) -> f64 {
    let power = 10f64.powf(step.max(f64::MIN_POSITIVE).log10().floor());
    factors
        .iter()
        .map(|factor| factor * power)
        .find(|nice| *nice >= step * 0.999)
        .unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_axis_holds_its_values_and_has_a_few_ticks(values in prop::collection::vec(-1e6..1e6f64, 1..20), scale in -9i32..4) {
            let values: Vec<f64> = values.iter().map(|value| value * 10f64.powi(scale)).collect();
            let axis = Axis::of_values(values.iter().copied());
            prop_assert!((2..=9).contains(&axis.ticks.len()), "{axis:?}");
            for value in values {
                prop_assert!((-1e-6..=1.0 + 1e-6).contains(&axis.share(value)), "{value} outside {axis:?}");
            }
        }

        #[test]
        fn step_ticks_are_whole_and_inside(from in 0u64..1000, length in 0u64..100_000) {
            let axis = Axis::of_steps([from as f64, (from + length) as f64].into_iter());
            prop_assert!(axis.ticks.len() <= 9);
            for tick in &axis.ticks {
                prop_assert_eq!(tick.fract(), 0.0);
                prop_assert!((0.0..=1.0).contains(&axis.share(*tick)));
            }
        }
    }

    #[test]
    fn an_axis_of_shares_ends_at_none_and_at_all() {
        for (values, ends) in [
            ([1.0, 1.0], (0.5, 1.0)),
            ([0.0, 0.0], (0.0, 1.0)),
            ([0.2, 0.97], (0.0, 1.0)),
        ] {
            let axis = Axis::of_shares(values.into_iter());
            assert_eq!((axis.from, axis.to), ends, "{values:?}");
            assert!(
                axis.ticks.len() >= 2 && axis.ticks.iter().all(|tick| (0.0..=1.0).contains(tick)),
                "{axis:?}"
            );
        }
        assert!(Axis::of_shares([0.5, 1.2].into_iter()).to > 1.0);
    }

    #[test]
    fn nothing_finite_still_makes_an_axis() {
        let axis = Axis::of_values([f64::NAN, f64::INFINITY].into_iter());
        assert!(axis.from < axis.to);
    }
}
