//! Commands that change variables in ways that are not worked out: `((N += 1))`, `let`, `read`. What they leave is not known.

use std::sync::LazyLock;

use regex::Regex;

use super::command::is_name;
use super::condition::{Truth, variable};
use super::{Lexer, Word, blocks};

impl Lexer<'_> {
    /// Reads `((...))` where a command begins, as one word; false where there is none. Two parentheses that are closed apart are groups.
    pub(super) fn sum(&mut self) -> bool {
        let begins = |word: &Word| blocks::is_in_front(word) || word.text == "for";
        // `for((` needs no blank.
        if self.rest.peek() != Some('(') || !self.command.iter().chain(&self.word).all(begins) {
            return false;
        }
        let before = self.rest;
        self.rest.next();
        match self.enclosed('(', ')', "((...))") {
            Ok(sum) if self.rest.next_if_eq(&')').is_some() => {
                self.end_word();
                self.command.push(Word::new(format!("(({sum}))"), None));
                true
            }
            _ => {
                self.rest = before;
                false
            }
        }
    }

    /// Variables that a command changes are as nobody knows, and those that it takes away have no words.
    pub(super) fn change(&mut self, words: &[Word]) {
        let Some(at) = words.iter().position(|word| !is_setting(&word.text)) else {
            return;
        };
        let texts: Vec<&str> = words[at..].iter().map(|word| word.text.as_str()).collect();
        match texts.as_slice() {
            ["let", sums @ ..] => sums.iter().for_each(|sum| self.change_by(sum)),
            ["read" | "mapfile" | "readarray", names @ ..] => names.iter().for_each(|name| self.set_unknown(name)),
            ["printf", "-v", name, ..] => self.set_unknown(name),
            ["eval", texts @ ..] => {
                for part in texts.join(" ").split([' ', ';', '\n']) {
                    if let Some((name, _)) = part.split_once('=') {
                        self.set_unknown(name.trim_end_matches('+'));
                    }
                }
            }
            ["set", "--", ..] => self.set_arguments(&words[at + 2..]),
            ["shift", ..] => self.shift(words.get(at + 1)),
            ["unset", names @ ..] => {
                for name in names.iter().filter(|name| is_name(name)) {
                    self.set(name, Vec::new());
                }
            }
            [sum, ..] if words[at].is_sum() => self.change_by(sum),
            // One element of an array.
            [element, ..] => {
                let place = element.split_once('[');
                if let Some((name, _)) = place.filter(|(_, place)| place.contains("]=") || place.contains("]+=")) {
                    self.set_unknown(name);
                }
            }
            [] => {}
        }
    }

    /// `NAME in ITEM`, or `((...))`, behind `for`: which item the variable has is not known. Whether there are any: without a list they are
    /// the arguments; a variable that is set nowhere may have none.
    pub(super) fn change_by_loop(&mut self, words: &[Word]) -> Truth {
        let Some(first) = words.first() else { return Some(false) };
        if first.is_sum() {
            self.change_by(&first.text);
            return Some(true);
        }
        self.set_unknown(&first.text);
        if words.len() < 2 {
            return self.has_arguments();
        }
        let items = words.get(2..).unwrap_or_default();
        let may_be_none =
            |word: &Word| word.text.is_empty() && word.unknown.as_deref().is_some_and(|what| variable(what).is_some());
        match !items.is_empty() && items.iter().all(may_be_none) {
            true => None,
            false => Some(!items.is_empty()),
        }
    }

    fn change_by(&mut self, sum: &str) {
        in_sum(sum).for_each(|name| self.set_unknown(name));
    }

    /// Of a word that is no name of a variable nothing is set.
    pub(super) fn set_unknown(&mut self, name: &str) {
        if is_name(name) {
            self.set(name, vec![Word::new("", Some(format!("${name}")))]);
        }
    }
}

/// `IFS=,` in front of a command is for it alone.
fn is_setting(text: &str) -> bool {
    text.split_once('=').is_some_and(|(name, _)| is_name(name))
}

/// The variables that a sum sets: those before a `=`, alone or behind an operator, and those beside `++` or `--`.
pub(super) fn in_sum(sum: &str) -> impl Iterator<Item = &str> {
    static NAME: LazyLock<Option<Regex>> = LazyLock::new(|| {
        Regex::new(r"(\+\+|--)?\s*([A-Za-z_][A-Za-z0-9_]*)\s*(\+\+|--|(?:[-+*/%&|^]|<<|>>)?=+)?").ok()
    });
    let found = NAME.iter().flat_map(move |names| names.captures_iter(sum));
    let set = found.filter(|found| {
        let behind = found.get(3).map(|sign| sign.as_str());
        found.get(1).is_some() || behind.is_some_and(|sign| !sign.ends_with("=="))
    });
    set.filter_map(|found| found.get(2)).map(|name| name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_sets_what_stands_before_a_single_equals_sign_or_beside_a_double_sign() {
        let set = |sum: &str| in_sum(sum).collect::<Vec<_>>().join(" ");
        for (sum, names) in [
            ("N+=2", "N"),
            ("((a = b * 2, c++))", "a c"),
            ("i=0; i<3; i++", "i i"),
            ("--n", "n"),
            ("a=b=3", "a b"),
            ("x <<= 1", "x"),
            ("a == b", ""),
            ("a <= b && c >= d && e != f", ""),
            ("n + 1", ""),
        ] {
            assert_eq!(set(sum), names, "{sum}");
        }
    }
}
