//! Words of the commands in a pasted shell script: quotes, continued lines, comments, variables and arrays that the script
//! itself sets (POSIX shell, section 2.2 to 2.6; arrays as in bash), and what they are behind conditions and in functions. Nothing is run.
//!
//! Branches are followed because real scripts have them: of the 130 example training scripts in verl's repository 83 branch (24 by
//! `case`), 107 build arrays and 49 use `$((...))`; of OpenRLHF's 8 one branches (counted in November 2026).

mod blocks;
mod changes;
mod command;
mod condition;
mod document;
mod enclosed;
mod expansion;
mod function;
mod integer;
mod operation;
mod positional;
mod rest;
mod word;

use std::collections::{HashMap, HashSet};

use blocks::Block;
use command::{End, List, is_name};
use document::Document;
use function::{Frame, Function, Head};
use rest::Rest;
pub use word::Word;

/// Value of a variable that the script does not set.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Bytes that the values of variables may bring into a script, all together: a variable can double with each line that sets it.
const LONGEST: usize = 1 << 20;

/// Why a script has no words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// A quote, parenthesis or brace is never closed.
    #[error("the command line ends inside {0}: it was not copied whole")]
    Unclosed(&'static str),
    /// A variable's value is too long where it is put in.
    #[error(
        "${0} makes the script too long: the values of its variables are more than {most} bytes where they are put in; write the command out, \
         with what it needs of that value",
        most = LONGEST
    )]
    TooLong(String),
    /// A function that calls itself without an end.
    #[error(
        "`{0}` calls itself without an end that can be seen here, or functions call each other too often: write out the command that trains, \
         with the values that it has there"
    )]
    Calls(String),
}

/// The words of every command of `script` that may be run; commands that only set variables are carried out, not returned.
pub fn commands(script: &str, environment: Environment<'_>) -> Result<Vec<Vec<Word>>, Unreadable> {
    commands_with(script, &[], environment)
}

/// As [`commands`], with arguments that the script is given.
pub fn commands_with(
    script: &str,
    arguments: &[Word],
    environment: Environment<'_>,
) -> Result<Vec<Vec<Word>>, Unreadable> {
    let mut lexer = Lexer::new(script, environment);
    if !arguments.is_empty() {
        lexer.set_arguments(arguments);
    }
    lexer.read()?;
    Ok(lexer.commands)
}

/// As [`commands`], with those of branches that are not taken, and of functions that nothing calls: a script without arguments does not take
/// what they would choose.
pub fn all_commands(script: &str, environment: Environment<'_>) -> Result<Vec<Vec<Word>>, Unreadable> {
    let mut lexer = Lexer::new(script, environment);
    lexer.keeps_all = true;
    lexer.read()?;
    lexer.read_uncalled()?;
    Ok(lexer.commands)
}

/// A word that is read as exactly this text again.
pub fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// What variables are set to; several words are an array.
type Variables = HashMap<String, Vec<Word>>;

struct Lexer<'a> {
    rest: Rest<'a>,
    environment: Environment<'a>,
    variables: Variables,
    /// The blocks that are open, the innermost last.
    blocks: Vec<Block<'a>>,
    /// The function whose body comes.
    head: Option<Head<'a>>,
    functions: HashMap<String, Function<'a>>,
    /// Their names, in the order in which they are defined.
    defined: Vec<String>,
    /// The functions that are being carried out, the innermost last.
    frames: Vec<Frame>,
    /// How often a function was called.
    calls: usize,
    /// Variables that hold whole numbers (`declare -i`): what they are set to is a sum.
    integers: HashSet<String>,
    /// What stands before the present command in its list of `&&` and `||`.
    list: List,
    commands: Vec<Vec<Word>>,
    /// Commands are kept although they are not run.
    keeps_all: bool,
    command: Vec<Word>,
    /// The word being read. An empty one was quoted.
    word: Option<Word>,
    /// The next word is the file of a redirection.
    into_file: bool,
    /// The array whose words are being read.
    array: Option<String>,
    /// The script's own arguments are among the words of the command.
    hands_own_on: bool,
    /// The texts that begin on the next line (`<<EOF`).
    documents: Vec<Document>,
    /// The words of the text that was written into the present word.
    written: Option<Vec<Word>>,
    /// A list without words stood in the present double quotes.
    no_words: bool,
    /// Defaults, sums and texts inside each other.
    depth: usize,
    /// Bytes that values of variables brought.
    brought: usize,
}

