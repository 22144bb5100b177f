//! Functions. A body is read where the function is called, with the variables and arguments that it has there, as often as it is called.

use super::command::{Assignment, assignment};
use super::condition::{Truth, and};
use super::positional::ARGUMENTS;
use super::rest::Rest;
use super::{Lexer, List, Unreadable, Word};

/// Functions within functions: nobody's script goes as deep as this, unless it calls itself.
const DEEPEST: usize = 16;

/// Calls in a script, all together: functions that call each other twice each would double them with each function.
const MOST: usize = 1000;

/// Words that make what is set behind them a function's own.
const LOCAL: [&str; 3] = ["local", "declare", "typeset"];

/// A function whose body comes, or is being skipped.
pub(super) struct Head<'a> {
    pub name: String,
    /// Where its body begins.
    pub body: Rest<'a>,
    /// What the values of variables had brought before.
    pub brought: usize,
}

/// Texts that a function may have as its body: several where it is defined in branches of which the one taken is not known.
#[derive(Default)]
pub(super) struct Function<'a> {
    bodies: Vec<&'a str>,
    is_called: bool,
    /// No brace closed it: what stands behind it is in it, and may call it.
    is_open: bool,
}

/// A function that is being carried out.
pub(super) struct Frame {
    name: String,
    /// What its own variables were before, and its arguments.
    before: Vec<(String, Option<Vec<Word>>)>,
    /// What it returns with, where it certainly does before its end.
    pub returns: Option<Truth>,
    /// It may return before its end.
    pub may_return: bool,
}

impl<'a> Lexer<'a> {
    /// Whether the words that are read are those of a function's body before anybody calls it.
    pub(super) fn defines(&self) -> bool {
        self.blocks.iter().any(|block| block.head.is_some())
    }

    /// `function NAME`, behind which the body stands.
    pub(super) fn take_head(&mut self) {
        let Some((before, [function, name])) = self.command.split_last_chunk() else {
            return;
        };
        if function.text != "function" || !before.iter().all(super::blocks::is_in_front) {
            return;
        }
        let name = name.text.clone();
        self.command.truncate(self.command.len() - 2);
        self.begin_function(name);
    }

    /// A function's name was read: its body is next.
    pub(super) fn begin_function(&mut self, name: String) {
        let before = std::mem::take(&mut self.command);
        self.keywords(before);
        self.head = Some(Head {
            name,
            body: self.rest,
            brought: self.brought,
        });
    }

    /// The function whose body was skipped is known from here on, if this is a branch that is taken.
    pub(super) fn define(&mut self, head: Head<'a>) {
        self.brought = head.brought;
        let certain = and(self.is_taken(), self.list.runs());
        if self.defines() || (certain == Some(false) && !self.keeps_all) {
            return;
        }
        let body = head.body.up_to(self.rest);
        if !self.functions.contains_key(&head.name) {
            self.defined.push(head.name.clone());
        }
        let function = self.functions.entry(head.name).or_default();
        if certain == Some(true) {
            function.bodies.clear();
        }
        if certain != Some(false) || function.bodies.is_empty() {
            function.bodies.push(body);
        }
    }

    /// Carries out the function that a command calls. None where it calls none, else whether it succeeds.
    pub(super) fn call(&mut self, words: &[Word], apart: bool) -> Result<Option<Truth>, Unreadable> {
        let front = |word: &&Word| ["!", "time"].contains(&word.text.as_str()) || assignment(word).is_some();
        let at = words.iter().take_while(front).count();
        let Some(name) = words.get(at).filter(|word| word.unknown.is_none()) else {
            return Ok(None);
        };
        let Some(function) = self.functions.get_mut(&name.text) else {
            return Ok(None);
        };
        let (bodies, is_open) = (function.bodies.clone(), function.is_open);
        let runs = and(self.is_taken(), self.list.runs());
        let within = self.frames.iter().filter(|frame| frame.name == name.text).count();
        // One that may call itself is followed once: what that changes is not known then, whatever comes after it.
        let again = (within > 1 && runs != Some(true)) || (within > 0 && is_open);
        if self.defines() || again || (runs == Some(false) && !self.keeps_all) {
            return Ok(Some(None));
        }
        if let Some(function) = self.functions.get_mut(&name.text) {
            function.is_called = true;
        }
        let negations = words[..at].iter().filter(|word| word.text == "!").count();
        let settings: Vec<Assignment> = words[..at].iter().filter_map(assignment).collect();
        let arguments = self.as_arguments(&words[at + 1..]);
        let from = self.commands.len();
        let variables = apart.then(|| self.variables.clone());
        let mut succeeds = None;
        for body in &bodies {
            let truth = if bodies.len() > 1 { None } else { self.list.runs() };
            succeeds = self.carry_out_body(&name.text, body, truth, arguments.clone(), &settings)?;
        }
        if within > 0 && runs != Some(true) {
            self.forget_repeated(from);
        }
        if let Some(variables) = variables {
            self.variables = variables;
        }
        let known = succeeds.filter(|_| bodies.len() == 1 && !apart);
        Ok(Some(known.map(|truth| truth != (negations % 2 == 1))))
    }

