//! `if`, `case`, loops and groups. Every branch begins with the variables as they were before the block. After the block a variable
//! has the value of the branch taken; if that cannot be told and the branches differ, it is unknown.

use std::collections::BTreeSet;

use super::condition::{self, Truth, and, not, or};
use super::{Lexer, List, Variables, Word};

/// A block that is open.
pub(super) struct Block {
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
    /// The variable that is wanted for knowing which is taken.
    why: Option<String>,
    /// What a `case` looks at, and the patterns of the branch that comes.
    case: Option<(Word, Vec<Word>)>,
    in_patterns: bool,
    /// The function whose body it is, and how many commands stand before it.
    function: Option<(String, usize)>,
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
}

impl Kind {
    fn last_word(self) -> &'static str {
        match self {
            Self::If => "fi",
            Self::Case => "esac",
            Self::While | Self::Until | Self::For => "done",
            Self::Group => "}",
        }
    }
}

impl Lexer<'_> {
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
                "function" => {
                    self.defined = words.get(at).map(|word| word.text.clone());
                    at += 1;
                }
                "{" => self.begin_group(),
                "then" | "do" => self.begin_behind_condition(),
                "elif" | "else" if self.innermost() == Some(Kind::If) => {
                    self.end_branch();
                    if first == "else" {
                        self.begin(Some(true), None);
                    }
                }
                "fi" | "esac" | "done" | "}" => self.close(&first),
                _ => {
                    self.defined = None;
                    return words.split_off(at - 1);
                }
            }
        }
        Vec::new()
    }

    /// `{`: commands that belong together, or the body of a function, of which is not known whether somebody calls it.
    fn begin_group(&mut self) {
        let function = self.defined.take().map(|name| (name, self.commands.len()));
        let (truth, why) = match function {
            Some(_) => (None, None),
            None => (self.list.runs(), self.list.why.take()),
        };
        self.open(Kind::Group);
        if let Some(block) = self.blocks.last_mut() {
            block.function = function;
        }
        self.begin(truth, why);
    }

    fn innermost(&self) -> Option<Kind> {
        self.blocks.last().map(|block| block.kind)
    }

    /// The patterns that are being read.
    fn patterns(&mut self) -> Option<&mut Vec<Word>> {
        let block = self.blocks.last_mut().filter(|block| block.in_patterns)?;
        block.case.as_mut().map(|(_, patterns)| patterns)
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
            why: None,
            case: None,
            in_patterns: false,
            function: None,
        });
    }

    /// `WORD in PATTERN`, behind `case`.
    fn look_at(&mut self, words: &[Word]) {
        let at = words.iter().position(|word| word.text == "in").unwrap_or(words.len());
        let subject = words[..at].first().cloned().unwrap_or_default();
        let patterns = words.iter().skip(at + 1).cloned().collect();
        if let Some(block) = self.blocks.last_mut() {
            block.case = Some((subject, patterns));
            block.in_patterns = true;
        }
    }

    /// The `)` behind the patterns of a branch.
    pub(super) fn begin_case(&mut self) {
        let Some(patterns) = self.patterns().map(std::mem::take) else {
            return;
        };
        let Some(block) = self.blocks.last_mut() else { return };
        block.in_patterns = false;
        let subject = block
            .case
            .as_ref()
            .map(|(subject, _)| subject.clone())
            .unwrap_or_default();
        let is_set = |name: &str| self.variables.contains_key(name);
        let matches = |pattern: &Word| match pattern.text.as_str() {
            "*" => Some(true),
            _ => condition::known(&subject, &is_set)
                .zip(condition::known(pattern, &is_set))
                .and_then(|(text, pattern)| condition::matches(pattern, text)),
        };
        let truth = patterns.iter().map(matches).reduce(or).unwrap_or(Some(false));
        let why = condition::wanted(&[subject]);
        self.begin(truth, why);
    }

    /// The `;;` behind a branch.
    pub(super) fn end_case(&mut self) {
        if self.innermost() == Some(Kind::Case) {
            self.end_branch();
            if let Some(block) = self.blocks.last_mut() {
                block.in_patterns = true;
            }
        }
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
        let is_loop = |block: &Block| matches!(block.kind, Kind::While | Kind::Until | Kind::For);
        self.blocks.iter().any(is_loop)
    }

    /// Whether all the branches that are open are taken.
    pub(super) fn is_taken(&self) -> Truth {
        let mut taken = Some(true);
        for block in self.blocks.iter().filter(|block| block.inside) {
            taken = and(taken, block.present);
        }
        taken
    }

    /// The script ends here, where the present branch is taken.
    pub(super) fn leave(&mut self) {
        if let Some(block) = self.blocks.last_mut() {
            block.leaves = true;
        }
    }

    /// A function may end here, with its variables as they are.
    pub(super) fn return_here(&mut self) {
        if self.is_taken() == Some(false) {
            return;
        }
        let variables = self.variables.clone();
        if let Some(block) = self.blocks.iter_mut().rfind(|block| block.function.is_some()) {
            block.ends.push(variables);
        }
    }

    fn close(&mut self, last_word: &str) {
        if self.innermost().is_none_or(|kind| kind.last_word() != last_word) {
            return;
        }
        self.end_branch();
        let Some(mut block) = self.blocks.pop() else { return };
        if let Some((name, from)) = block.function.take() {
            self.functions.insert(name, from..self.commands.len());
        }
        if block.taken != Some(true) {
            block.ends.push(self.variables.clone());
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
            (name.clone(), undecided(name, &values, why))
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
