//! Arithmetic of roots, functions, pi and e, rounded. It says nothing where rounding would hide a difference.

use std::f64::consts;

use super::value::{Arithmetic, place_of};

/// The smallest part of a sum that counts, and how much of its terms a sum may lose.
const LEAST_TERM: f64 = 1e-6;
/// See [`LEAST_TERM`].
const LEAST_SUM: f64 = 1e-3;

/// The arithmetic, at a point for the variables.
pub(super) struct Float {
    pub(super) point: u64,
}

/// Points at which two expressions have to be equal. In the first half all variables are positive, then all are negative, then some.
pub(super) const POINTS: u64 = 8;

impl Arithmetic for Float {
    type Value = f64;

    fn number(&self, digits: &str) -> Option<f64> {
        finite(digits.parse().ok()?)
    }

    fn symbol(&self, name: &str) -> Option<f64> {
        Some(match name {
            "pi" => consts::PI,
            "e" => consts::E,
            _ => {
                let place = place_of(name, self.point);
                // From 0.3 to 2.3, where powers are neither huge nor nothing.
                let size = 0.3 + 2.0 * (place >> 11) as f64 / (1_u64 << 53) as f64;
                let is_negative = self.point == POINTS / 2 || self.point > POINTS / 2 && place & 1 == 1;
                if is_negative { -size } else { size }
            }
        })
    }

    fn sum(&self, terms: &[f64]) -> Option<f64> {
        let sum: f64 = terms.iter().sum();
        let largest = terms.iter().fold(0.0, |largest: f64, term| largest.max(term.abs()));
        let is_lost = |term: &f64| *term != 0.0 && term.abs() < LEAST_TERM * largest;
        let says = !terms.iter().any(is_lost) && sum.abs() >= LEAST_SUM * largest;
        finite(sum).filter(|_| says)
    }

    fn product(&self, factors: &[f64]) -> Option<f64> {
        kept(factors.iter().product(), factors.contains(&0.0))
    }

    fn negative(&self, value: f64) -> f64 {
        -value
    }

    fn inverse(&self, value: f64) -> Option<f64> {
        kept(value.recip(), false)
    }

    fn power(&self, base: f64, exponent: i64) -> Option<f64> {
        self.real_power(base, exponent as f64)
    }

    fn real_power(&self, base: f64, exponent: f64) -> Option<f64> {
        kept(base.powf(exponent), base == 0.0)
    }

    fn root(&self, index: i64, value: f64) -> Option<f64> {
        match index {
            2 => finite(value.sqrt()),
            3 => Some(value.cbrt()),
            4.. if index % 2 == 0 => finite(value.powf(1.0 / index as f64)),
            4.. => finite(value.abs().powf(1.0 / index as f64).copysign(value)),
            _ => None,
        }
    }

    fn absolute(&self, value: f64) -> Option<f64> {
        Some(value.abs())
    }

    fn function(&self, name: &str, value: f64) -> Option<f64> {
        finite(match name {
            "sin" => value.sin(),
            "cos" => value.cos(),
            "tan" => value.tan(),
            "cot" => value.tan().recip(),
            "sec" => value.cos().recip(),
            "csc" => value.sin().recip(),
            "arcsin" => value.asin(),
            "arccos" => value.acos(),
            "arctan" => value.atan(),
            "ln" => value.ln(),
            _ => return None,
        })
    }
}

/// NaN and infinity are no values.
fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

/// So is what is too small to be told from zero, but for zero itself.
fn kept(value: f64, is_zero: bool) -> Option<f64> {
    finite(value).filter(|value| value.is_normal() || is_zero)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_says_nothing_where_a_term_or_most_of_it_is_lost() {
        let sum = |terms: &[f64]| Float { point: 0 }.sum(terms);
        assert_eq!(sum(&[1.0, 2.0]), Some(3.0));
        assert_eq!(sum(&[0.0, 2.0]), Some(2.0));
        assert_eq!(sum(&[1e9, 1.0]), None);
        assert_eq!(sum(&[1.0, 1e-5, -1.0]), None);
    }

    #[test]
    fn odd_roots_of_negative_numbers_are_negative_and_even_ones_are_none() {
        let root = |index, value| Float { point: 0 }.root(index, value);
        assert_eq!(root(3, -8.0), Some(-2.0));
        assert_eq!(root(5, -1.0), Some(-1.0));
        assert_eq!((root(2, -4.0), root(4, -16.0), root(-2, 4.0)), (None, None, None));
    }

    #[test]
    fn what_is_too_small_or_too_large_is_no_value() {
        let float = Float { point: 0 };
        assert_eq!((float.power(10.0, -400), float.power(10.0, 400)), (None, None));
        assert_eq!(
            (float.product(&[1e-200, 1e-200]), float.product(&[0.0, 5.0])),
            (None, Some(0.0))
        );
        assert_eq!((float.inverse(0.0), float.real_power(-2.0, 0.5)), (None, None));
    }
}