impl<'a> Lexer<'a> {
    fn new(script: &'a str, environment: Environment<'a>) -> Self {
        Self {
            rest: Rest::new(script),
            environment,
            variables: Variables::new(),
            blocks: Vec::new(),
            head: None,
            functions: HashMap::new(),
            defined: Vec::new(),
            frames: Vec::new(),
            calls: 0,
            integers: HashSet::new(),
            list: List::default(),
            commands: Vec::new(),
            keeps_all: false,
            command: Vec::new(),
            word: None,
            into_file: false,
            array: None,
            hands_own_on: false,
            documents: Vec::new(),
            written: None,
            no_words: false,
            depth: 0,
            brought: 0,
        }
    }

    fn read(&mut self) -> Result<(), Unreadable> {
        while let Some(c) = self.rest.next() {
            if self.begins_part(c)? || (c == '(' && self.sum()) {
                continue;
            }
            match c {
                '\n' if self.in_test() && self.goes_on() => self.end_word(),
                '&' | '|' | '(' | ')' | '<' | '>' if self.in_test() => {
                    self.end_word();
                    self.push(c);
                    if self.rest.next_if_eq(&c).is_some() {
                        self.push(c);
                    }
                    self.end_word();
                }
                '\n' => {
                    self.end_command(End::Line)?;
                    self.read_documents()?;
                }
                ';' => {
                    let two = self.rest.next_if_eq(&';').is_some();
                    let through = self.rest.next_if_eq(&'&').is_some();
                    self.end_command(match (two, through) {
                        (true, true) => End::Onward,
                        (true, false) => End::Branch,
                        (false, true) => End::Through,
                        (false, false) => End::Line,
                    })?;
                }
                '|' => {
                    let two = self.rest.next_if_eq(&'|').is_some();
                    self.end_command(if two { End::Or } else { End::Other })?;
                }
                '&' if self.rest.peek() == Some('>') => self.end_word(),
                '&' => {
                    let two = self.rest.next_if_eq(&'&').is_some();
                    self.end_command(if two { End::And } else { End::Other })?;
                }
                '>' | '<' => self.redirect(c)?,
                '(' if self.array_starts() => self.array()?,
                '(' if self.rest.next_if_eq(&')').is_some() => {
                    self.end_word();
                    self.begin_parentheses()?;
                }
                '(' if self.begins_subshell() => self.begin_subshell(),
                '(' => self.end_command(End::Other)?,
                ')' => self.end_command(End::Close)?,
                c if c.is_whitespace() => self.end_word(),
                c => self.push(c),
            }
        }
        self.end_command(End::Line)
    }

    /// Whether a `[[` is open, in which signs of commands are words.
    fn in_test(&self) -> bool {
        let first = self.command.iter().find(|word| !blocks::is_in_front(word));
        let is_open = first.is_some_and(|word| word.text == "[[");
        is_open && !self.command.iter().chain(&self.word).any(|word| word.text == "]]")
    }

    /// Whether the line ends behind a sign that wants another test.
    fn goes_on(&self) -> bool {
        let last = self.word.as_ref().or(self.command.last());
        last.is_some_and(|word| ["&&", "||"].contains(&word.text.as_str()))
    }

