//! Final answers of mathematics, compared as mathematics: `\frac{1}{2}` is `0.5`, and `\sqrt{8}` is `2\sqrt{2}`.
//!
//! `place` finds the answer in a text, `lexer` reads it without what only looks (spaces, sizes, dollars), `parser` makes a tree of it, and
//! `same` compares two trees. Responses are anybody's, so an answer is bounded in length, and its tree in depth.

mod exact;
mod expr;
mod float;
mod interval;
mod lexer;
mod parser;
mod place;
mod same;
mod token;
mod value;
mod written;

use self::expr::Expr;
use self::token::Token;

/// Bytes of the longest answer. Those of MATH have at most 200.
const LONGEST: usize = 1000;

/// One answer.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    tokens: Vec<Token>,
    /// None where the tokens are no expression that is known here.
    expr: Option<Expr>,
}

impl Answer {
    /// What a response states: what stands in its last box, else behind its last marker. None where it states nothing, or more than
    /// an answer.
    pub(super) fn of_response(text: &str) -> Option<Self> {
        Self::read(place::of_response(text)?).ok()
    }

    /// What a label says, or a text that is an answer: what stands in its last box, else behind its last `####`, else all of it.
    ///
    /// # Errors
    /// Where that is nothing, or more than an answer.
    pub(super) fn of_label(text: &str) -> Result<Self, String> {
        Self::read(place::of_label(text))
    }

    fn read(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.len() > LONGEST {
            return Err(format!(
                "has {} bytes where an answer has at most {LONGEST}",
                text.len()
            ));
        }
        let tokens = lexer::tokens(text);
        if tokens.is_empty() {
            return Err("holds no answer".to_owned());
        }
        let expr = parser::parse(&tokens);
        Ok(Self { tokens, expr })
    }

    /// Whether `given` is right where this is the label.
    pub(super) fn accepts(&self, given: &Self) -> bool {
        let alike = |(label, given): (&Expr, &Expr)| same::same(label, given);
        self.tokens == given.tokens || self.expr.as_ref().zip(given.expr.as_ref()).is_some_and(alike)
    }
}

#[cfg(test)]
mod tests;
