//! Tokens as a tree, by recursive descent. What is ambiguous (`1/2x`, `x^2^3`) is no expression here: it is compared as it was written.

mod atom;

use super::expr::Expr;
use super::token::{CLOSE_SET, FUNCTIONS, Token};

/// How deep brackets, exponents and arguments may lie in each other.
const DEEPEST: usize = 40;

/// Signs between the sides of an equation or inequality.
const RELATIONS: &str = "=<>≤≥≠∈";

/// Units that are written as plain words. In `\text{}` any words are one, but for these.
#[rustfmt::skip]
const UNITS: [&str; 79] = [
    "cm", "mm", "km", "meter", "meters", "metre", "metres", "centimeter", "centimeters", "centimetre", "centimetres",
    "millimeter", "millimeters", "kilometer", "kilometers", "kilometre", "kilometres", "inch", "inches", "ft", "foot", "feet",
    "yard", "yards", "mile", "miles", "mph", "kph", "sq", "square", "cubic", "unit", "units", "per", "sec", "second", "seconds",
    "min", "minute", "minutes", "hr", "hrs", "hour", "hours", "day", "days", "week", "weeks", "month", "months", "year",
    "years", "kg", "kilogram", "kilograms", "gram", "grams", "pound", "pounds", "lb", "lbs", "ounce", "ounces", "oz", "ton",
    "tons", "liter", "liters", "litre", "litres", "ml", "gallon", "gallons", "cent", "cents", "dollar", "dollars", "euro",
    "euros",
];

/// Words that make another answer of what stands before them.
#[rustfmt::skip]
const MEANINGFUL: [&str; 31] = [
    "a.m.", "about", "am", "at", "base", "between", "billion", "cubed", "dozen", "except", "for", "half", "hundred", "if", "least",
    "less", "million", "mod", "more", "most", "not", "p.m.", "pm", "squared", "than", "thousand", "times", "to", "trillion", "when",
    "where",
];

/// The tree of an answer. One with `±` is two answers. None where the tokens are none that is known.
pub(super) fn parse(tokens: &[Token]) -> Option<Expr> {
    let (upper, has_both) = Parser::new(tokens, false).answer()?;
    if !has_both {
        return one_or_list(upper);
    }
    let (lower, _) = Parser::new(tokens, true).answer()?;
    Some(Expr::List([upper, lower].concat()))
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
    /// Whether `|` closes.
    in_bars: bool,
    /// Whether `±` is a minus, and `∓` a plus.
    takes_lower: bool,
    has_both: bool,
}

impl Parser {
    fn new(tokens: &[Token], takes_lower: bool) -> Self {
        Self {
            tokens: tokens.to_vec(),
            at: 0,
            depth: 0,
            in_bars: false,
            takes_lower,
            has_both: false,
        }
    }

