//! Words of the commands in a pasted shell script: quotes, continued lines, comments, variables and arrays that the script
//! itself sets (POSIX shell, section 2.2 to 2.6; arrays as in bash). Nothing is run.

use std::collections::HashMap;
use std::iter::Peekable;
use std::str::Chars;

use super::arithmetic;

/// Value of a variable that the script does not set.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// One word after quoting and expansion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Word {
    /// Its text; what could not be expanded is left out.
    pub text: String,
    /// What could not be expanded, as it was written.
    pub unknown: Option<String>,
}

/// A quote, parenthesis or brace is never closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the command line ends inside {0}: it was not copied whole")]
pub struct Unclosed(&'static str);

/// The words of every command of `script`; commands that only set variables are carried out, not returned.
pub fn commands(script: &str, environment: Environment<'_>) -> Result<Vec<Vec<Word>>, Unclosed> {
    let mut lexer = Lexer::new(script, environment);
    lexer.read()?;
    Ok(lexer.commands)
}

/// A word that is read as exactly this text again.
pub fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

struct Lexer<'a> {
    rest: Peekable<Chars<'a>>,
    environment: Environment<'a>,
    variables: HashMap<String, Vec<Word>>,
    commands: Vec<Vec<Word>>,
    command: Vec<Word>,
    /// The word being read. An empty one was quoted.
    word: Option<Word>,
    /// The next word is the file of a redirection.
    into_file: bool,
    /// Defaults of variables inside defaults of variables.
    depth: usize,
}

/// Nobody's script has defaults within defaults as deep as this.
const DEEPEST: usize = 8;

impl<'a> Lexer<'a> {
    fn new(script: &'a str, environment: Environment<'a>) -> Self {
        Self {
            rest: script.chars().peekable(),
            environment,
            variables: HashMap::new(),
            commands: Vec::new(),
            command: Vec::new(),
            word: None,
            into_file: false,
            depth: 0,
        }
    }

    fn read(&mut self) -> Result<(), Unclosed> {
        while let Some(c) = self.rest.next() {
            match c {
                '\\' => self.escape(),
                '\'' => self.single()?,
                '"' => self.double()?,
                '$' if self.rest.next_if_eq(&'\'').is_some() => self.ansi()?,
                '$' => self.dollar(false)?,
                '`' => {
                    self.until('`', "`...`")?;
                    self.not_known("`...`");
                }
                '#' if self.word.is_none() => while self.rest.next_if(|&c| c != '\n').is_some() {},
                '\n' | ';' | '|' | ')' => self.end_command(),
                '&' if self.rest.peek() == Some(&'>') => self.end_word(),
                '&' => self.end_command(),
                '>' | '<' => self.redirect(),
                '(' if self.array_starts() => self.array()?,
                '(' => self.end_command(),
                c if c.is_whitespace() => self.end_word(),
                c => self.push(c),
            }
        }
        self.end_command();
        Ok(())
    }

    fn push(&mut self, c: char) {
        self.word.get_or_insert_default().text.push(c);
    }

    fn not_known(&mut self, what: &str) {
        self.word
            .get_or_insert_default()
            .unknown
            .get_or_insert_with(|| what.into());
    }

    fn end_word(&mut self) {
        let Some(word) = self.word.take() else { return };
        if !std::mem::take(&mut self.into_file) {
            self.command.push(word);
        }
    }

    fn end_command(&mut self) {
        self.end_word();
        self.into_file = false;
        let words = std::mem::take(&mut self.command);
        let setting = words.first().is_some_and(|word| word.text == "export");
        let assignments: Vec<_> = words
            .iter()
            .skip(usize::from(setting))
            .map_while(|word| Some((assignment(word)?, word.unknown.clone())))
            .collect();
        if assignments.len() == words.len() - usize::from(setting) {
            for ((name, value), unknown) in assignments {
                self.variables.insert(
                    name.into(),
                    vec![Word {
                        text: value.into(),
                        unknown,
                    }],
                );
            }
        } else if !words.is_empty() {
            self.commands.push(words);
        }
    }

