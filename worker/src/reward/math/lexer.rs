//! Reads tokens, and leaves out what only looks: spaces, sizes, dollars, degrees, fonts, the mark at the end of a sentence.

use super::token::{CLOSE_SET, FUNCTIONS, OPEN_SET, Token};

/// Commands for sizes, fonts and space.
#[rustfmt::skip]
const LOOKS: [&str; 38] = [
    "left", "right", "big", "Big", "bigl", "bigr", "Bigl", "Bigr", "bigg", "Bigg", "displaystyle", "textstyle", "limits", "quad",
    "qquad", "mathbf", "mathbb", "mathcal", "mathit", "mathsf", "boldsymbol", "bm", "rm", "bf", "degree", ",", ";", ":", "!", " ", "/",
    "(", ")", "[", "]", "$", "\n",
    // What is left of one at the end.
    "",
];

/// Commands around words.
const TEXTS: [&str; 9] = [
    "text",
    "textbf",
    "textit",
    "textrm",
    "mathrm",
    "mbox",
    "hbox",
    "operatorname",
    "textnormal",
];

/// Signs of two characters.
const PAIRS: [(&str, char); 2] = [("<=", '≤'), (">=", '≥')];

/// What may stand between groups of three digits beside a plain comma.
const SEPARATORS: [&str; 4] = [r",\!", "{,}", r"\,", r"\ "];

/// The tokens of an answer.
pub(super) fn tokens(text: &str) -> Vec<Token> {
    let text = text.replace(r"^{\circ}", "").replace(r"^\circ", "");
    let dressing = |char: char| char.is_whitespace() || "*$`\"".contains(char);
    let text = text.trim_start_matches(dressing);
    let text = text.trim_end_matches(|char: char| dressing(char) || ".,;:".contains(char));
    let mut lexer = Lexer {
        rest: text,
        brackets: 0,
        tokens: Vec::new(),
    };
    while let Some(first) = lexer.rest.chars().next() {
        lexer.token(first);
    }
    lexer.tokens
}

struct Lexer<'a> {
    rest: &'a str,
    /// Brackets that are open.
    brackets: usize,
    tokens: Vec<Token>,
}

impl<'a> Lexer<'a> {
    fn token(&mut self, first: char) {
        let is_number = first.is_ascii_digit() || first == '.' && digits(&self.rest[1..]) > 0;
        if is_number {
            self.number();
        } else if first.is_ascii_alphabetic() {
            self.word();
        } else if first == '\\' {
            self.command();
        } else if let Some(rest) = self.rest.strip_prefix("**") {
            self.rest = rest;
            self.tokens.push(Token::Symbol('^'));
        } else if let Some((pair, sign)) = PAIRS.into_iter().find(|(pair, _)| self.rest.starts_with(pair)) {
            self.take(pair.len());
            self.tokens.push(Token::Symbol(sign));
        } else {
            self.rest = &self.rest[first.len_utf8()..];
            self.character(first);
        }
    }

