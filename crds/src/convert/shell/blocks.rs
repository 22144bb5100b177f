//! `if`, `case`, loops and groups. Every branch begins with the variables as they were before the block. After the block a variable
//! has the value of the branch taken; if that cannot be told and the branches differ, it is unknown.

mod call;
mod case;

use std::collections::BTreeSet;

use super::command::End;
use super::condition::{Truth, and, not, or};
use super::function::Head;
use super::positional::{self, ARGUMENTS};
use super::{Lexer, List, Unreadable, Variables, Word};

/// A block that is open.
pub(super) struct Block<'a> {
    kind: Kind,
    /// What its next branch begins with.
    before: Variables,
    /// What the branches leave that may have been taken.
    ends: Vec<Variables>,
    /// Whether one of the branches so far was taken.
    taken: Truth,
    /// Whether the present one is; none is taken between branches.
    present: Truth,
    /// Inside a branch, and not in a condition or between branches.
    inside: bool,
    /// The script ends in the present one.
    leaves: bool,
    /// The list of commands that a group stands in.
    list: List,
    /// The variable that is wanted for knowing which is taken.
    why: Option<String>,
    /// What a `case` looks at, and the patterns of the branch that comes.
    case: Option<(Word, Vec<Word>)>,
    in_patterns: bool,
    /// Behind `;&`: whether the branch before was taken, and what it left.
    through: Option<(Truth, Variables)>,
    /// The function whose body it is: it is skipped here, and read where the function is called.
    pub head: Option<Head<'a>>,
}

impl Block<'_> {
    fn repeats(&self) -> bool {
        matches!(self.kind, Kind::While | Kind::Until | Kind::For)
    }

    /// Whether the script ends in it, whatever is taken.
    pub fn only_leaves(&self) -> bool {
        self.leaves && self.ends.is_empty()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    If,
    Case,
    /// Its body may be repeated.
    While,
    Until,
    /// Which of its items its variable has is not told.
    For,
    Group,
    /// What it sets is set in it alone.
    Subshell,
    /// The body of a function that is called.
    Call,
}

impl Kind {
    fn last_word(self) -> &'static str {
        match self {
            Self::If => "fi",
            Self::Case => "esac",
            Self::While | Self::Until | Self::For => "done",
            Self::Group => "}",
            // No word closes these.
            Self::Subshell | Self::Call => "",
        }
    }
}

impl<'a> Lexer<'a> {
    /// A command's words without the keywords in front of them, which open and close blocks.
    pub(super) fn keywords(&mut self, mut words: Vec<Word>) -> Vec<Word> {
        let mut at = 0;
        while let Some(first) = words.get(at) {
            let first = first.text.clone();
            if let Some(patterns) = self.patterns().filter(|_| first != "esac") {
                patterns.extend(words.drain(at..));
                break;
            }
            at += 1;
            match first.as_str() {
                "if" => self.open(Kind::If),
                "while" => self.open(Kind::While),
                "until" => self.open(Kind::Until),
                "for" | "select" => {
                    let has_items = self.change_by_loop(&words[at..]);
                    self.open(Kind::For);
                    self.list.truth = has_items;
                    return Vec::new();
                }
                "case" => {
                    self.open(Kind::Case);
                    self.look_at(&words[at..]);
                    return Vec::new();
                }
                "{" => self.begin_group(Kind::Group),
                "then" | "do" => self.begin_behind_condition(),
                "elif" | "else" if self.innermost() == Some(Kind::If) => {
                    self.end_branch();
                    if first == "else" {
                        self.begin(Some(true), None);
                    }
                }
                "fi" | "esac" | "done" | "}" => self.close(&first),
                _ => {
                    self.head = None;
                    return words.split_off(at - 1);
                }
            }
        }
        Vec::new()
    }

    /// Commands that belong together, or the body of a function.
    fn begin_group(&mut self, kind: Kind) {
        let head = self.head.take();
        let (truth, why) = match head {
            Some(_) => (Some(false), None),
            None => (self.list.runs(), self.list.why.clone()),
        };
        let list = std::mem::take(&mut self.list);
        self.open(kind);
        if let Some(block) = self.blocks.last_mut() {
            (block.head, block.list) = (head, list);
        }
        self.begin(truth, why);
    }

