//! Whether two answers are the same.

use super::exact::Exact;
use super::expr::Expr;
use super::float::{Float, POINTS};
use super::interval;
use super::value::value;
use super::written;

/// How far a decimal may be from what it rounds, relative to it.
const ROUNDED: f64 = 1e-9;

/// How far two ways to compute a number may be apart.
const COMPUTED: f64 = 1e-12;

/// Points at which expressions must have a value to be compared at all.
const LEAST_POINTS: usize = 3;

/// Whether an answer is that of the label.
pub(super) fn same(label: &Expr, given: &Expr) -> bool {
    let (label, given) = (&settled(label), &settled(given));
    match (label, given) {
        (Expr::List(relations), Expr::Union(parts)) | (Expr::Union(parts), Expr::List(relations))
            if relations.iter().all(is_relation) =>
        {
            in_any_order(relations, parts)
        }
        (Expr::List(_) | Expr::Set(_), _) | (_, Expr::List(_) | Expr::Set(_)) => {
            in_any_order(members(label), members(given))
        }
        (Expr::Relation(sides, signs), Expr::Relation(other_sides, other_signs)) => {
            let (turned_sides, turned_signs) = turned(other_sides, other_signs);
            signs == other_signs && in_order(sides, other_sides)
                || *signs == turned_signs && in_order(sides, &turned_sides)
        }
        (Expr::Relation(..), _) => what_it_says(label).is_some_and(|label| same(&label, given)),
        (_, Expr::Relation(..)) => what_it_says(given).is_some_and(|given| same(label, &given)),
        (Expr::Percent(label), Expr::Percent(given)) => same(label, given),
        // 50% is 50, as in the data sets, and 0.5, as in mathematics.
        (Expr::Percent(hundredths), _) => same(hundredths, given) || is_equal(label, given),
        (_, Expr::Percent(hundredths)) => same(label, hundredths) || is_equal(label, given),
        (Expr::Text(label), Expr::Text(given)) => label == given,
        (Expr::Text(words), Expr::Symbol(name)) | (Expr::Symbol(name), Expr::Text(words)) => {
            *words == name.to_lowercase()
        }
        (Expr::Bracketed(open, label, close), Expr::Bracketed(other_open, given, other_close)) => {
            (open, close) == (other_open, other_close) && in_order(label, given)
        }
        (Expr::Union(label), Expr::Union(given)) => in_any_order(label, given),
        (Expr::Matrix(label), Expr::Matrix(given)) => {
            label.len() == given.len() && label.iter().zip(given).all(|(label, given)| in_order(label, given))
        }
        _ => is_equal(label, given),
    }
}

/// What an equation comes down to: `x = 6/4 = 3/2` is `x = 3/2`, and `2 + 2 = 4` is 4.
fn settled(expr: &Expr) -> Expr {
    let Expr::Relation(sides, signs) = expr else {
        return expr.clone();
    };
    if signs.iter().any(|sign| *sign != '=') {
        return expr.clone();
    }
    let mut left: Vec<Expr> = Vec::new();
    for side in sides {
        if left.last().is_some_and(|last| have_equal_values(last, side)) {
            left.pop();
        }
        left.push(side.clone());
    }
    match <[Expr; 1]>::try_from(left) {
        Ok([side]) => side,
        Err(left) => {
            let signs = vec!['='; left.len().saturating_sub(1)];
            Expr::Relation(left, signs)
        }
    }
}

/// What `x = ..`, `f(x) = ..`, `(x, y) = ..`, `x \in ..` say of what they name, and in which interval `1 < x` says that it lies.
fn what_it_says(expr: &Expr) -> Option<Expr> {
    let Expr::Relation(sides, signs) = expr else {
        return None;
    };
    match (sides.as_slice(), signs.as_slice()) {
        ([name, value], ['=' | '∈']) if is_name(name) => Some(value.clone()),
        (_, ['>' | '≥', ..]) => {
            let (sides, signs) = turned(sides, signs);
            interval::of_relation(&sides, &signs)
        }
        _ => interval::of_relation(sides, signs),
    }
}

fn is_relation(expr: &Expr) -> bool {
    matches!(expr, Expr::Relation(..))
}

fn is_name(expr: &Expr) -> bool {
    match expr {
        Expr::Symbol(_) | Expr::Text(_) => true,
        Expr::Product(parts) | Expr::Bracketed(_, parts, _) => parts.iter().all(is_name),
        _ => false,
    }
}

/// An equation or inequality read from right to left.
fn turned(sides: &[Expr], signs: &[char]) -> (Vec<Expr>, Vec<char>) {
    let turned = |sign: &char| match sign {
        '<' => '>',
        '>' => '<',
        '≤' => '≥',
        '≥' => '≤',
        other => *other,
    };
    (
        sides.iter().rev().cloned().collect(),
        signs.iter().rev().map(turned).collect(),
    )
}

fn members(expr: &Expr) -> &[Expr] {
    match expr {
        Expr::List(members) | Expr::Set(members) => members,
        one => std::slice::from_ref(one),
    }
}

fn in_order(label: &[Expr], given: &[Expr]) -> bool {
    label.len() == given.len() && label.iter().zip(given).all(|(label, given)| same(label, given))
}

fn in_any_order(label: &[Expr], given: &[Expr]) -> bool {
    let mut left: Vec<&Expr> = given.iter().collect();
    let finds = |label: &Expr| {
        let found = left.iter().position(|given| same(label, given));
        found.map(|at| left.swap_remove(at)).is_some()
    };
    label.len() == given.len() && label.iter().all(finds)
}

fn is_equal(label: &Expr, given: &Expr) -> bool {
    written::fits(label, given) && have_equal_values(label, given)
}

fn have_equal_values(one: &Expr, other: &Expr) -> bool {
    one == other || exactly(one, other).unwrap_or_else(|| nearly(one, other))
}

/// Whether two rational expressions are equal. None where one is not rational, or has pi or e and the other not: that may be rounded.
fn exactly(one: &Expr, other: &Expr) -> Option<bool> {
    for point in 0..2 {
        let at = || Exact {
            point,
            ..Exact::default()
        };
        let (of_one, of_other) = (at(), at());
        if value(one, &of_one)? != value(other, &of_other)? {
            return (of_one.has_constant == of_other.has_constant).then_some(false);
        }
    }
    Some(true)
}

/// Whether two expressions are equal at several points, as far as rounded arithmetic can tell.
fn nearly(one: &Expr, other: &Expr) -> bool {
    let is_rational = |expr| value(expr, &Exact::default()).is_some();
    let tolerance = if is_rational(one) || is_rational(other) {
        ROUNDED
    } else {
        COMPUTED
    };
    let mut compared = 0;
    for point in 0..POINTS {
        match (value(one, &Float { point }), value(other, &Float { point })) {
            (Some(one), Some(other)) if (one - other).abs() <= tolerance * one.abs().max(other.abs()) => compared += 1,
            (None, None) => {}
            _ => return false,
        }
    }
    compared >= LEAST_POINTS
}
