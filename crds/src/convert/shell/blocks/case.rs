//! `case`: which of its branches is taken, and what goes on into the next (`;&`).

use super::super::command::End;
use super::super::condition::{self, Truth, and, or};
use super::super::{Lexer, Variables, Word};
use super::Kind;

impl Lexer<'_> {
    /// The patterns that are being read.
    pub(super) fn patterns(&mut self) -> Option<&mut Vec<Word>> {
        let block = self.blocks.last_mut().filter(|block| block.in_patterns)?;
        block.case.as_mut().map(|(_, patterns)| patterns)
    }

    /// `WORD in PATTERN`, behind `case`.
    pub(super) fn look_at(&mut self, words: &[Word]) {
        let at = words.iter().position(|word| word.text == "in").unwrap_or(words.len());
        let subject = words[..at].first().cloned().unwrap_or_default();
        let patterns = words.iter().skip(at + 1).cloned().collect();
        if let Some(block) = self.blocks.last_mut() {
            block.case = Some((subject, patterns));
            block.in_patterns = true;
        }
    }

    /// The `)` behind the patterns of a branch, or of a subshell.
    pub(in crate::convert::shell) fn begin_case(&mut self) {
        let Some(patterns) = self.patterns().map(std::mem::take) else {
            if self.innermost() == Some(Kind::Subshell) {
                self.close_innermost();
            }
            return;
        };
        let Some(block) = self.blocks.last_mut() else { return };
        block.in_patterns = false;
        let through = block.through.take();
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
        if let Some((taken, variables)) = through {
            self.go_through(taken, variables);
        }
    }

    /// The `;;`, `;&` or `;;&` behind a branch.
    pub(in crate::convert::shell) fn end_case(&mut self, end: End) {
        let variables = (end != End::Branch).then(|| self.variables.clone());
        let Some(block) = self.blocks.last_mut().filter(|block| block.kind == Kind::Case) else {
            return;
        };
        let taken = if block.leaves { Some(false) } else { block.present };
        // What it leaves is what the next begins with; whether its patterns fit, too, is not worked out.
        block.leaves |= end == End::Through;
        let taken = if end == End::Onward { and(taken, None) } else { taken };
        block.through = variables.map(|variables| (taken, variables));
        self.end_branch();
        if let Some(block) = self.blocks.last_mut() {
            block.in_patterns = true;
        }
    }

    /// The branch before, if it was taken, goes on in the one that begins.
    pub(super) fn go_through(&mut self, taken: Truth, variables: Variables) {
        let joined = match taken {
            Some(true) => variables,
            Some(false) => return,
            None => self.joined(&[self.variables.clone(), variables], None),
        };
        self.variables = joined;
        if let Some(block) = self.blocks.last_mut() {
            block.present = or(block.present, taken);
        }
    }
}