    /// A backslash outside quotes. One before blanks that end the line was meant to continue it.
    fn escape(&mut self) {
        let mut ahead = self.rest.clone();
        let blanks = ahead.by_ref().take_while(|&c| c != '\n');
        if blanks.into_iter().all(|c| c == ' ' || c == '\t' || c == '\r') {
            self.rest = ahead;
            self.end_word();
        } else if let Some(c) = self.rest.next() {
            self.push(c);
        }
    }

    fn single(&mut self) -> Result<(), Unclosed> {
        let text = self.until('\'', "'...'")?;
        self.word.get_or_insert_default().text.push_str(&text);
        Ok(())
    }

    fn until(&mut self, end: char, what: &'static str) -> Result<String, Unclosed> {
        let mut text = String::new();
        loop {
            match self.rest.next() {
                Some(c) if c == end => return Ok(text),
                Some(c) => text.push(c),
                None => return Err(Unclosed(what)),
            }
        }
    }

    fn double(&mut self) -> Result<(), Unclosed> {
        self.word.get_or_insert_default();
        loop {
            match self.rest.next().ok_or(Unclosed("\"...\""))? {
                '"' => return Ok(()),
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
                '`' => {
                    self.until('`', "`...`")?;
                    self.not_known("`...`");
                }
                c => self.push(c),
            }
        }
    }

