//! The texts behind `<<EOF`. One that `read` takes, or that `$(cat <<EOF ...)` writes, is a variable's value; one that `sbatch` or another shell
//! takes is a script; the others are no commands.

use super::command::is_name;
use super::rest::Rest;
use super::{LONGEST, Lexer, Unreadable, Word, blocks};

/// A text that begins on the next line.
pub(super) struct Document {
    /// The line that ends it.
    end: String,
    /// Nothing in it is expanded: its end was quoted.
    is_literal: bool,
    /// The variable that it is for, and whether only its first line is.
    variable: Option<(String, bool)>,
    /// It is a script that is run, or may be.
    script: Option<Script>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Script {
    /// A shell takes it.
    Run,
    /// It is written into a file: a script, or anything else.
    Written,
}

/// What takes a script from its input.
const SHELLS: [&str; 7] = ["bash", "sh", "zsh", "ssh", "sbatch", "qsub", "bsub"];

/// Nobody's scripts hand on scripts as deep as this.
const DEEPEST: usize = 4;

impl Lexer<'_> {
    /// The word behind `<<` or `<<-`, which ends the text.
    pub(super) fn begin_document(&mut self) {
        self.rest.next_if_eq(&'-');
        while self.rest.next_if(|&c| c == ' ' || c == '\t').is_some() {}
        let mut end = String::new();
        while let Some(c) = self.rest.next_if(|&c| !c.is_whitespace() && !";|&<>".contains(c)) {
            end.push(c);
        }
        let plain = end.replace(['\'', '"', '\\'], "");
        self.documents.push(Document {
            is_literal: plain != end,
            end: plain,
            variable: read_into(&self.command),
            script: self.script_taken(),
        });
    }

    /// What the command that is being read does with a script behind it.
    fn script_taken(&self) -> Option<Script> {
        let is_run = (self.may_run() || self.keeps_all) && !self.defines() && self.depth < DEEPEST;
        let mut words = self
            .command
            .iter()
            .skip_while(|word| blocks::is_in_front(word))
            .filter(|_| is_run);
        let name = |word: &Word| word.text.rsplit('/').next().unwrap_or_default().to_owned();
        let first = name(words.next()?);
        let is_shell = |word: &Word| ["bash", "sh"].contains(&name(word).as_str());
        if SHELLS.contains(&first.as_str()) || words.any(is_shell) {
            return Some(Script::Run);
        }
        // Nothing tells what becomes of it: it is read where nothing else is there.
        let is_written = ["cat", "tee"].contains(&first.as_str()) && self.keeps_all;
        is_written.then_some(Script::Written)
    }

    /// The commands of a script that is handed on. Variables that are put in here are; those that are not known are asked for as they stand.
    fn read_script(&mut self, text: &str, document: &Document) -> Result<(), Unreadable> {
        let script = match document.is_literal {
            true => text.to_owned(),
            false => {
                let words = self.expanded(text, false)?;
                words.iter().map(Word::written).collect()
            }
        };
        self.brought += script.len();
        if self.brought > LONGEST {
            return Err(Unreadable::TooLong(document.end.clone()));
        }
        let mut lexer = Lexer {
            depth: self.depth + 1,
            brought: self.brought,
            keeps_all: self.keeps_all,
            ..Lexer::new(&script, self.environment)
        };
        let read = lexer.read().and_then(|()| match self.keeps_all {
            true => lexer.read_uncalled(),
            false => Ok(()),
        });
        if document.script == Some(Script::Run) {
            read?;
        }
        self.brought = lexer.brought;
        self.commands.append(&mut lexer.commands);
        Ok(())
    }

    /// The texts that begin behind this line.
    pub(super) fn read_documents(&mut self) -> Result<(), Unreadable> {
        for document in std::mem::take(&mut self.documents) {
            let mut text = String::new();
            while self.rest.peek().is_some() {
                let line: String = self.rest.by_ref().take_while(|&c| c != '\n').collect();
                if line.trim() == document.end {
                    break;
                }
                text.push_str(&line);
                text.push('\n');
            }
            if let Some((name, is_line)) = &document.variable {
                let text = if *is_line {
                    text.lines().next().unwrap_or_default()
                } else {
                    text.trim()
                };
                let words = self.text(text, document.is_literal)?;
                self.set(name, words);
            } else if document.script.is_some() {
                self.read_script(&text, &document)?;
            }
        }
        Ok(())
    }

    /// What `cat <<EOF` and no more writes, inside of `$(...)`.
    pub(super) fn written_by_cat(&mut self, inside: &str) -> Result<Option<Vec<Word>>, Unreadable> {
        let begins = inside.trim_start().strip_prefix("cat").map(str::trim_start);
        let Some((first, lines)) = begins.and_then(|rest| rest.strip_prefix("<<")?.split_once('\n')) else {
            return Ok(None);
        };
        let end = first.trim_start_matches('-').trim();
        let plain = end.replace(['\'', '"', '\\'], "");
        if plain.is_empty() || plain.contains(|c: char| c.is_whitespace() || ";|&<>".contains(c)) {
            return Ok(None);
        }
        let text: Vec<&str> = lines.lines().take_while(|line| line.trim() != plain).collect();
        self.text(text.join("\n").trim_end(), plain != end).map(Some)
    }

    /// A text as a variable's value: one word, or its words where something in them is not known, so that each tells of its own.
    fn text(&self, text: &str, is_literal: bool) -> Result<Vec<Word>, Unreadable> {
        if is_literal {
            return Ok(vec![Word::new(text, None)]);
        }
        let whole = self.expanded(text, false)?;
        if whole.iter().all(|word| word.unknown.is_none()) {
            return Ok(whole);
        }
        Ok(self.expanded(text, true)?.iter().flat_map(blocks::words).collect())
    }

    /// A text with its variables in it, in which quotes are letters.
    pub(super) fn expanded(&self, text: &str, falls_apart: bool) -> Result<Vec<Word>, Unreadable> {
        let mut lexer = Lexer {
            rest: Rest::new(text),
            variables: self.variables.clone(),
            depth: self.depth + 1,
            brought: self.brought,
            ..Lexer::new("", self.environment)
        };
        while let Some(c) = lexer.rest.next() {
            match c {
                '\\' => match lexer.rest.next_if(|&c| "\n\\$`".contains(c)) {
                    Some('\n') => {}
                    Some(c) => lexer.push(c),
                    None => lexer.push('\\'),
                },
                '$' => lexer.dollar(true)?,
                '`' => lexer.backticks()?,
                c if falls_apart && c.is_whitespace() => lexer.end_word(),
                c => lexer.push(c),
            }
        }
        lexer.end_word();
        Ok(lexer.command)
    }
}

/// The one variable that a `read` sets, and whether it ends at the line: with `-d ''` it reads on.
fn read_into(command: &[Word]) -> Option<(String, bool)> {
    let at = command.iter().position(|word| !blocks::is_in_front(word))?;
    let (first, rest) = command[at..].split_first()?;
    let mut words = rest.iter().map(|word| word.text.as_str());
    let (mut names, mut is_line) = (Vec::new(), true);
    while let Some(word) = words.next() {
        match word.strip_prefix('-') {
            Some(options) if options.ends_with('d') => {
                is_line = !words.next()?.is_empty();
            }
            Some(_) => {}
            None => names.push(word),
        }
    }
    match names.as_slice() {
        [name] if first.text == "read" && is_name(name) => Some(((*name).to_owned(), is_line)),
        _ => None,
    }
}
