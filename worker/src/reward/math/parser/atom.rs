//! What holds together by itself: numbers, names, brackets, and commands with their arguments.

use super::{CLOSE_SET, DEEPEST, Expr, FUNCTIONS, Parser, Token, one_or_list};
use crate::reward::math::token::OPEN_SET;

/// Greek letters, which are variables as other letters are; `\pi` is a number.
#[rustfmt::skip]
const GREEK: [&str; 20] = [
    "alpha", "beta", "gamma", "delta", "epsilon", "eta", "theta", "kappa", "lambda", "mu", "nu", "rho", "sigma", "tau", "phi",
    "varphi", "chi", "psi", "omega", "Delta",
];

impl Parser {
    /// Every way down goes through here, so that a hostile answer cannot overflow the stack.
    pub(super) fn atom(&mut self) -> Option<Expr> {
        if self.depth == DEEPEST {
            return None;
        }
        self.depth += 1;
        let atom = self.atom_within();
        self.depth -= 1;
        atom
    }

    fn atom_within(&mut self) -> Option<Expr> {
        match self.next()? {
            Token::Number(digits) => match self.subscript() {
                // A number in another base.
                Some(base) => Some(Expr::Symbol(format!("{digits}_{}", base?))),
                None => Some(Expr::Number(digits)),
            },
            Token::Letter(letter) => match self.subscript() {
                Some(index) => Some(Expr::Symbol(format!("{letter}_{}", index?))),
                None => Some(Expr::Symbol(letter.to_string())),
            },
            Token::Word(letters) => {
                let factors = letters.chars().map(|letter| Expr::Symbol(letter.to_string()));
                Some(Expr::Product(factors.collect()))
            }
            Token::Text(words) => Some(Expr::Text(words)),
            Token::Symbol(open @ ('(' | '[')) => self.bracketed(open),
            Token::Symbol('{') => {
                let items = self.items()?;
                self.takes_symbol('}').then(|| one_or_list(items))?
            }
            Token::Symbol(OPEN_SET) => self.set(),
            Token::Symbol('|') => self.absolute(),
            Token::Symbol(_) => None,
            Token::Command(name) => self.command(&name),
        }
    }

    /// What stands behind `_`. The outer None is no subscript, the inner one is what is none.
    fn subscript(&mut self) -> Option<Option<String>> {
        if !self.takes_symbol('_') {
            return None;
        }
        let is_group = self.takes_symbol('{');
        let mut text = String::new();
        loop {
            match self.peek() {
                Some(Token::Letter(letter)) => text.push(*letter),
                Some(Token::Number(part) | Token::Word(part) | Token::Text(part)) => text.push_str(part),
                _ => break,
            }
            self.at += 1;
            if !is_group {
                break;
            }
        }
        let is_whole = !text.is_empty() && (!is_group || self.takes_symbol('}'));
        Some(is_whole.then_some(text))
    }

    /// `(1, 2]`; round brackets around one thing only hold it together.
    fn bracketed(&mut self, open: char) -> Option<Expr> {
        let mut items = self.items()?;
        let close = if self.takes_symbol(')') { ')' } else { ']' };
        if close == ']' && !self.takes_symbol(']') {
            return None;
        }
        match (open, items.len(), close) {
            ('(', 1, ')') => items.pop(),
            _ => Some(Expr::Bracketed(open, items, close)),
        }
    }

    fn set(&mut self) -> Option<Expr> {
        if self.takes_symbol(CLOSE_SET) {
            return Some(Expr::Set(Vec::new()));
        }
        let items = self.items()?;
        self.takes_symbol(CLOSE_SET).then_some(Expr::Set(items))
    }

    fn absolute(&mut self) -> Option<Expr> {
        if std::mem::replace(&mut self.in_bars, true) {
            return None;
        }
        let inside = self.sum()?;
        self.in_bars = false;
        self.takes_symbol('|').then(|| Expr::Absolute(Box::new(inside)))
    }

