//! Exact arithmetic of rational expressions, whatever their size, without large numbers: modulo two primes of 61 bits.
//!
//! Two numbers that differ are equal modulo both primes where their difference is a multiple of both, as that of two numbers somebody writes is
//! not. So are two expressions with variables that differ, at values of those that nobody chose (Schwartz and Zippel). Both primes
//! leave 1 when divided by 4, so -1 has a root, which is `i`.

use std::cell::Cell;

use super::value::{Arithmetic, place_of};

const PRIMES: [u64; 2] = [(1 << 61) - 31, (1 << 61) - 259];

/// Roots of -1.
const IMAGINARY: [u64; 2] = [583_529_827_753_931_384, 966_685_122_347_009_555];

/// A value modulo each prime.
pub(super) type Residues = [u64; 2];

/// The arithmetic, at a point for the variables.
#[derive(Default)]
pub(super) struct Exact {
    pub(super) point: u64,
    /// Whether pi or e were asked for, which are variables here: no rational number is either.
    pub(super) has_constant: Cell<bool>,
}

impl Arithmetic for Exact {
    type Value = Residues;

    fn number(&self, digits: &str) -> Option<Residues> {
        let (digits, exponent) = digits.split_once('e').unwrap_or((digits, "0"));
        let exponent: i64 = exponent.parse().ok()?;
        let decimals = digits.split_once('.').map_or(0, |(_, decimals)| decimals.len());
        let digit = |byte: u8| byte.is_ascii_digit().then(|| u64::from(byte - b'0'));
        let add = |value: Residues, digit: u64| each(|at| modulo(u128::from(value[at]) * 10 + u128::from(digit), at));
        let whole = digits.bytes().filter_map(digit).fold([0, 0], add);
        let scale = self.power([10, 10], exponent.checked_sub(i64::try_from(decimals).ok()?)?)?;
        self.product(&[whole, scale])
    }

    fn symbol(&self, name: &str) -> Option<Residues> {
        if ["pi", "e"].contains(&name) {
            self.has_constant.set(true);
        }
        Some(match name {
            "i" => IMAGINARY,
            _ => each(|at| place_of(name, self.point) % PRIMES[at]),
        })
    }

    fn sum(&self, terms: &[Residues]) -> Option<Residues> {
        let add = |sum: Residues, term: &Residues| each(|at| modulo(u128::from(sum[at]) + u128::from(term[at]), at));
        Some(terms.iter().fold([0, 0], add))
    }

    fn product(&self, factors: &[Residues]) -> Option<Residues> {
        Some(factors.iter().fold([1, 1], |product, factor| times(product, *factor)))
    }

    fn negative(&self, value: Residues) -> Residues {
        each(|at| modulo(u128::from(PRIMES[at] - value[at]), at))
    }

    fn inverse(&self, value: Residues) -> Option<Residues> {
        // Fermat: the power of a prime less 2.
        let inverse = each(|at| raised(value, PRIMES[at] - 2)[at]);
        (!value.contains(&0)).then_some(inverse)
    }

    fn power(&self, base: Residues, exponent: i64) -> Option<Residues> {
        let base = if exponent < 0 { self.inverse(base)? } else { base };
        Some(raised(base, exponent.unsigned_abs()))
    }

    fn real_power(&self, _: Residues, _: Residues) -> Option<Residues> {
        None
    }

    fn root(&self, _: i64, _: Residues) -> Option<Residues> {
        None
    }

    fn absolute(&self, _: Residues) -> Option<Residues> {
        None
    }

    fn function(&self, _: &str, _: Residues) -> Option<Residues> {
        None
    }
}

fn each(of: impl Fn(usize) -> u64) -> Residues {
    [of(0), of(1)]
}

fn modulo(value: u128, at: usize) -> u64 {
    (value % u128::from(PRIMES[at])) as u64
}

fn times(one: Residues, other: Residues) -> Residues {
    each(|at| modulo(u128::from(one[at]) * u128::from(other[at]), at))
}

fn raised(mut base: Residues, mut exponent: u64) -> Residues {
    let mut power = [1, 1];
    while exponent > 0 {
        if exponent & 1 == 1 {
            power = times(power, base);
        }
        base = times(base, base);
        exponent >>= 1;
    }
    power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_inverses_and_minus_one_has_a_root() {
        let exact = Exact::default();
        let number = |digits: &str| exact.number(digits).unwrap();
        for digits in ["1", "7", "0.125", "6.02e23", "123456789012345678901234567890", "1e-400"] {
            let inverse = exact.inverse(number(digits)).unwrap();
            assert_eq!(times(number(digits), inverse), [1, 1], "{digits}");
        }
        assert_eq!(exact.inverse(number("0")), None);
        assert_eq!(number("2.50"), times(number("5"), exact.inverse(number("2")).unwrap()));
        let i = exact.symbol("i").unwrap();
        assert_eq!(times(i, i), exact.negative([1, 1]));
        assert_eq!(exact.negative([0, 0]), [0, 0]);
    }
}
