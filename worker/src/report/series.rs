//! A line of a chart: smoothing, and thinning that keeps every extreme.

/// A named line of (step, value). A value that is not finite is a gap.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub name: String,
    pub points: Vec<(f64, f64)>,
    /// Draw the points themselves and no smoothed line: few, far between.
    pub sparse: bool,
}

/// A point as drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    pub step: f64,
    pub value: f64,
    pub smooth: f64,
}

impl Series {
    pub fn dense(name: impl Into<String>, points: Vec<(f64, f64)>) -> Series {
        Series {
            name: name.into(),
            points,
            sparse: false,
        }
    }

    pub fn sparse(name: impl Into<String>, points: Vec<(f64, f64)>) -> Series {
        Series {
            name: name.into(),
            points,
            sparse: true,
        }
    }

    /// Whether there is anything to draw.
    pub fn is_empty(&self) -> bool {
        !self.points.iter().any(|(_, value)| value.is_finite())
    }

    /// At most `limit` points, smoothed before they are thinned.
    pub fn points(&self, limit: usize) -> Vec<Point> {
        let values: Vec<f64> = self.points.iter().map(|(_, value)| *value).collect();
        let smooth = if self.sparse { values.clone() } else { smooth(&values) };
        thin(&values, limit)
            .into_iter()
            .map(|index| Point {
                step: self.points[index].0,
                value: values[index],
                smooth: smooth[index],
            })
            .collect()
    }
}

/// Exponential mean over about a twelfth of the run, corrected for its start (as Adam's moments are, arXiv 1412.6980
/// section 3). Gaps stay gaps and do not enter the mean.
fn smooth(values: &[f64]) -> Vec<f64> {
    let window = (values.len() as f64 / 12.0).max(1.0);
    let keep = 1.0 - 2.0 / (window + 1.0);
    let (mut mean, mut weight) = (0.0, 0.0);
    let step = |value: &f64| {
        if !value.is_finite() {
            return f64::NAN;
        }
        mean = keep * mean + (1.0 - keep) * value;
        weight = keep * weight + (1.0 - keep);
        mean / weight
    };
    values.iter().map(step).collect()
}

/// Indices of at most `limit` values: the first and last, and of every stretch between its least, its greatest, and a
/// gap if it holds nothing else.
fn thin(values: &[f64], limit: usize) -> Vec<usize> {
    if values.len() <= limit || limit < 4 {
        return (0..values.len()).collect();
    }
    let stretch = (values.len() - 2).div_ceil(limit / 2 - 1);
    let mut kept = vec![0];
    for start in (1..values.len() - 1).step_by(stretch) {
        let inside = start..(start + stretch).min(values.len() - 1);
        let finite = || inside.clone().filter(|index| values[*index].is_finite());
        let least = finite().min_by(|a, b| values[*a].total_cmp(&values[*b]));
        let greatest = finite().max_by(|a, b| values[*a].total_cmp(&values[*b]));
        match (least, greatest) {
            (Some(least), Some(greatest)) if least != greatest => {
                kept.extend([least.min(greatest), least.max(greatest)])
            }
            (Some(only), _) => kept.push(only),
            _ => kept.push(start),
        }
    }
    kept.push(values.len() - 1);
    kept
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn thinning_keeps_the_ends_the_order_and_the_extremes(
            values in prop::collection::vec(prop_oneof![9 => -1e6..1e6, 1 => Just(f64::NAN)], 0..3000),
            limit in 4usize..200,
        ) {
            let kept = thin(&values, limit);
            prop_assert!(kept.len() <= limit);
            prop_assert!(kept.is_sorted_by(|a, b| a < b));
            prop_assert_eq!(kept.first().copied(), (!values.is_empty()).then_some(0));
            prop_assert_eq!(kept.last().copied(), values.len().checked_sub(1));
            // f64::min and max skip NaN.
            let least = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::INFINITY, f64::min);
            let greatest = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::NEG_INFINITY, f64::max);
            let all = || values.iter().copied();
            let some = || kept.iter().map(|index| values[*index]);
            prop_assert_eq!(least(&mut all()), least(&mut some()));
            prop_assert_eq!(greatest(&mut all()), greatest(&mut some()));
        }

        #[test]
        fn smoothing_stays_within_the_values(values in prop::collection::vec(-10.0..10.0f64, 1..400)) {
            let (least, greatest) = (values.iter().copied().fold(f64::MAX, f64::min), values.iter().copied().fold(f64::MIN, f64::max));
            for value in smooth(&values) {
                prop_assert!(value >= least - 1e-9 && value <= greatest + 1e-9);
            }
        }
    }

    #[test]
    fn a_constant_is_its_own_smoothing_and_a_gap_stays_one() {
        let smoothed = smooth(&[2.0, f64::NAN, 2.0, f64::INFINITY, 2.0]);
        assert_eq!([smoothed[0], smoothed[2], smoothed[4]], [2.0; 3]);
        assert!(smoothed[1].is_nan() && smoothed[3].is_nan());
    }
}