    /// Whether a `(` stands where a command may begin.
    pub(super) fn begins_subshell(&self) -> bool {
        let in_patterns = self.blocks.last().is_some_and(|block| block.in_patterns);
        !in_patterns && self.command.iter().chain(&self.word).all(is_in_front)
    }

    pub(super) fn begin_subshell(&mut self) {
        self.end_word();
        let before = std::mem::take(&mut self.command);
        self.keywords(before);
        self.begin_group(Kind::Subshell);
    }

    /// `()`, behind the name of a function.
    pub(super) fn begin_parentheses(&mut self) -> Result<(), Unreadable> {
        match (self.command.pop(), &mut self.head) {
            (Some(name), _) if self.command.iter().all(is_in_front) => self.begin_function(name.text),
            (Some(word), _) => {
                self.command.push(word);
                self.end_command(End::Other)?;
            }
            (None, Some(head)) => head.body = self.rest,
            (None, None) => {}
        }
        Ok(())
    }

    fn innermost(&self) -> Option<Kind> {
        self.blocks.last().map(|block| block.kind)
    }

    fn open(&mut self, kind: Kind) {
        self.list = List::default();
        self.blocks.push(Block {
            kind,
            before: self.variables.clone(),
            ends: Vec::new(),
            taken: Some(false),
            present: Some(false),
            inside: false,
            leaves: false,
            list: List::default(),
            why: None,
            case: None,
            in_patterns: false,
            through: None,
            head: None,
        });
    }

    /// `then`, `do`.
    fn begin_behind_condition(&mut self) {
        let truth = match self.innermost() {
            Some(Kind::If | Kind::For) => self.list.truth,
            // What its variables are after so many rounds is not worked out.
            Some(Kind::While) => and(self.list.truth, None),
            Some(Kind::Until) => and(not(self.list.truth), None),
            _ => return,
        };
        let why = self.list.why.take();
        self.begin(truth, why);
    }

    fn begin(&mut self, truth: Truth, why: Option<String>) {
        self.list = List::default();
        let Some(block) = self.blocks.last_mut() else { return };
        block.before.clone_from(&self.variables);
        block.present = and(not(block.taken), truth);
        block.inside = true;
        block.taken = or(block.taken, truth);
        if truth.is_none() {
            block.why = block.why.take().or(why);
        }
    }

    fn end_branch(&mut self) {
        self.list = List::default();
        let Some(block) = self.blocks.last_mut() else { return };
        let variables = std::mem::replace(&mut self.variables, block.before.clone());
        if block.present != Some(false) && !block.leaves {
            block.ends.push(variables);
        }
        (block.present, block.inside, block.leaves) = (Some(false), false, false);
    }

    /// Whether what is read may be done several times: what its variables are after so many rounds is not worked out.
    pub(super) fn repeats(&self) -> bool {
        self.blocks.iter().any(Block::repeats)
    }

    /// Whether all the branches that are open are taken.
    pub(super) fn is_taken(&self) -> Truth {
        let mut taken = Some(true);
        for block in self.blocks.iter().filter(|block| block.inside) {
            taken = and(taken, block.present);
        }
        taken
    }

    fn close(&mut self, last_word: &str) {
        if self.innermost().is_some_and(|kind| kind.last_word() == last_word) {
            self.close_innermost();
        }
    }

    pub(super) fn close_innermost(&mut self) {
        let last = std::mem::take(&mut self.list);
        self.end_branch();
        let Some(mut block) = self.blocks.pop() else { return };
        if let Some(head) = block.head.take() {
            self.list = block.list;
            self.define(head);
            return self.list = List::default();
        }
        // A group succeeds as its last commands do.
        if [Kind::Group, Kind::Subshell].contains(&block.kind) {
            self.list = block.list;
            self.list.add(last.truth, last.why);
        }
        if block.kind == Kind::Subshell {
            return;
        }
        if block.taken != Some(true) {
            block.ends.push(self.variables.clone());
        } else if block.ends.is_empty() && block.kind != Kind::Call {
            self.leave();
        }
        if !block.ends.is_empty() {
            self.variables = self.joined(&block.ends, block.why.as_deref());
        }
    }

