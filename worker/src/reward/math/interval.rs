//! Inequalities that say between which numbers a variable lies: `1 < x \le 2` is `(1, 2]`.

use super::expr::Expr;

/// The interval of an inequality of one variable. None where it is another relation.
pub(super) fn of_relation(sides: &[Expr], signs: &[char]) -> Option<Expr> {
    match (sides, signs) {
        ([low, name, high], [left @ ('<' | '≤'), right @ ('<' | '≤')]) if is_variable(name) => {
            Some(between(low, *left, *right, high))
        }
        ([name, high], [sign @ ('<' | '≤')]) if is_variable(name) => {
            let low = Expr::Negative(Box::new(infinity()));
            Some(between(&low, '<', *sign, high))
        }
        ([low, name], [sign @ ('<' | '≤')]) if is_variable(name) => Some(between(low, *sign, '<', &infinity())),
        _ => None,
    }
}

fn between(low: &Expr, left: char, right: char, high: &Expr) -> Expr {
    let open = if left == '<' { '(' } else { '[' };
    let close = if right == '<' { ')' } else { ']' };
    Expr::Bracketed(open, vec![low.clone(), high.clone()], close)
}

fn infinity() -> Expr {
    Expr::symbol("infty")
}

fn is_variable(expr: &Expr) -> bool {
    matches!(expr, Expr::Symbol(name) if !["pi", "e", "i", "infty"].contains(&name.as_str()))
}
