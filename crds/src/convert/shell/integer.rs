//! Variables that hold whole numbers, `declare -i N`: what they are set to is a sum, and what is added to them is counted.

use super::command::SETTING;
use super::{Lexer, Word};
use crate::convert::arithmetic;

impl Lexer<'_> {
    /// The names behind `declare -i`.
    pub(super) fn note_integers(&mut self, words: &[Word]) {
        let Some((first, rest)) = words.split_first().filter(|_| self.may_run()) else {
            return;
        };
        let mut texts = rest.iter().map(|word| word.text.as_str());
        let is_whole = |text: &str| text.starts_with('-') && text.contains('i');
        if SETTING.contains(&first.text.as_str()) && texts.clone().any(is_whole) {
            let name = |text: &str| {
                text.split('=')
                    .next()
                    .unwrap_or_default()
                    .trim_end_matches('+')
                    .to_owned()
            };
            self.integers
                .extend(texts.by_ref().filter(|text| !text.starts_with('-')).map(name));
        }
    }

    /// Sets such a variable. A value of which is not known what it is stays so.
    pub(super) fn set_sum(&mut self, name: &str, appends: bool, value: &Word) {
        if value.unknown.is_some() {
            return self.set(name, vec![value.clone()]);
        }
        let before = if appends { self.number(name).unwrap_or(0) } else { 0 };
        let is_known = !appends || self.value(name).is_none() || self.number(name).is_some();
        let sum = arithmetic::evaluate(&value.text, &|name| self.number(name));
        match sum.filter(|_| is_known).and_then(|sum| sum.checked_add(before)) {
            Some(sum) => self.set(name, vec![Word::new(sum.to_string(), None)]),
            None => self.set_unknown(name),
        }
    }

    /// A variable as a number.
    pub(super) fn number(&self, name: &str) -> Option<i64> {
        let words = self.value(name)?;
        let known = words.first().filter(|word| word.unknown.is_none());
        arithmetic::number(known?.text.trim())
    }
}

#[cfg(test)]
mod tests {
    use crate::convert::shell::commands;

    fn run(script: &str) -> String {
        let word = commands(script, &|_| None).unwrap().remove(0).remove(1);
        word.unknown.unwrap_or(word.text)
    }

    #[test]
    fn what_a_whole_number_is_set_to_is_a_sum() {
        assert_eq!(run("declare -i N=2+3\nrun $N"), "5");
        assert_eq!(run("declare -i N\nM=4\nN=M*2\nN+=1\nrun $N"), "9");
        assert_eq!(run("declare -i N=3\nN=a.b\nrun $N"), "$N");
        assert_eq!(run("N=3\nN+=1\nrun $N"), "31");
    }
}