    fn answer(mut self) -> Option<(Vec<Expr>, bool)> {
        let items = self.items()?;
        (self.at == self.tokens.len()).then_some((items, self.has_both))
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn next(&mut self) -> Option<Token> {
        let token = self.peek().cloned();
        self.at += usize::from(token.is_some());
        token
    }

    /// Whether this token is the next one, and taken.
    fn takes(&mut self, token: &Token) -> bool {
        let is_next = self.peek() == Some(token);
        self.at += usize::from(is_next);
        is_next
    }

    fn takes_symbol(&mut self, symbol: char) -> bool {
        self.takes(&Token::Symbol(symbol))
    }

    /// One or several, between commas or `and`.
    fn items(&mut self) -> Option<Vec<Expr>> {
        let mut items = vec![self.relation()?];
        loop {
            let start = self.at;
            while self.takes_symbol(',') || self.takes_symbol(';') {}
            if self.at == start {
                return Some(items);
            }
            items.push(self.relation()?);
        }
    }

    fn relation(&mut self) -> Option<Expr> {
        let (mut sides, mut signs) = (vec![self.side()?], Vec::new());
        while let Some(Token::Symbol(sign)) = self.peek().filter(|token| is_one_of(token, RELATIONS)) {
            signs.push(*sign);
            self.at += 1;
            sides.push(self.side()?);
        }
        match signs.is_empty() {
            true => sides.pop(),
            false => Some(Expr::Relation(sides, signs)),
        }
    }

    fn side(&mut self) -> Option<Expr> {
        if let Some(words) = self.words() {
            return Some(words);
        }
        let mut parts = vec![self.sum()?];
        while self.takes_symbol('∪') {
            parts.push(self.sum()?);
        }
        if parts.len() == 1 {
            parts.pop()
        } else {
            Some(Expr::Union(parts))
        }
    }

    /// A side outside all brackets that is words and nothing else.
    fn words(&mut self) -> Option<Expr> {
        let rest = self.tokens.get(self.at..).filter(|_| self.depth == 0)?;
        let mut words = Vec::new();
        let mut has_word = false;
        for token in rest {
            match token {
                Token::Letter(letter) => words.push(letter.to_ascii_lowercase().to_string()),
                Token::Word(word) | Token::Text(word) => {
                    has_word = true;
                    words.push(word.to_lowercase());
                }
                _ => break,
            }
        }
        let end = rest.get(words.len());
        let is_whole = end.is_none_or(|token| is_one_of(token, ",;") || is_one_of(token, RELATIONS));
        if !has_word || !is_whole {
            return None;
        }
        self.at += words.len();
        let bare = |char: char| char.is_whitespace() || "()[].".contains(char);
        Some(Expr::Text(words.join(" ").trim_matches(bare).to_owned()))
    }

    /// Whether the next sign is a minus; None where there is none.
    fn sign(&mut self) -> Option<bool> {
        let Some(Token::Symbol(sign)) = self.peek() else {
            return None;
        };
        let (is_minus, is_both) = match sign {
            '+' => (false, false),
            '-' => (true, false),
            '±' => (self.takes_lower, true),
            '∓' => (!self.takes_lower, true),
            _ => return None,
        };
        self.has_both |= is_both;
        self.at += 1;
        Some(is_minus)
    }

    /// Whether all signs up to the next term make a minus.
    fn signs(&mut self) -> bool {
        let mut is_negative = false;
        while let Some(is_minus) = self.sign() {
            is_negative ^= is_minus;
        }
        is_negative
    }

    fn sum(&mut self) -> Option<Expr> {
        let mut is_negative = self.signs();
        let mut terms = Vec::new();
        loop {
            terms.push(negated(self.product()?, is_negative));
            match self.sign() {
                Some(is_minus) => is_negative = is_minus ^ self.signs(),
                None if terms.len() == 1 => return terms.pop(),
                None => return Some(Expr::Sum(terms)),
            }
        }
    }

    fn product(&mut self) -> Option<Expr> {
        let mut factors = vec![self.power()?];
        let mut is_divided = false;
        loop {
            while self.takes_unit() {}
            if self.takes_symbol('*') {
                factors.push(self.signed_power()?);
                is_divided = false;
            } else if self.takes_symbol('/') {
                let under = self.signed_power()?;
                factors = vec![Expr::quotient(product_of(factors)?, under)];
                is_divided = true;
            } else if self.takes_symbol('%') {
                factors = percent_of(factors)?;
            } else if let Some(mixed) = self.mixed(factors.last()?) {
                factors.pop();
                factors.push(mixed?);
            } else if self.starts_factor() {
                // `1/2x` may be either.
                if is_divided {
                    return None;
                }
                factors.push(self.power()?);
            } else {
                return product_of(factors);
            }
        }
    }

    fn signed_power(&mut self) -> Option<Expr> {
        let is_negative = self.takes_symbol('-');
        Some(negated(self.power()?, is_negative))
    }

    fn power(&mut self) -> Option<Expr> {
        let base = self.atom()?;
        match self.takes_symbol('^') {
            true => Some(Expr::power(base, self.exponent()?)),
            false => Some(base),
        }
    }

    fn exponent(&mut self) -> Option<Expr> {
        let is_negative = self.takes_symbol('-');
        Some(negated(self.atom()?, is_negative))
    }

    /// A unit behind a number, which is not read: `5\text{ cm}^2`, `5 cm`.
    fn takes_unit(&mut self) -> bool {
        let is_unit = match self.peek() {
            Some(Token::Word(word)) => UNITS.contains(&word.to_lowercase().as_str()),
            Some(Token::Text(words)) => !words.split(' ').any(|word| MEANINGFUL.contains(&word)),
            _ => false,
        };
        if !is_unit {
            return false;
        }
        self.at += 1;
        let power = match self.tokens.get(self.at..).unwrap_or_default() {
            [Token::Symbol('^'), Token::Number(_), ..] => 2,
            [
                Token::Symbol('^'),
                Token::Symbol('{'),
                Token::Number(_),
                Token::Symbol('}'),
                ..,
            ] => 4,
            _ => 0,
        };
        self.at += power;
        true
    }

    /// `2\frac{1}{2}` or `2 1/2` behind its whole number. The outer None is no such thing, the inner one is what has no meaning.
    fn mixed(&mut self, last: &Expr) -> Option<Option<Expr>> {
        let Expr::Number(whole) = last else { return None };
        let whole = whole.parse().ok()?;
        let rest = self.tokens.get(self.at..)?;
        if let [Token::Number(over), Token::Symbol('/'), Token::Number(under), ..] = rest {
            let mixed = mixed_number(whole, over, under);
            self.at += 3;
            return Some(mixed);
        }
        if rest.first() != Some(&Token::command("frac")) {
            return None;
        }
        let factor = self.power();
        Some(factor.and_then(|factor| match &factor {
            Expr::Quotient(over, under) => match (over.as_ref(), under.as_ref()) {
                (Expr::Number(over), Expr::Number(under)) => mixed_number(whole, over, under),
                _ => product_of(vec![last.clone(), factor]),
            },
            _ => product_of(vec![last.clone(), factor]),
        }))
    }

    /// Whether what comes is multiplied with what was, though no sign says so.
    fn starts_factor(&self) -> bool {
        match self.peek() {
            Some(Token::Letter(_) | Token::Word(_) | Token::Symbol('(' | '{')) => true,
            Some(Token::Symbol('|')) => !self.in_bars,
            Some(Token::Command(name)) => !["end", "\\"].contains(&name.as_str()),
            _ => false,
        }
    }
}

fn is_one_of(token: &Token, symbols: &str) -> bool {
    matches!(token, Token::Symbol(symbol) if symbols.contains(*symbol))
}

fn negated(expr: Expr, is_negative: bool) -> Expr {
    if is_negative {
        Expr::Negative(Box::new(expr))
    } else {
        expr
    }
}

/// `5%`, `2x%`. A second one is of its own factor, so that they do not nest; `5%%` is nothing.
fn percent_of(mut factors: Vec<Expr>) -> Option<Vec<Expr>> {
    let is_percent = |factor: &Expr| matches!(factor, Expr::Percent(_));
    if !factors.iter().any(is_percent) {
        return Some(vec![Expr::Percent(Box::new(product_of(factors)?))]);
    }
    let last = factors.pop().filter(|last| !is_percent(last))?;
    factors.push(Expr::Percent(Box::new(last)));
    Some(factors)
}

fn product_of(mut factors: Vec<Expr>) -> Option<Expr> {
    if factors.len() == 1 {
        factors.pop()
    } else {
        Some(Expr::Product(factors))
    }
}

fn one_or_list(mut items: Vec<Expr>) -> Option<Expr> {
    if items.len() == 1 {
        items.pop()
    } else {
        Some(Expr::List(items))
    }
}

/// As one fraction.
fn mixed_number(whole: i64, over: &str, under: &str) -> Option<Expr> {
    let over: i64 = over.parse().ok()?;
    let bottom: i64 = under.parse().ok()?;
    let top = whole.checked_mul(bottom)?.checked_add(over)?;
    Some(Expr::quotient(Expr::number(&top.to_string()), Expr::number(under)))
}
