//! An answer as a tree.

/// What is known of mathematics here.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expr {
    /// As it was written.
    Number(String),
    /// A variable, or a constant that has a name: `pi`, `e`, `i`, `infty`.
    Symbol(String),
    /// Words, in small letters.
    Text(String),
    Negative(Box<Expr>),
    Sum(Vec<Expr>),
    Product(Vec<Expr>),
    Quotient(Box<Expr>, Box<Expr>),
    Power(Box<Expr>, Box<Expr>),
    /// Which root, and of what.
    Root(Box<Expr>, Box<Expr>),
    Absolute(Box<Expr>),
    /// One of `FUNCTIONS`.
    Function(&'static str, Box<Expr>),
    /// So many hundredths.
    Percent(Box<Expr>),
    /// A tuple or an interval, with its brackets.
    Bracketed(char, Vec<Expr>, char),
    Set(Vec<Expr>),
    /// Several answers.
    List(Vec<Expr>),
    Union(Vec<Expr>),
    /// An equation or inequality: its sides, and the signs between them.
    Relation(Vec<Expr>, Vec<char>),
    /// Its rows.
    Matrix(Vec<Vec<Expr>>),
}

impl Expr {
    pub(super) fn number(digits: &str) -> Self {
        Self::Number(digits.to_owned())
    }

    pub(super) fn symbol(name: &str) -> Self {
        Self::Symbol(name.to_owned())
    }

    pub(super) fn quotient(over: Self, under: Self) -> Self {
        Self::Quotient(Box::new(over), Box::new(under))
    }

    pub(super) fn power(base: Self, exponent: Self) -> Self {
        Self::Power(Box::new(base), Box::new(exponent))
    }

    /// The whole number that it is written as, if it is one.
    pub(super) fn whole_number(&self) -> Option<i64> {
        match self {
            Self::Number(digits) => digits.parse().ok(),
            Self::Negative(positive) => positive.whole_number()?.checked_neg(),
            _ => None,
        }
    }
}