    fn carry_out_body(
        &mut self,
        name: &str,
        body: &'a str,
        truth: Truth,
        arguments: Vec<Word>,
        settings: &[Assignment],
    ) -> Result<Truth, Unreadable> {
        self.calls += 1;
        self.brought += body.len();
        if self.frames.len() >= DEEPEST || self.calls > MOST || self.brought > super::LONGEST {
            return Err(Unreadable::Calls(name.into()));
        }
        let rest = std::mem::replace(&mut self.rest, Rest::new(body));
        let documents = std::mem::take(&mut self.documents);
        let list = std::mem::take(&mut self.list);
        let (written, own) = (self.written.take(), std::mem::take(&mut self.hands_own_on));
        let depth = self.blocks.len();
        self.begin_call(truth, list.why.clone());
        self.frames.push(Frame {
            name: name.into(),
            before: Vec::new(),
            returns: None,
            may_return: false,
        });
        self.make_own(ARGUMENTS);
        self.variables.insert(ARGUMENTS.into(), arguments);
        for set in settings {
            self.make_own(&set.name);
            self.set(&set.name, vec![set.value.clone()]);
        }
        self.read()?;
        let last = self.list.truth;
        while self.blocks.len() > depth + 1 {
            self.close_innermost();
        }
        let leaves = self.blocks.last().is_some_and(super::blocks::Block::only_leaves);
        self.close_innermost();
        let frame = self.frames.pop();
        (self.rest, self.documents, self.list) = (rest, documents, list);
        (self.written, self.hands_own_on) = (written, own);
        let Some(frame) = frame else { return Ok(None) };
        for (name, before) in frame.before.into_iter().rev() {
            match before {
                Some(words) => self.variables.insert(name, words),
                None => self.variables.remove(&name),
            };
        }
        if leaves && self.list.runs() == Some(true) {
            self.leave();
        }
        Ok(match frame.returns {
            _ if frame.may_return => None,
            Some(truth) => truth,
            None => last,
        })
    }

    /// The commands from there on that stand further in front, too: a function that may call itself does the same again.
    fn forget_repeated(&mut self, from: usize) {
        let again = self.commands.split_off(from);
        for command in again {
            if !self.commands.contains(&command) {
                self.commands.push(command);
            }
        }
    }

    /// `local N=8`, `declare N`: variables of the function alone.
    pub(super) fn make_words_own(&mut self, words: &[Word]) {
        let Some((first, rest)) = words.split_first().filter(|_| self.may_run()) else {
            return;
        };
        let texts: Vec<&str> = rest.iter().map(|word| word.text.as_str()).collect();
        // These are for all, or only shown.
        let is_other = |text: &&str| text.starts_with('-') && text.contains(['g', 'f', 'p']);
        if !LOCAL.contains(&first.text.as_str()) || texts.iter().any(is_other) {
            return;
        }
        for text in texts.into_iter().filter(|text| !text.starts_with('-')) {
            let (name, is_set) = text.split_once('=').map_or((text, false), |(name, _)| (name, true));
            let name = name.trim_end_matches('+');
            if self.make_own(name) && !is_set {
                self.set(name, Vec::new());
            }
        }
    }

    /// The array behind `local`, whose words come.
    pub(super) fn make_array_own(&mut self, before: &[Word], name: &str) {
        let is_local = before.first().is_some_and(|word| LOCAL.contains(&word.text.as_str()));
        if is_local && self.may_run() {
            self.make_own(name);
        }
    }

    /// Keeps what a variable is for when the function ends. False where it is the function's own already, or there is none.
    fn make_own(&mut self, name: &str) -> bool {
        let before = self.variables.get(name).cloned();
        let Some(frame) = self.frames.last_mut() else {
            return false;
        };
        let is_new = frame.before.iter().all(|(own, _)| own != name);
        if is_new {
            frame.before.push((name.to_owned(), before));
        }
        is_new
    }

    /// The bodies of functions that nothing here calls, the last first: it is the one that calls the others.
    pub(super) fn read_uncalled(&mut self) -> Result<(), Unreadable> {
        let is_open = self.blocks.iter().position(|block| block.head.is_some());
        if let Some(head) = is_open.and_then(|at| self.blocks.drain(at..).next()?.head) {
            let name = head.name.clone();
            self.list = List::default();
            self.define(head);
            if let Some(function) = self.functions.get_mut(&name) {
                function.is_open = true;
            }
        }
        for name in std::mem::take(&mut self.defined).into_iter().rev() {
            if self.functions.get(&name).is_some_and(|function| !function.is_called) {
                self.hands_own_on = true;
                self.call(&[Word::new(name, None)], false)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