    fn command(&mut self, name: &str) -> Option<Expr> {
        if let Some(function) = FUNCTIONS.into_iter().find(|function| *function == name) {
            return self.function(function);
        }
        match name {
            "frac" => Some(Expr::quotient(self.argument()?, self.argument()?)),
            "sqrt" => self.root(),
            "pi" | "infty" => Some(Expr::symbol(name)),
            "emptyset" => Some(Expr::Set(Vec::new())),
            "begin" => self.matrix(),
            name if GREEK.contains(&name) => Some(Expr::symbol(name)),
            _ => None,
        }
    }

    /// What a command stands before: a group, or one token, which of a number is one digit.
    fn argument(&mut self) -> Option<Expr> {
        if let Some(Token::Number(digits)) = self.tokens.get_mut(self.at)
            && digits.len() > 1
        {
            let rest = digits.split_off(1);
            let digit = std::mem::replace(digits, rest);
            return digit
                .bytes()
                .all(|byte| byte.is_ascii_digit())
                .then_some(Expr::Number(digit));
        }
        self.atom()
    }

    fn root(&mut self) -> Option<Expr> {
        let mut index = Expr::number("2");
        if self.takes_symbol('[') {
            index = self.sum()?;
            if !self.takes_symbol(']') {
                return None;
            }
        }
        // TeX's `\sqrt12` is the root of 1; who writes so means that of 12.
        if matches!(self.peek(), Some(Token::Number(digits)) if digits.len() > 1) {
            return None;
        }
        Some(Expr::Root(Box::new(index), Box::new(self.argument()?)))
    }

    fn function(&mut self, name: &'static str) -> Option<Expr> {
        let base = match name == "log" && self.takes_symbol('_') {
            true => self.argument()?,
            false => Expr::number("10"),
        };
        let exponent = match self.takes_symbol('^') {
            true => Some(self.exponent()?),
            false => None,
        };
        // `\sin^{-1}` is another function, and no power.
        if matches!(exponent, Some(Expr::Negative(_))) {
            return None;
        }
        let operand = self.operand()?;
        let natural = |expr: Expr| Expr::Function("ln", Box::new(expr));
        let value = match name {
            "log" => Expr::quotient(natural(operand), natural(base)),
            "exp" => Expr::power(Expr::symbol("e"), operand),
            name => Expr::Function(name, Box::new(operand)),
        };
        Some(exponent.into_iter().fold(value, Expr::power))
    }

    /// What a function is of: a bracket, or what is multiplied without a sign up to the next function.
    fn operand(&mut self) -> Option<Expr> {
        if matches!(self.peek(), Some(Token::Symbol('(' | '{'))) {
            return self.atom();
        }
        let mut factors = vec![self.power()?];
        let is_function = |token: &Token| matches!(token, Token::Command(name) if FUNCTIONS.contains(&name.as_str()));
        while self.starts_factor() && !self.peek().is_some_and(is_function) && !self.takes_unit() {
            factors.push(self.power()?);
        }
        super::product_of(factors)
    }

    /// `\begin{pmatrix} .. & .. \\ .. \end{pmatrix}`, round or square.
    fn matrix(&mut self) -> Option<Expr> {
        let name = self.environment()?;
        let mut rows = vec![vec![self.sum()?]];
        let (next_row, end) = (Token::command("\\"), Token::command("end"));
        while !self.takes(&end) {
            if self.takes_symbol('&') {
                let entry = self.sum()?;
                rows.last_mut()?.push(entry);
            } else if !self.takes(&next_row) {
                return None;
            } else if self.peek() != Some(&end) {
                rows.push(vec![self.sum()?]);
            }
        }
        (self.environment()? == name).then_some(Expr::Matrix(rows))
    }

    fn environment(&mut self) -> Option<Token> {
        let name = self.takes_symbol('{').then(|| self.next())??;
        let is_known = matches!(&name, Token::Word(name) if ["pmatrix", "bmatrix"].contains(&name.as_str()));
        (is_known && self.takes_symbol('}')).then_some(name)
    }
}
