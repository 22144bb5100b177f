//! How far an answer is worked out. `48/2 + 48` is worth 72, but where 72 is the answer to find, a sum that is left to the reader is none:
//! a policy that is rewarded for it learns to copy the question.

use super::expr::Expr;

/// Whether `given` is worked out as far as the label is, where that is a number.
pub(super) fn fits(label: &Expr, given: &Expr) -> bool {
    if is_whole(label) {
        is_plain(given)
    } else {
        !is_fraction(label) || is_fraction(given)
    }
}

fn is_whole(expr: &Expr) -> bool {
    match expr {
        Expr::Number(digits) => digits.bytes().all(|byte| byte.is_ascii_digit()),
        Expr::Negative(positive) => is_whole(positive),
        _ => false,
    }
}

/// One number, though it may have a power of ten: `-5`, `0.5`, `50%`, `6.02 \times 10^{23}`.
fn is_plain(expr: &Expr) -> bool {
    match expr {
        Expr::Number(_) => true,
        Expr::Negative(expr) | Expr::Percent(expr) => is_plain(expr),
        Expr::Product(factors) => {
            matches!(factors.as_slice(), [Expr::Number(_), power @ Expr::Power(..)] if is_plain(power))
        }
        Expr::Power(base, exponent) => **base == Expr::number("10") && exponent.whole_number().is_some(),
        _ => false,
    }
}

fn is_fraction(expr: &Expr) -> bool {
    match expr {
        Expr::Quotient(over, under) => is_plain(over) && is_plain(under),
        Expr::Negative(positive) => is_fraction(positive),
        expr => is_plain(expr),
    }
}
