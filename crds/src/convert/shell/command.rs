//! A command whose words are read: it sets variables, or is handed on. Whether it is run at all may hang on those before it.

use super::condition::{self, Truth, and, or};
use super::positional::{self, ARGUMENTS};
use super::{Lexer, Unreadable, Word, blocks};

/// Words that may stand in front of assignments.
pub(super) const SETTING: [&str; 5] = ["export", "declare", "local", "readonly", "typeset"];

/// What ends a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum End {
    /// A line's end, or `;`.
    #[default]
    Line,
    /// `&&`.
    And,
    /// `||`.
    Or,
    /// `;;`.
    Branch,
    /// `;&`: the next branch is done, too.
    Through,
    /// `;;&`: the next patterns are looked at, too.
    Onward,
    /// `)`.
    Close,
    /// `|`, `&` or `(`.
    Other,
}

/// The commands of a list of `&&` and `||` that stand before the present one.
#[derive(Debug, Default)]
pub(super) struct List {
    /// Whether they succeed, all together.
    pub truth: Truth,
    /// The variable that is wanted for knowing that.
    pub why: Option<String>,
    /// What stands between them and the present one.
    by: End,
}

impl List {
    /// Whether the present command is run.
    pub fn runs(&self) -> Truth {
        match self.by {
            End::And => self.truth,
            End::Or => self.truth.map(|truth| !truth),
            _ => Some(true),
        }
    }

    /// The present command is behind us.
    pub fn add(&mut self, truth: Truth, why: Option<String>) {
        let before = std::mem::take(self);
        (self.truth, self.why) = match before.by {
            End::And => (and(before.truth, truth), before.why.or(why)),
            End::Or => (or(before.truth, truth), before.why.or(why)),
            _ => (truth, why),
        };
    }

    fn is_open(&self) -> bool {
        matches!(self.by, End::And | End::Or)
    }
}

/// What an assignment does to a variable.
pub(super) struct Assignment {
    pub name: String,
    pub appends: bool,
    pub value: Word,
}

impl Lexer<'_> {
    pub(super) fn end_command(&mut self, end: End) -> Result<(), Unreadable> {
        self.end_word();
        self.into_file = false;
        let words = std::mem::take(&mut self.command);
        let words = self.keywords(words);
        if !words.is_empty() {
            self.carry_out(words, end == End::Other)?;
        }
        // A line may end behind `&&`.
        if end != End::Line || !self.list.is_open() {
            self.list.by = end;
        }
        self.written = None;
        self.hands_own_on = false;
        match end {
            End::Branch | End::Through | End::Onward => self.end_case(end),
            End::Close => self.begin_case(),
            _ => {}
        }
        Ok(())
    }

    /// `apart`: in a pipe, or behind what goes on, so that what it sets is set for itself alone.
    fn carry_out(&mut self, words: Vec<Word>, apart: bool) -> Result<(), Unreadable> {
        if let Some(assignments) = assignments(&words) {
            self.make_words_own(&words);
            self.note_integers(&words);
            for assignment in assignments {
                self.set_text(assignment);
            }
            self.list.add(Some(true), None);
            return Ok(());
        }
        if let Some(succeeds) = self.call(&words, apart)? {
            self.list.add(succeeds, condition::wanted(&words));
            return Ok(());
        }
        let is_set = |name: &str| self.variables.contains_key(name);
        let truth = match words[0].text.as_str() {
            "shift" => self.can_shift(words.get(1)),
            _ => condition::of_command(&words, &is_set),
        };
        self.change(&words);
        if words[0].text == "return" && self.list.runs() != Some(false) {
            self.return_here(words.get(1));
        }
        if ["exit", "return"].contains(&words[0].text.as_str()) && self.list.runs() == Some(true) {
            self.leave();
        }
        let is_kept = (self.may_run() || self.keeps_all) && !self.defines();
        self.list.add(truth, condition::wanted(&words));
        if is_kept && !words[0].is_sum() {
            self.commands.push(words);
        }
        Ok(())
    }

    /// Whether the present command may be run.
    pub(super) fn may_run(&self) -> bool {
        self.list.runs() != Some(false) && self.is_taken() != Some(false)
    }

    fn set_text(&mut self, assignment: Assignment) {
        let Assignment { name, appends, value } = assignment;
        if appends && self.repeats() {
            return self.set_unknown(&name);
        }
        if self.integers.contains(&name) {
            return self.set_sum(&name, appends, &value);
        }
        let mut words = match appends {
            true => self.value(&name).unwrap_or_default(),
            false => Vec::new(),
        };
        match words.len() {
            // A text whose words are known one by one.
            0 => match self.written.take().filter(|_| value.unknown.is_some()) {
                Some(written) => words = written,
                None => words.push(value),
            },
            1 => words[0].append(value),
            _ => words.extend(blocks::words(&value)),
        }
        self.set(&name, words);
    }

    pub(super) fn set_array(&mut self, name: &str, appends: bool, values: Vec<Word>) {
        let mut words = match appends {
            true => self.value(name).unwrap_or_default(),
            false => Vec::new(),
        };
        words.extend(values);
        match appends && self.repeats() {
            true => self.set_unknown(name),
            false => self.set(name, words),
        }
        self.list.add(Some(true), None);
    }

    /// Sets a variable, if the present command is run.
    pub(super) fn set(&mut self, name: &str, words: Vec<Word>) {
        let words = match self.list.runs() {
            Some(true) => words,
            Some(false) => return,
            None => {
                let before = self.value(name).unwrap_or_default();
                if name == ARGUMENTS {
                    self.variables.insert(name.into(), vec![positional::unknown()]);
                    return;
                }
                blocks::undecided(name, &[before, words], self.list.why.as_deref())
            }
        };
        self.variables.insert(name.into(), words);
    }

    /// What a variable is set to further in front in the command that is being read, where that only sets variables.
    pub(super) fn set_before(&self, variable: &str) -> Option<Word> {
        let words = self.command.iter().skip_while(|word| blocks::is_in_front(word));
        let set: Vec<Assignment> = words.map(assignment).collect::<Option<_>>()?;
        let last = set.into_iter().rev().find(|set| set.name == variable)?;
        (!last.appends).then_some(last.value)
    }

    /// Whether the word that is being read is the value of an assignment, which does not fall apart.
    pub(super) fn assigns(&self) -> bool {
        let in_front = |word: &Word| {
            blocks::is_in_front(word) || SETTING.contains(&word.text.as_str()) || assignment(word).is_some()
        };
        self.word.as_ref().is_some_and(|word| assignment(word).is_some()) && self.command.iter().all(in_front)
    }
}

/// The assignments of a command that is nothing else.
fn assignments(words: &[Word]) -> Option<Vec<Assignment>> {
    let setting = words.first().is_some_and(|word| SETTING.contains(&word.text.as_str()));
    let words = words.iter().skip(usize::from(setting));
    words
        .skip_while(|word| setting && word.text.starts_with('-'))
        // `export NAME` gives it no value.
        .filter(|word| !setting || word.text.contains('='))
        .map(assignment)
        .collect()
}

pub(super) fn assignment(word: &Word) -> Option<Assignment> {
    let (name, value) = word.split_once('=')?;
    let (name, appends) = name.strip_suffix('+').map_or((name, false), |name| (name, true));
    is_name(name).then(|| Assignment {
        name: name.into(),
        appends,
        value,
    })
}

/// Whether a variable can be called so.
pub(super) fn is_name(text: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.starts_with(|c: char| letter(c) && !c.is_ascii_digit()) && text.chars().all(letter)
}
