//! What an expression is worth, in whatever arithmetic: `exact` and `float` have one each.

use super::expr::Expr;

/// An arithmetic. None is what it cannot say.
pub(super) trait Arithmetic {
    type Value: Copy;

    fn number(&self, digits: &str) -> Option<Self::Value>;
    fn symbol(&self, name: &str) -> Option<Self::Value>;
    fn sum(&self, terms: &[Self::Value]) -> Option<Self::Value>;
    fn product(&self, factors: &[Self::Value]) -> Option<Self::Value>;
    fn negative(&self, value: Self::Value) -> Self::Value;
    fn inverse(&self, value: Self::Value) -> Option<Self::Value>;
    fn power(&self, base: Self::Value, exponent: i64) -> Option<Self::Value>;
    fn real_power(&self, base: Self::Value, exponent: Self::Value) -> Option<Self::Value>;
    fn root(&self, index: i64, value: Self::Value) -> Option<Self::Value>;
    fn absolute(&self, value: Self::Value) -> Option<Self::Value>;
    fn function(&self, name: &str, value: Self::Value) -> Option<Self::Value>;
}

/// The value of an expression, if it has one.
pub(super) fn value<A: Arithmetic>(expr: &Expr, by: &A) -> Option<A::Value> {
    let of = |expr: &Expr| value(expr, by);
    let all = |exprs: &[Expr]| exprs.iter().map(of).collect::<Option<Vec<_>>>();
    match expr {
        Expr::Number(digits) => by.number(digits),
        Expr::Symbol(name) => by.symbol(name),
        Expr::Negative(expr) => Some(by.negative(of(expr)?)),
        Expr::Sum(terms) => by.sum(&all(terms)?),
        Expr::Product(factors) => by.product(&all(factors)?),
        Expr::Quotient(over, under) => by.product(&[of(over)?, by.inverse(of(under)?)?]),
        Expr::Percent(expr) => by.product(&[of(expr)?, by.inverse(by.number("100")?)?]),
        Expr::Power(base, exponent) => match exponent.whole_number() {
            Some(exponent) => by.power(of(base)?, exponent),
            None => by.real_power(of(base)?, of(exponent)?),
        },
        Expr::Root(index, expr) => by.root(index.whole_number()?, of(expr)?),
        Expr::Absolute(expr) => by.absolute(of(expr)?),
        Expr::Function(name, expr) => by.function(name, of(expr)?),
        Expr::Text(_)
        | Expr::Bracketed(..)
        | Expr::Set(_)
        | Expr::List(_)
        | Expr::Union(_)
        | Expr::Relation(..)
        | Expr::Matrix(_) => None,
    }
}

/// What a variable is at a point: always the same for its name, and far from what it is at another.
pub(super) fn place_of(name: &str, point: u64) -> u64 {
    // FNV-1a, then the end of splitmix64, because the first leaves like names close.
    let mix = |state: u64, byte: u8| (state ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let state = point
        .to_le_bytes()
        .into_iter()
        .chain(name.bytes())
        .fold(0xcbf2_9ce4_8422_2325, mix);
    let state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}
