//! What a `$` stands for: variables, their defaults, sums. What only a running shell could know is named.

use super::command::is_name;
use super::condition::variable as variable_of;
use super::positional;
use super::rest::Rest;
use super::{LONGEST, Lexer, Unreadable, Word, changes, operation};
use crate::convert::arithmetic;

/// Nobody's script has defaults within defaults, or texts within texts, as deep as this.
const DEEPEST: usize = 8;

impl Lexer<'_> {
    /// What follows a `$`.
    pub(super) fn dollar(&mut self, quoted: bool) -> Result<(), Unreadable> {
        let name = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
        match self.rest.peek() {
            Some('{') => {
                self.rest.next();
                let inside = self.enclosed('{', '}', "${...}")?;
                self.braced(&inside, quoted)?;
            }
            Some('(') => {
                self.rest.next();
                let inside = self.enclosed('(', ')', "$(...)")?;
                self.in_parentheses(&inside)?;
            }
            Some(sign @ ('@' | '*')) => {
                self.rest.next();
                self.put_arguments(sign, "", quoted)?;
            }
            Some('#') => {
                self.rest.next();
                self.put_number();
            }
            // `$10` is the first, and a 0.
            Some(c) if c.is_ascii_digit() => {
                self.rest.next();
                let variable = String::from(c);
                self.put(&variable, self.value(&variable), quoted)?;
            }
            Some(c @ ('$' | '!' | '?')) => {
                let what = format!("${c}");
                self.rest.next();
                self.not_known(&what);
            }
            Some(c) if name(&c) => {
                let mut variable = String::new();
                while let Some(c) = self.rest.next_if(name) {
                    variable.push(c);
                }
                self.put_whole(&variable, self.value(&variable), quoted)?;
            }
            _ => self.push('$'),
        }
        Ok(())
    }

    /// `$((...))`, and what `$(...)` writes where that can be told.
    fn in_parentheses(&mut self, inside: &str) -> Result<(), Unreadable> {
        if self.depth >= DEEPEST {
            self.not_known("$(...)");
        } else if let Some(sum) = inside.strip_prefix('(').and_then(|inside| inside.strip_suffix(')')) {
            self.arithmetic(sum)?;
        } else {
            match self.written_by_cat(inside)? {
                Some(words) => self.put_text(words),
                None => self.not_known("$(...)"),
            }
        }
        Ok(())
    }

    /// `${NAME}`, a whole array, how long either is, or either with a default or changed; arguments, `${@:2}` say.
    fn braced(&mut self, inside: &str, quoted: bool) -> Result<(), Unreadable> {
        if let Some(length) = self.length(inside) {
            length.to_string().chars().for_each(|c| self.push(c));
            return Ok(());
        }
        let end = inside
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(inside.len());
        let (variable, behind) = inside.split_at(end);
        // In quotes, `[*]` is one word.
        let is_one = quoted && behind.starts_with("[*]");
        let array = ["[@]", "[*]"].iter().find_map(|all| behind.strip_prefix(all));
        let behind = array.unwrap_or(behind);
        // With a colon, an empty value is as none.
        let (colon, behind) = match behind.strip_prefix(':') {
            Some(behind) => (true, behind),
            None => (false, behind),
        };
        let is_empty = |words: &Vec<Word>| words.iter().all(|word| *word == Word::default());
        let set = self.value(variable);
        if is_one && self.joins_otherwise() && set.as_ref().is_some_and(|words| words.len() > 1) {
            self.not_known(&format!("${{{inside}}}"));
            return Ok(());
        }
        let set = if is_one { set.map(|words| vec![one(words)]) } else { set };
        // An array without words is no word, and any other variable an empty one.
        self.no_words |= array.is_some() && !is_one && set.as_ref().is_some_and(Vec::is_empty);
        let has_value = |words: &Vec<Word>| !words.is_empty() && (!colon || !is_empty(words));
        if are_arguments(inside) {
            let sign = if inside.starts_with('*') { '*' } else { '@' };
            self.put_arguments(sign, &inside[1..], quoted)?;
        } else if ["#", "#@", "#*"].contains(&inside) {
            self.put_number();
        } else if (behind.is_empty() && !colon) || behind.starts_with('?') {
            self.put_whole(variable, set, quoted)?;
        } else if behind.starts_with(['-', '=', '+']) && self.depth >= DEEPEST {
            self.not_known(&format!("${variable}"));
        } else if let Some(text) = behind.strip_prefix('+') {
            let set = set.filter(has_value);
            self.put_instead(variable, set, text, quoted)?;
        } else if let Some(otherwise) = behind.strip_prefix(['-', '=']) {
            let otherwise = vec![self.inner(otherwise, quoted)?];
            let set = set.filter(has_value);
            if set.is_none() && behind.starts_with('=') && is_name(variable) {
                self.set(variable, otherwise.clone());
            }
            self.put(variable, set.or(Some(otherwise)), quoted)?;
        } else {
            let set = set.filter(|_| !colon);
            match set.and_then(|words| operation::applied(&words, behind)) {
                Some(words) => self.put(variable, Some(words), quoted)?,
                None => self.not_known(&format!("${{{inside}}}")),
            }
        }
        Ok(())
    }

    /// Whether the words of `"${NAME[*]}"` stand behind each other with another sign between them than a blank.
    pub(super) fn joins_otherwise(&self) -> bool {
        let sign = self.variables.get("IFS").and_then(|words| words.first());
        sign.is_some_and(|sign| sign.unknown.is_some() || !sign.text.starts_with(' '))
    }

    /// `${NAME:+TEXT}`: the text where the variable has a value, else nothing. `${NAME[@]+"${NAME[@]}"}` is the array, word by word.
    fn put_instead(
        &mut self,
        variable: &str,
        set: Option<Vec<Word>>,
        text: &str,
        quoted: bool,
    ) -> Result<(), Unreadable> {
        let is_array = text.trim_matches('"') == format!("${{{variable}[@]}}");
        match set {
            None => self.no_words |= is_array,
            Some(words) if is_array => self.put(variable, Some(words), true)?,
            Some(words) if words.iter().any(|word| word.unknown.is_some()) => self.not_known(&format!("${variable}")),
            Some(_) => {
                let text = self.inner(text, quoted)?;
                self.put(variable, Some(vec![text]), quoted)?;
            }
        }
        Ok(())
    }

    /// `${#NAME}` and `${#NAME[@]}`, where what is counted is known.
    fn length(&self, inside: &str) -> Option<usize> {
        let name = inside.strip_prefix('#')?;
        let array = name.strip_suffix("[@]").or_else(|| name.strip_suffix("[*]"));
        let name = Some(array.unwrap_or(name)).filter(|name| is_name(name))?;
        let words = self.value(name)?;
        if words.iter().any(|word| word.unknown.is_some()) {
            return None;
        }
        Some(match array {
            Some(_) => words.len(),
            None => words.first().map_or(0, |word| word.text.chars().count()),
        })
    }

    /// What a variable is set to, here or outside.
    pub(super) fn value(&self, variable: &str) -> Option<Vec<Word>> {
        if let Some(number) = positional::number(variable) {
            return self.argument(number);
        }
        if let Some(value) = self.set_before(variable) {
            return Some(vec![value]);
        }
        let from_outside = || Some(vec![text((self.environment)(variable)?)]);
        let set = self.variables.get(variable).cloned();
        match &set {
            Some(words) if words.iter().all(|word| word.unknown.is_none()) => set,
            // What a command gave to it is asked of whoever runs this.
            _ => from_outside().or(set),
        }
    }

    /// The text behind `:-`, with its own quotes and variables, as one word. Signs that end a command elsewhere, or begin a comment, are text,
    /// and within double quotes single ones, too.
    fn inner(&self, script: &str, quoted: bool) -> Result<Word, Unreadable> {
        let mut lexer = Lexer {
            rest: Rest::new(script),
            variables: self.variables.clone(),
            depth: self.depth + 1,
            brought: self.brought,
            ..Lexer::new("", self.environment)
        };
        // A space in front keeps `a=b` from being an assignment.
        lexer.command.push(Word::default());
        while let Some(c) = lexer.rest.next() {
            match c {
                '\'' if quoted => lexer.push(c),
                '\\' if quoted => match lexer.rest.next_if(|&c| "\n\\$`\"}".contains(c)) {
                    Some('\n') => {}
                    escaped => lexer.push(escaped.unwrap_or(c)),
                },
                '$' if quoted => lexer.dollar(true)?,
                c if c.is_whitespace() && !quoted => lexer.end_word(),
                c if c == '#' || !lexer.begins_part(c)? => lexer.push(c),
                _ => {}
            }
        }
        lexer.end_word();
        Ok(one(lexer.command.into_iter().skip(1)))
    }

    /// `$((...))`: what a `$` in it stands for is put in first, as text; names without one are variables, too.
    fn arithmetic(&mut self, sum: &str) -> Result<(), Unreadable> {
        let whole = one(self.expanded(sum, false)?);
        if let Some(what) = &whole.unknown {
            changes::in_sum(sum).for_each(|name| self.set_unknown(name));
            self.not_known(what);
            return Ok(());
        }
        if self.repeats() && self.counts(sum) {
            self.not_known(&format!("$(({sum}))"));
            return Ok(());
        }
        match arithmetic::evaluate(&whole.text, &|name| self.number(name)) {
            Some(number) => number.to_string().chars().for_each(|c| self.push(c)),
            None => {
                changes::in_sum(sum).for_each(|name| self.set_unknown(name));
                self.not_known(&format!("$(({sum}))"));
            }
        }
        Ok(())
    }

    /// Whether the variable that is being set has its own value in the sum: `N=$((N + 1))`.
    fn counts(&self, sum: &str) -> bool {
        let own = self.word.as_ref().and_then(|word| word.text.split_once('='));
        let mut names = sum.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        own.is_some_and(|(own, _)| names.any(|name| name == own))
    }

    /// What a command wrote, in the word that is being read.
    fn put_text(&mut self, words: Vec<Word>) {
        let whole = one(words.iter().cloned());
        self.word.get_or_insert_default().append(whole);
        self.written = Some(words);
    }

    /// A variable's whole value. In a loop that puts it into the variable's next one, it is another each time.
    fn put_whole(&mut self, variable: &str, values: Option<Vec<Word>>, quoted: bool) -> Result<(), Unreadable> {
        let own = self.word.as_ref().and_then(|word| word.text.split_once('='));
        let own = self.array.as_deref().or(own.map(|(own, _)| own));
        match self.repeats() && own == Some(variable) {
            true => {
                self.not_known(&format!("${variable}"));
                Ok(())
            }
            false => self.put(variable, values, quoted),
        }
    }

    /// A variable's value in the word that is being read.
    pub(super) fn put(&mut self, variable: &str, values: Option<Vec<Word>>, quoted: bool) -> Result<(), Unreadable> {
        let Some(values) = values else {
            self.not_known(&format!("${variable}"));
            return Ok(());
        };
        self.count(variable, &values)?;
        let assigns = self.assigns();
        let whole = quoted || assigns || values.len() > 1;
        for (index, value) in values.iter().enumerate() {
            match index {
                0 => {}
                _ if assigns => self.push(' '),
                _ => self.end_word(),
            }
            if quoted {
                self.word.get_or_insert_default();
            }
            // What an argument was given as tells more than its number.
            let is_variable = |what: &String| variable_of(what).is_some() || !is_name(variable);
            if whole && value.unknown.as_ref().is_some_and(is_variable) {
                self.word.get_or_insert_default().append(value.clone());
                continue;
            }
            let unknown = value.unknown.as_ref().map(|what| match is_variable(what) {
                true => what.clone(),
                false => format!("${variable}"),
            });
            if whole || !value.text.contains(char::is_whitespace) {
                if let Some(unknown) = &unknown {
                    self.not_known(unknown);
                }
                value.text.chars().for_each(|c| self.push(c));
            } else {
                self.put_apart(value, unknown);
            }
        }
        Ok(())
    }

    /// Unquoted, a value falls apart at its blanks: each word of it is known, or not, by itself.
    fn put_apart(&mut self, value: &Word, unknown: Option<String>) {
        let (doubtful, has_more) = value.apart();
        let (mut pieces, mut inside) = (doubtful.into_iter(), false);
        for c in value.text.chars() {
            if c.is_whitespace() {
                self.end_word();
                inside = false;
                continue;
            }
            let begins = !std::mem::replace(&mut inside, true);
            if let Some(unknown) = unknown.as_ref().filter(|_| begins && pieces.next() == Some(true)) {
                self.not_known(unknown);
            }
            self.push(c);
        }
        if let Some(unknown) = unknown.filter(|_| has_more) {
            self.end_word();
            self.not_known(&unknown);
        }
    }

    /// Counts what a variable's value brings: every word as long as it is written, and one more, so that empty ones count too.
    fn count(&mut self, variable: &str, values: &[Word]) -> Result<(), Unreadable> {
        self.brought += values.iter().map(|value| value.written().len() + 1).sum::<usize>();
        if self.brought > LONGEST {
            return Err(Unreadable::TooLong(variable.into()));
        }
        Ok(())
    }
}

/// `@` and `*`, whole or from a place on (`@:2`).
fn are_arguments(inside: &str) -> bool {
    inside
        .strip_prefix(['@', '*'])
        .is_some_and(|rest| match rest.strip_prefix(':') {
            Some(place) => !place.starts_with(['-', '=', '+', '?']),
            None => rest.is_empty(),
        })
}

/// Words with blanks between them as one.
pub(super) fn one(words: impl IntoIterator<Item = Word>) -> Word {
    words.into_iter().fold(Word::default(), |mut whole, word| {
        if !whole.text.is_empty() {
            whole.push(" ");
        }
        whole.append(word);
        whole
    })
}

fn text(text: String) -> Word {
    Word::new(text, None)
}