    /// The first `bytes` of what is left.
    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        taken
    }

    fn number(&mut self) {
        let mut number = self.take(digits(self.rest)).to_owned();
        if (1..=3).contains(&number.len()) && !number.starts_with('0') {
            while let Some(separator) = self.separator() {
                self.take(separator);
                number.push_str(self.take(3));
            }
        }
        if let Some(decimals) = self.rest.strip_prefix('.').map(digits).filter(|digits| *digits > 0) {
            number.push_str(self.take(1 + decimals));
        }
        let exponent = self.rest.strip_prefix(['e', 'E']).map(|rest| {
            let sign = usize::from(rest.starts_with(['+', '-']));
            (sign, digits(&rest[sign..]))
        });
        if let Some((sign, digits)) = exponent.filter(|(_, digits)| *digits > 0) {
            number.push('e');
            number.push_str(&self.take(1 + sign + digits)[1..]);
        }
        self.tokens.push(Token::Number(number));
    }

    /// Bytes of what separates thousands, where it does. In brackets a plain comma separates elements.
    fn separator(&self) -> Option<usize> {
        let plain = (self.brackets == 0).then_some(",");
        let separator = SEPARATORS
            .into_iter()
            .chain(plain)
            .find(|one| self.rest.starts_with(one))?;
        let spaces = self.rest[separator.len()..]
            .bytes()
            .take_while(|byte| *byte == b' ')
            .count();
        let bytes = separator.len() + if separator == "," { 0 } else { spaces };
        (digits(&self.rest[bytes..]) == 3).then_some(bytes)
    }

    fn word(&mut self) {
        let word = self.take(letters(self.rest));
        let small = word.to_ascii_lowercase();
        let token = match (small.as_str(), word.chars().next()) {
            (_, Some(letter)) if word.len() == 1 => Token::Letter(letter),
            ("degree" | "degrees", _) => return,
            ("sqrt" | "pi", _) => Token::Command(small),
            ("inf" | "infinity" | "infty", _) => Token::command("infty"),
            (name, _) if FUNCTIONS.contains(&name) => Token::Command(small),
            _ => meaning(&small).unwrap_or_else(|| Token::Word(word.to_owned())),
        };
        self.tokens.push(token);
    }

    fn command(&mut self) {
        self.take(1);
        let length = match letters(self.rest) {
            0 => self.rest.chars().next().map_or(0, char::len_utf8),
            letters => letters,
        };
        let name = self.take(length);
        if TEXTS.contains(&name) {
            return self.text(name);
        }
        if LOOKS.contains(&name) {
            // `\right.` is a bracket that is not to be seen.
            if let (true, Some(rest)) = (["left", "right"].contains(&name), self.rest.strip_prefix('.')) {
                self.rest = rest;
            }
            return;
        }
        let symbol = match name {
            "{" | "lbrace" => OPEN_SET,
            "}" | "rbrace" => CLOSE_SET,
            "lbrack" => '[',
            "rbrack" => ']',
            "cdot" | "times" | "ast" => '*',
            "div" => '/',
            "le" | "leq" | "leqslant" => '≤',
            "ge" | "geq" | "geqslant" => '≥',
            "ne" | "neq" => '≠',
            "lt" => '<',
            "gt" => '>',
            "in" => '∈',
            "cup" => '∪',
            "pm" => '±',
            "mp" => '∓',
            "lvert" | "rvert" | "vert" | "mid" => '|',
            "%" => '%',
            "dfrac" | "tfrac" | "cfrac" => return self.tokens.push(Token::command("frac")),
            "varnothing" => return self.tokens.push(Token::command("emptyset")),
            name => return self.tokens.push(Token::command(name)),
        };
        self.character(symbol);
    }

    /// `\text{ cm}`. One that holds more than words is read like what is around it.
    fn text(&mut self, name: &str) {
        let Some(inside) = self.rest.trim_start().strip_prefix('{') else {
            return;
        };
        let Some((words, rest)) = inside.split_once('}') else {
            return;
        };
        if words.contains(|char: char| char.is_ascii_digit() || "\\{$".contains(char)) {
            return;
        }
        self.rest = rest;
        // A tie is a space.
        let words = words.split(|char: char| char.is_whitespace() || char == '~');
        let text = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
        let small = text.to_lowercase();
        let bare = small.trim_matches(|char: char| !char.is_alphanumeric());
        let token = match text.chars().next() {
            None => return,
            Some(letter) if name == "mathrm" && text.len() == 1 => Token::Letter(letter),
            _ if ["degree", "degrees"].contains(&bare) => return,
            _ if FUNCTIONS.contains(&bare) => Token::command(bare),
            _ => meaning(bare).unwrap_or(Token::Text(small)),
        };
        self.tokens.push(token);
    }

    fn character(&mut self, char: char) {
        let symbol = match char {
            '(' | '[' | OPEN_SET => {
                self.brackets += 1;
                char
            }
            ')' | ']' | CLOSE_SET => {
                self.brackets = self.brackets.saturating_sub(1);
                char
            }
            '$' | '£' | '€' | '~' | '°' => return,
            space if space.is_whitespace() => return,
            '−' | '–' => '-',
            '×' | '·' | '⋅' | '∙' => '*',
            '÷' => '/',
            'π' => return self.tokens.push(Token::command("pi")),
            '√' => return self.tokens.push(Token::command("sqrt")),
            '∞' => return self.tokens.push(Token::command("infty")),
            '∅' => return self.tokens.push(Token::command("emptyset")),
            '²' | '³' => {
                let power = if char == '²' { "2" } else { "3" };
                return self
                    .tokens
                    .extend([Token::Symbol('^'), Token::Number(power.to_owned())]);
            }
            other => other,
        };
        self.tokens.push(Token::Symbol(symbol));
    }
}

/// The sign that a word stands for.
fn meaning(word: &str) -> Option<Token> {
    match word {
        "and" | "or" => Some(Token::Symbol(',')),
        "percent" | "percentage" | "pct" => Some(Token::Symbol('%')),
        _ => None,
    }
}

/// Bytes of the digits that `text` begins with.
fn digits(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

/// Bytes of the plain letters that `text` begins with.
fn letters(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_alphabetic).count()
}