    /// What variables are, one of `ends` being what they are.
    fn joined(&self, ends: &[Variables], why: Option<&str>) -> Variables {
        let names: BTreeSet<&String> = ends.iter().flat_map(Variables::keys).collect();
        let value = |name: &str, end: &Variables| {
            let outside = || (self.environment)(name).map(|text| vec![Word::new(text, None)]);
            end.get(name).cloned().or_else(outside).unwrap_or_default()
        };
        let join = |name: &String| {
            let values: Vec<Vec<Word>> = ends.iter().map(|end| value(name, end)).collect();
            match name.as_str() {
                ARGUMENTS if ends.iter().any(|end| end.get(name) != ends[0].get(name)) => {
                    (name.clone(), vec![positional::unknown()])
                }
                _ => (name.clone(), undecided(name, &values, why)),
            }
        };
        names.into_iter().map(join).collect()
    }
}

/// What a variable is that has one of `values`: the words that all begin with, then what is not known. Flags are kept, each as not
/// known: whether that matters is seen where it is read.
pub(super) fn undecided(name: &str, values: &[Vec<Word>], why: Option<&str>) -> Vec<Word> {
    let Some((first, others)) = values.split_first() else {
        return Vec::new();
    };
    if others.iter().all(|other| other == first) {
        return first.clone();
    }
    // A text of flags is as many words where it is used, but one setting whose value has blanks.
    let texts = values.iter().all(|value| value.len() < 2);
    let is_setting = |text: &str| is_flag(text) && !text.starts_with("--");
    let flags = |word: &Word| {
        let mut pieces = word.text.split_whitespace();
        let first = pieces.next().unwrap_or_default();
        first.is_empty() || (is_flag(first) && (!is_setting(first) || pieces.all(is_flag)))
    };
    let values: Vec<Vec<Word>> = match texts && values.iter().flatten().all(flags) {
        true => values
            .iter()
            .map(|value| value.iter().flat_map(words).collect())
            .collect(),
        false => values.to_vec(),
    };
    let same = (0..values[0].len())
        .take_while(|at| values.iter().all(|value| value.get(*at) == values[0].get(*at)))
        .count();
    let mut joined = values[0][..same].to_vec();
    let rests: Vec<&[Word]> = values.iter().map(|value| &value[same..]).collect();
    let are_flags = rests
        .iter()
        .all(|rest| rest.first().is_none_or(|word| is_flag(&word.text)));
    let not_known = |word: &Word| match word.unknown {
        Some(_) => word.clone(),
        None => Word::new(
            word.text.clone(),
            Some(why.map_or_else(|| format!("${name}"), str::to_owned)),
        ),
    };
    if are_flags {
        for (index, rest) in rests.iter().enumerate() {
            if !rests[..index].contains(rest) {
                joined.extend(rest.iter().map(not_known));
            }
        }
    } else {
        joined.push(not_known(&Word::default()));
    }
    joined
}

/// The words that a text falls apart into where it is not quoted.
pub(super) fn words(whole: &Word) -> Vec<Word> {
    let word = |text: &str| Word::new(text, whole.unknown.clone());
    // One word of its own is as it was written.
    if !whole.text.is_empty() && !whole.text.contains(char::is_whitespace) {
        return vec![whole.clone()];
    }
    let words: Vec<Word> = whole.text.split_whitespace().map(word).collect();
    match words.is_empty() && whole.unknown.is_some() {
        true => vec![whole.clone()],
        false => words,
    }
}

/// Whether a word is a flag with its dashes, or an override of a setting within another.
fn is_flag(text: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphanumeric() || "_.+~@".contains(c);
    let setting = |(name, _): (&str, &str)| name.contains('.') && name.chars().all(letter);
    text.starts_with("--") || text.split_once('=').is_some_and(setting)
}

/// Whether a word may stand in front of a command.
pub(super) fn is_in_front(word: &Word) -> bool {
    ["then", "do", "else", "if", "elif", "while", "until", "{", "!"].contains(&word.text.as_str())
}

#[cfg(test)]
mod tests;