    /// `$'...'`, where `\n` is a new line.
    fn ansi(&mut self) -> Result<(), Unclosed> {
        self.word.get_or_insert_default();
        loop {
            match self.rest.next().ok_or(Unclosed("$'...'"))? {
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

    /// What follows a `$`.
    fn dollar(&mut self, quoted: bool) -> Result<(), Unclosed> {
        let name = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
        match self.rest.peek() {
            Some('{') => {
                self.rest.next();
                let inside = self.braces()?;
                let end = inside.find(|c| !name(&c)).unwrap_or(inside.len());
                let (variable, operation) = inside.split_at(end);
                let otherwise = [":-", "-", ":=", "="]
                    .iter()
                    .find_map(|operator| operation.strip_prefix(operator));
                match otherwise {
                    _ if ["", "[@]", "[*]"].contains(&operation) => self.expand(variable, None, quoted),
                    Some(_) if self.depth == DEEPEST => self.not_known(&format!("${variable}")),
                    Some(otherwise) => {
                        let otherwise = self.inner(otherwise)?;
                        self.expand(variable, Some(otherwise), quoted);
                    }
                    None => self.not_known(&format!("${{{inside}}}")),
                }
            }
            Some('(') => {
                let inside = self.parentheses()?;
                match inside.strip_prefix('(').and_then(|inside| inside.strip_suffix(')')) {
                    Some(sum) => self.arithmetic(sum),
                    None => self.not_known("$(...)"),
                }
            }
            // A script's own arguments: there are none.
            Some('@' | '*') => {
                self.rest.next();
            }
            Some(c) if name(c) => {
                let mut variable = String::new();
                while let Some(c) = self.rest.next_if(name) {
                    variable.push(c);
                }
                self.expand(&variable, None, quoted);
            }
            _ => self.push('$'),
        }
        Ok(())
    }

    fn value(&self, variable: &str) -> Option<Vec<Word>> {
        let from_outside = || Some(vec![text((self.environment)(variable)?)]);
        self.variables.get(variable).cloned().or_else(from_outside)
    }

    /// What stands before the brace that closes one that was read.
    fn braces(&mut self) -> Result<String, Unclosed> {
        let (mut inside, mut open) = (String::new(), 1);
        loop {
            let c = self.rest.next().ok_or(Unclosed("${...}"))?;
            match c {
                '{' => open += 1,
                '}' if open == 1 => return Ok(inside),
                '}' => open -= 1,
                _ => {}
            }
            inside.push(c);
        }
    }

    /// What stands between the next parenthesis and the one that closes it.
    fn parentheses(&mut self) -> Result<String, Unclosed> {
        let (mut inside, mut open) = (String::new(), 0);
        loop {
            let c = self.rest.next().ok_or(Unclosed("$(...)"))?;
            match c {
                '(' if open == 0 => {
                    open = 1;
                    continue;
                }
                '(' => open += 1,
                ')' if open == 1 => return Ok(inside),
                ')' => open -= 1,
                _ => {}
            }
            inside.push(c);
        }
    }

    /// The text behind `:-`, with its own quotes and variables, as one word.
    fn inner(&self, script: &str) -> Result<Word, Unclosed> {
        let mut lexer = Lexer {
            rest: script.chars().peekable(),
            variables: self.variables.clone(),
            depth: self.depth + 1,
            ..Lexer::new("", self.environment)
        };
        // A space in front keeps `a=b` from being an assignment.
        lexer.command.push(Word::default());
        lexer.read()?;
        let words = lexer.commands.into_iter().flatten().skip(1);
        Ok(words.fold(Word::default(), |mut whole, word| {
            if !whole.text.is_empty() {
                whole.text.push(' ');
            }
            whole.text.push_str(&word.text);
            whole.unknown = whole.unknown.or(word.unknown);
            whole
        }))
    }

    /// `$((...))`.
    fn arithmetic(&mut self, sum: &str) {
        let value = |name: &str| self.value(name)?.first()?.text.trim().parse().ok();
        match arithmetic::evaluate(sum, &value) {
            Some(number) => number.to_string().chars().for_each(|c| self.push(c)),
            None => self.not_known(&format!("$(({sum}))")),
        }
    }

    fn expand(&mut self, variable: &str, otherwise: Option<Word>, quoted: bool) {
        let Some(values) = self.value(variable).or_else(|| Some(vec![otherwise?])) else {
            self.not_known(&format!("${variable}"));
            return;
        };
        let whole = quoted || values.len() > 1;
        for (index, value) in values.iter().enumerate() {
            if index > 0 {
                self.end_word();
            }
            if let Some(unknown) = &value.unknown {
                self.not_known(unknown);
            }
            // Unquoted, a value falls apart at its blanks.
            for c in value.text.chars() {
                if !whole && c.is_whitespace() {
                    self.end_word();
                } else {
                    self.push(c);
                }
            }
        }
    }

    fn redirect(&mut self) {
        // `2>` names a stream, no argument.
        if self
            .word
            .as_ref()
            .is_some_and(|word| word.text.chars().all(|c| c.is_ascii_digit()))
        {
            self.word = None;
        }
        self.end_word();
        while self.rest.next_if(|&c| c == '>' || c == '<' || c == '&').is_some() {}
        self.into_file = true;
    }

    fn array_starts(&self) -> bool {
        let name = self.word.as_ref().and_then(|word| word.text.strip_suffix('='));
        name.is_some_and(is_name)
    }

    /// `NAME=( words )`.
    fn array(&mut self) -> Result<(), Unclosed> {
        let name = self.word.take().map(|word| word.text).unwrap_or_default();
        let before = std::mem::take(&mut self.command);
        loop {
            match self.rest.peek().ok_or(Unclosed("( ... )"))? {
                ')' => break,
                // Inside an array a line's end separates words.
                c if c.is_whitespace() => {
                    self.end_word();
                    self.rest.next();
                }
                '#' if self.word.is_none() => while self.rest.next_if(|&c| c != '\n').is_some() {},
                '\\' => {
                    self.rest.next();
                    self.escape();
                }
                '\'' => {
                    self.rest.next();
                    self.single()?;
                }
                '"' => {
                    self.rest.next();
                    self.double()?;
                }
                '$' => {
                    self.rest.next();
                    self.dollar(false)?;
                }
                _ => {
                    let c = self.rest.next().unwrap_or_default();
                    self.push(c);
                }
            }
        }
        self.rest.next();
        self.end_word();
        let values = std::mem::replace(&mut self.command, before);
        self.variables.insert(name.trim_end_matches('=').into(), values);
        Ok(())
    }
}

fn text(text: String) -> Word {
    Word { text, unknown: None }
}

fn assignment(word: &Word) -> Option<(&str, &str)> {
    word.text.split_once('=').filter(|(name, _)| is_name(name))
}

fn is_name(text: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.starts_with(|c: char| letter(c) && !c.is_ascii_digit()) && text.chars().all(letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(script: &str) -> Vec<Vec<String>> {
        let home = |name: &str| (name == "HOME").then(|| "/root".to_owned());
        let commands = commands(script, &home).unwrap();
        let texts = |words: Vec<Word>| words.into_iter().map(|word| word.text).collect();
        commands.into_iter().map(texts).collect()
    }

    #[test]
    fn quotes_comments_and_continued_lines_are_read_as_a_shell_does() {
        let script = "set -x # trace\npython -m a.b \\\n  --x 'it is $HOME' \\  \n  --y \"a \\\"b\\\" $HOME/c\" --z= \\\n  # end\n";
        let expected = [
            "python",
            "-m",
            "a.b",
            "--x",
            "it is $HOME",
            "--y",
            "a \"b\" /root/c",
            "--z=",
        ];
        assert_eq!(words(script), [vec!["set", "-x"], expected.to_vec()]);
        assert_eq!(words("a ''"), [["a", ""]]);
        assert_eq!(words("a $'x\\ny'"), [["a", "x\ny"]]);
    }

    #[test]
    fn variables_and_arrays_of_the_script_are_put_in() {
        let script = "export D=/data F=\"['$HOME/a', '/b']\"\nA=(\n --x 1 # one\n --y \"$D\"\n)\nrun \"${A[@]}\" f=\"$F\" ${N:-8} $@";
        assert_eq!(
            words(script),
            [["run", "--x", "1", "--y", "/data", "f=['/root/a', '/b']", "8"]]
        );
    }

    #[test]
    fn pipes_and_redirections_are_no_arguments() {
        assert_eq!(
            words("a --x 1 2>&1 | tee log.txt"),
            [vec!["a", "--x", "1"], vec!["tee", "log.txt"]]
        );
        assert_eq!(
            words("nohup a --x 1 > out.log 2>err.log &"),
            [["nohup", "a", "--x", "1"]]
        );
    }

    #[test]
    fn what_only_a_shell_could_know_is_named() {
        let find = |script| commands(script, &|_| None).unwrap().remove(0).remove(1).unknown;
        assert_eq!(find("a $MODEL/x").as_deref(), Some("$MODEL"));
        assert_eq!(find("W=$(cd x && pwd)\na \"$W/x\"").as_deref(), Some("$(...)"));
        assert_eq!(find("a $((N * 2))").as_deref(), Some("$((N * 2))"));
    }

    #[test]
    fn defaults_of_variables_and_sums_are_worked_out() {
        let script = "H=${H:-\"${HOME}/verl\"}\nP=$((1024 * 2))\nrun f=\"${F:-\"${H}/a b\"}\" n=$(((P + 1) / 3))";
        assert_eq!(words(script), [["run", "f=/root/verl/a b", "n=683"]]);
    }

    #[test]
    fn a_quoted_word_is_read_back() {
        for word in ["", "a b", "it's", "$HOME", "a\\\nb"] {
            assert_eq!(words(&quote(word)), [[word]]);
        }
    }

    #[test]
    fn a_line_that_was_not_copied_whole_is_refused() {
        for script in ["a 'b", "a \"b", "a ${b", "a $(b", "A=(b"] {
            assert!(commands(script, &|_| None).is_err(), "{script}");
        }
    }
}
