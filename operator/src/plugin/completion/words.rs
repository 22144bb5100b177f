//! What the words of a line have said so far, and what its last one is to be.

use clap::{Arg, Command};

/// What may stand where the cursor is.
#[derive(Clone, Copy)]
pub enum Wanted<'a> {
    /// A command of this one.
    Command(&'a Command),
    /// A flag of this command.
    Flag(&'a Command),
    /// A value of this flag, or of this place.
    Value(&'a Arg),
    /// Nothing that is known.
    Nothing,
}

/// A line that is to be completed.
pub struct Line<'a> {
    /// What its last word is to be.
    pub wanted: Wanted<'a>,
    /// What stands in the last word before that: `--output=`.
    pub prefix: String,
    /// How that begins.
    pub begun: String,
    /// The flags that choose the cluster, each with its value in one word.
    pub connection: Vec<String>,
}

/// Reads the words behind the program's name.
pub fn read<'a>(root: &'a Command, words: &[String]) -> Line<'a> {
    let (last, before) = match words.split_last() {
        Some((last, before)) => (last.as_str(), before),
        None => ("", words),
    };
    let (mut command, mut place, mut awaited, mut connection) = (root, 0, None, Vec::new());
    for word in before {
        if let Some(flag) = awaited.take() {
            connection.extend(of_connection(flag, word));
        } else if word.starts_with('-') && word.len() > 1 {
            match flag(command, word) {
                Some((flag, Some(value))) => connection.extend(of_connection(flag, value)),
                Some((flag, None)) => awaited = Some(flag),
                None => {}
            }
        } else if let Some(next) = command.find_subcommand(word) {
            command = next;
        } else {
            place += 1;
        }
    }
    let (mut prefix, mut begun) = (String::new(), last.to_owned());
    let wanted = if let Some(flag) = awaited {
        Wanted::Value(flag)
    } else if last.starts_with('-') {
        match flag(command, last) {
            Some((flag, Some(value))) => {
                let (before, value) = last.split_at(last.len() - value.len());
                (prefix, begun) = (before.to_owned(), value.to_owned());
                Wanted::Value(flag)
            }
            _ => Wanted::Flag(command),
        }
    } else if command.has_subcommands() {
        match place {
            0 => Wanted::Command(command),
            _ => Wanted::Nothing,
        }
    } else {
        command
            .get_positionals()
            .nth(place)
            .map_or(Wanted::Nothing, Wanted::Value)
    };
    Line {
        wanted,
        prefix,
        begun,
        connection,
    }
}

/// The flag of a word that takes a value, and the value where it is in the same word.
fn flag<'a, 'w>(command: &'a Command, word: &'w str) -> Option<(&'a Arg, Option<&'w str>)> {
    if let Some(long) = word.strip_prefix("--") {
        let (name, value) = match long.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (long, None),
        };
        let flag = with_value(command).find(|flag| flag.get_long() == Some(name))?;
        return Some((flag, value));
    }
    // Of `-An` the last letter has a value.
    word.char_indices().skip(1).find_map(|(at, letter)| {
        let flag = with_value(command).find(|flag| flag.get_short() == Some(letter))?;
        let value = &word[at + letter.len_utf8()..];
        let is_behind = !value.is_empty();
        Some((flag, is_behind.then(|| value.strip_prefix('=').unwrap_or(value))))
    })
}

fn with_value(command: &Command) -> impl Iterator<Item = &Arg> {
    let flags = command.get_arguments().filter(|arg| !arg.is_positional());
    flags.filter(|flag| flag.get_action().takes_values())
}

/// A flag that chooses the cluster, with its value: those are the ones of all commands.
fn of_connection(flag: &Arg, value: &str) -> Option<String> {
    let long = flag.get_long().filter(|_| flag.is_global_set())?;
    Some(format!("--{long}={value}"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::plugin::cli::Cli;

    #[test]
    fn flags_of_the_connection_are_gathered_wherever_they_stand() {
        let mut root = Cli::command();
        root.build();
        let words = ["--context", "east", "list", "-An", "team", "-l", "a=b", "--as=eve", ""].map(String::from);
        let line = read(&root, &words);
        assert_eq!(line.connection, ["--context=east", "--namespace=team", "--as=eve"]);
    }
}