    /// Reads the quote, expansion or comment that `c` begins; false where it begins none.
    fn begins_part(&mut self, c: char) -> Result<bool, Unreadable> {
        match c {
            '\\' => self.escape(),
            '\'' => self.single()?,
            '"' => self.double()?,
            '$' if self.rest.next_if_eq(&'\'').is_some() => self.ansi()?,
            '$' => self.dollar(false)?,
            '`' => self.backticks()?,
            '#' if self.word.is_none() => while self.rest.next_if(|&c| c != '\n').is_some() {},
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn push(&mut self, c: char) {
        self.word.get_or_insert_default().push(c.encode_utf8(&mut [0; 4]));
    }

    fn not_known(&mut self, what: &str) {
        self.word.get_or_insert_default().push_unknown(what);
    }

    fn end_word(&mut self) {
        let Some(word) = self.word.take() else { return };
        if !std::mem::take(&mut self.into_file) {
            self.command.push(word);
            self.take_head();
        }
    }

    /// A backslash outside quotes. At a line's end it joins what stands before and behind it; one before blanks that end the line, or before a
    /// comment, was meant to continue it.
    fn escape(&mut self) {
        if self.rest.next_if_eq(&'\n').is_some() {
            return;
        }
        let line = self.rest.text.split('\n').next().unwrap_or_default();
        let behind = line.trim_start_matches([' ', '\t', '\r']);
        if behind.is_empty() || (behind.starts_with('#') && behind.len() < line.len()) {
            while self.rest.next().is_some_and(|c| c != '\n') {}
            self.end_word();
        } else if let Some(c) = self.rest.next() {
            self.push(c);
        }
    }

    fn single(&mut self) -> Result<(), Unreadable> {
        let text = self.until('\'', "'...'")?;
        self.word.get_or_insert_default().push(&text);
        Ok(())
    }

    fn backticks(&mut self) -> Result<(), Unreadable> {
        self.until('`', "`...`")?;
        self.not_known("`...`");
        Ok(())
    }

    fn until(&mut self, end: char, what: &'static str) -> Result<String, Unreadable> {
        let mut text = String::new();
        loop {
            match self.rest.next() {
                Some(c) if c == end => return Ok(text),
                Some(c) => text.push(c),
                None => return Err(Unreadable::Unclosed(what)),
            }
        }
    }

    /// `"$@"` of no words is no word; `""` is an empty one.
    fn double(&mut self) -> Result<(), Unreadable> {
        let begins = self.word.is_none();
        self.word.get_or_insert_default();
        self.no_words = false;
        loop {
            match self.rest.next().ok_or(Unreadable::Unclosed("\"...\""))? {
                '"' => {
                    self.word
                        .take_if(|word| begins && self.no_words && *word == Word::default());
                    return Ok(());
                }
                '\\' => match self.rest.next() {
                    Some('\n') => {}
                    Some(c @ ('"' | '\\' | '$' | '`')) => self.push(c),
                    Some(c) => {
                        self.push('\\');
                        self.push(c);
                    }
                    None => {}
                },
                '$' => self.dollar(true)?,
                '`' => self.backticks()?,
                c => self.push(c),
            }
        }
    }

    /// `$'...'`, where `\n` is a new line.
    fn ansi(&mut self) -> Result<(), Unreadable> {
        self.word.get_or_insert_default();
        loop {
            match self.rest.next().ok_or(Unreadable::Unclosed("$'...'"))? {
                '\'' => return Ok(()),
                '\\' => match self.rest.next() {
                    Some('n') => self.push('\n'),
                    Some('t') => self.push('\t'),
                    Some(c) => self.push(c),
                    None => {}
                },
                c => self.push(c),
            }
        }
    }

    /// `>`, `2>&1`, `<<EOF`: `first` is the first of the signs.
    fn redirect(&mut self, first: char) -> Result<(), Unreadable> {
        // `2>` names a stream, no argument.
        if self.word.as_ref().is_some_and(|word| {
            word.unknown.is_none() && !word.text.is_empty() && word.text.chars().all(|c| c.is_ascii_digit())
        }) {
            self.word = None;
        }
        self.end_word();
        let mut signs = String::from(first);
        while let Some(c) = self.rest.next_if(|&c| c == '>' || c == '<' || c == '&') {
            signs.push(c);
        }
        if signs.len() == 1 && self.rest.next_if_eq(&'(').is_some() {
            self.enclosed('(', ')', "<(...)")?;
            // Behind another sign, `< <(...)`, it is the file.
            if !std::mem::take(&mut self.into_file) {
                self.not_known("<(...)");
            }
        } else if signs == "<<" {
            self.begin_document();
        } else {
            self.into_file = true;
        }
        Ok(())
    }

    fn array_starts(&self) -> bool {
        let name = self.word.as_ref().and_then(|word| word.text.strip_suffix('='));
        name.is_some_and(|name| is_name(name.strip_suffix('+').unwrap_or(name)))
    }

    /// `NAME=( words )`, `NAME+=( words )`.
    fn array(&mut self) -> Result<(), Unreadable> {
        let name = self.word.take().map(|word| word.text).unwrap_or_default();
        let before = std::mem::take(&mut self.command);
        let before = self.keywords(before);
        let name = name.trim_end_matches('=');
        let own = name.trim_end_matches('+').to_owned();
        self.make_array_own(&before, &own);
        self.array = Some(own);
        loop {
            match self.rest.next().ok_or(Unreadable::Unclosed("( ... )"))? {
                ')' => break,
                // Inside an array a line's end separates words.
                c if c.is_whitespace() => self.end_word(),
                c => {
                    if !self.begins_part(c)? {
                        self.push(c);
                    }
                }
            }
        }
        self.end_word();
        let values = std::mem::replace(&mut self.command, before);
        self.array = None;
        self.set_array(name.trim_end_matches('+'), name.ends_with('+'), values);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
