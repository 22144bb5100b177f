//! The arguments of a script or function: `$1`, `$@`, `$#`. Of the script's own there are none, as nobody gives any here; which they would
//! be is asked where one is wanted by its number.

use super::condition::{Truth, variable as variable_of};
use super::{Lexer, Unreadable, Word};

/// The variable that holds them.
pub(super) const ARGUMENTS: &str = "@";

/// Stands last among arguments behind which the script's own come.
const OWN: &str = "$@...";

/// What of them is as nobody knows: how many words, and which.
pub(super) fn unknown() -> Word {
    Word::new("", Some(format!("${ARGUMENTS}")))
}

/// The number of an argument that is called so.
pub(super) fn number(variable: &str) -> Option<usize> {
    variable.parse().ok().filter(|number| *number > 0)
}

/// Whether a word may be none, or several.
fn is_uncertain(word: &Word) -> bool {
    let what = word.unknown.as_deref().filter(|_| word.text.is_empty());
    what.is_some_and(|what| variable_of(what).is_none())
}

impl Lexer<'_> {
    /// The arguments, and whether the script's own come behind them.
    pub(super) fn arguments(&self) -> (&[Word], bool) {
        let Some(words) = self.variables.get(ARGUMENTS) else {
            return (&[], true);
        };
        match words.split_last() {
            Some((last, words)) if last.unknown.as_deref() == Some(OWN) => (words, true),
            _ => (words, false),
        }
    }

    /// `$1`, and so on. None for one of the script's own.
    pub(super) fn argument(&self, number: usize) -> Option<Vec<Word>> {
        let (words, has_own) = self.arguments();
        if words.iter().take(number).any(is_uncertain) {
            // One that stands where it is wanted is what it was given as.
            let before = words.iter().take(number - 1).any(is_uncertain);
            let word = words.get(number - 1).filter(|_| !before);
            return Some(vec![word.cloned().unwrap_or_else(unknown)]);
        }
        match words.get(number - 1) {
            Some(word) => Some(vec![word.clone()]),
            None => (!has_own).then(Vec::new),
        }
    }

    /// `$#`.
    pub(super) fn put_number(&mut self) {
        let (words, _) = self.arguments();
        match words.iter().any(is_uncertain) {
            true => self.not_known("$#"),
            false => words.len().to_string().chars().for_each(|c| self.push(c)),
        }
    }

    /// Whether there are any arguments.
    pub(super) fn has_arguments(&self) -> Truth {
        let (words, _) = self.arguments();
        match words.iter().all(is_uncertain) {
            true if !words.is_empty() => None,
            _ => Some(!words.is_empty()),
        }
    }

    /// `$@` and `$*`, or a part of them: `sign` is the one of both, `part` what stands behind it (`:2`, `:1:3`).
    pub(super) fn put_arguments(&mut self, sign: char, part: &str, quoted: bool) -> Result<(), Unreadable> {
        let (words, has_own) = self.arguments();
        let words = match part {
            "" => words.to_vec(),
            _ if words.is_empty() && has_own => Vec::new(),
            _ => part_of(words, part).unwrap_or_else(|| vec![unknown()]),
        };
        self.hands_own_on |= has_own;
        if words.is_empty() {
            // `"$*"` is one word, if an empty one.
            self.no_words |= sign == '@' || has_own;
            return Ok(());
        }
        let words = match sign {
            '*' if quoted && self.joins_otherwise() => vec![unknown()],
            '*' if quoted => vec![super::expansion::one(words)],
            _ => words,
        };
        self.put(ARGUMENTS, Some(words), quoted)
    }

    /// The words of a command as arguments of what it starts. The script's own come last, where the command has `"$@"` of them.
    pub(super) fn as_arguments(&self, words: &[Word]) -> Vec<Word> {
        let own = self.hands_own_on.then(|| Word::new("", Some(OWN.into())));
        words.iter().cloned().chain(own).collect()
    }

    /// `set -- a b`.
    pub(super) fn set_arguments(&mut self, words: &[Word]) {
        let words = self.as_arguments(words);
        self.set(ARGUMENTS, words);
    }

    /// Whether there are as many arguments as a `shift` takes away. The script's own are as many as it wants.
    pub(super) fn can_shift(&self, by: Option<&Word>) -> Truth {
        let by = shifted(by)?;
        let (words, has_own) = self.arguments();
        let certain = has_own || !words.iter().any(is_uncertain);
        certain.then_some(has_own || by <= words.len())
    }

    /// `shift`, `shift 2`. How often a loop does it is not known.
    pub(super) fn shift(&mut self, by: Option<&Word>) {
        let Some(words) = self.variables.get(ARGUMENTS) else {
            return;
        };
        let by = shifted(by);
        let (given, has_own) = self.arguments();
        let certain = |by: &usize| !given.iter().take(*by).any(is_uncertain);
        let left = match by.filter(certain).filter(|_| !self.repeats_here()) {
            Some(by) if by <= given.len() => words[by..].to_vec(),
            // Then it fails.
            Some(_) if !has_own => words.clone(),
            _ => vec![unknown()],
        };
        self.set(ARGUMENTS, left);
    }
}

/// How many arguments a `shift` takes away, where that is known.
fn shifted(by: Option<&Word>) -> Option<usize> {
    by.map_or(Some(1), |by| by.text.parse().ok().filter(|_| by.unknown.is_none()))
}

/// `:2`, `:1:3` and `: -1` of words, which are counted from 1. None where that cannot be told.
fn part_of(words: &[Word], part: &str) -> Option<Vec<Word>> {
    if words.iter().any(is_uncertain) && part != ":1" {
        return None;
    }
    let part = part.strip_prefix(':')?;
    let (from, most) = part
        .split_once(':')
        .map_or((part, None), |(from, most)| (from, Some(most)));
    let from: i64 = from.trim().parse().ok()?;
    let most: usize = most.map_or(Some(usize::MAX), |most| most.trim().parse().ok())?;
    let from = match from {
        1.. => usize::try_from(from - 1).ok()?,
        // With 0 it begins with the script's name.
        0 => return None,
        _ => words.len().checked_sub(usize::try_from(from.checked_neg()?).ok()?)?,
    };
    Some(words.iter().skip(from).take(most).cloned().collect())
}
