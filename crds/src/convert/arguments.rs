//! From the words of a command to the flags of one framework: which command it is, where its flags begin, and whose they are.

use super::dialect::{Dialect, Syntax};
use super::draft::Argument;
use super::framework::Framework;
use super::known;
use super::row::{Row, To};
use super::shell::Word;
use super::{ConvertError, NotKnown, UnknownFlag};

/// The flags of a command.
#[derive(Debug)]
pub struct Arguments {
    /// By row of the dialect, each in the order given: the last one's value counts.
    pub given: Vec<Vec<Argument>>,
    /// Words before the program: the launcher's.
    pub launcher: Vec<String>,
}

/// The one command of a script that starts the framework: its launcher's words with the program last, and the flags.
pub fn of_framework(commands: Vec<Vec<Word>>, framework: Framework) -> Result<(Vec<Word>, Vec<Word>), ConvertError> {
    let bare = framework.is_flag();
    let program = |words: &Vec<Word>| program(words, framework);
    let is_bare = |words: &Vec<Word>| words.first().is_some_and(|word| bare(&word.text));
    // Among nothing but flags it is the value of one.
    let script = |words: &Vec<Word>| {
        let at = words.iter().position(|word| word.text.ends_with(".py"));
        at.filter(|_| !is_bare(words))
    };
    let programs: Vec<Option<usize>> = commands.iter().map(program).collect();
    let scripts: Vec<Option<usize>> = commands.iter().map(script).collect();
    for places in [programs, scripts] {
        let mut found = commands
            .iter()
            .zip(places)
            .filter_map(|(words, at)| Some((words, at? + 1)));
        if let Some((words, at)) = found.next() {
            if found.next().is_some() {
                return Err(ConvertError::Several(framework.name()));
            }
            return Ok((words[..at].to_vec(), words[at..].to_vec()));
        }
    }
    let alone = commands.into_iter().find(is_bare);
    alone
        .map(|words| (Vec::new(), words))
        .ok_or(ConvertError::NoCommand(framework))
}

/// Which word of a command is a program of the framework. A text that tells of one, for `echo` say, starts none.
pub fn program(words: &[Word], framework: Framework) -> Option<usize> {
    let starts = framework.starts();
    words
        .iter()
        .position(|word| starts(&word.text) && !word.text.contains(char::is_whitespace))
}

/// The flags among `words`, each with its row.
pub fn read(words: &[Word], launcher: Vec<String>, dialect: &Dialect) -> Result<Arguments, ConvertError> {
    let rows = &dialect.rows;
    let mut given: Vec<Vec<Argument>> = vec![Vec::new(); rows.len()];
    let (mut unknown, mut not_known) = (Vec::new(), Vec::new());
    for argument in split(words, dialect.syntax)? {
        let argument = match dialect.negates {
            true => positive(argument, rows),
            false => argument,
        };
        match known::row(&argument, dialect) {
            Ok(index) => {
                // What is not read need not be known, and of a name what is known will do.
                let is_read = match rows[index].to {
                    To::Fields(..) => true,
                    To::Computed(fields) => fields != ["metadata.name"],
                    To::Needless | To::Nowhere => false,
                };
                if let Some(what) = argument.unknown.clone().filter(|_| is_read) {
                    let flag = argument.shown.clone();
                    not_known.push(NotKnown { what, flag });
                }
                given[index].push(argument);
            }
            Err(nearest) => unknown.push(UnknownFlag {
                nearest,
                flag: argument.name,
            }),
        }
    }
    if !unknown.is_empty() {
        return Err(ConvertError::Unknown {
            framework: dialect.name,
            flags: unknown,
        });
    }
    if !not_known.is_empty() {
        return Err(ConvertError::NotKnown(not_known));
    }
    Ok(Arguments { given, launcher })
}

/// `--no_x` as `x` that is false, as transformers' parser has it for what is true by default.
fn positive(argument: Argument, rows: &[Row]) -> Argument {
    let is_row = |name: &str| rows.iter().any(|row| row.is(name));
    let name = argument.name.strip_prefix("no_").map(str::to_owned);
    match name.filter(|name| argument.values.is_empty() && !is_row(&argument.name) && is_row(name)) {
        Some(name) => Argument {
            name,
            values: vec!["false".into()],
            ..argument
        },
        None => argument,
    }
}

fn split(words: &[Word], syntax: Syntax) -> Result<Vec<Argument>, ConvertError> {
    let mut arguments: Vec<Argument> = Vec::new();
    for word in words {
        let text = word.text.as_str();
        let overrides = syntax == Syntax::Hydra && !arguments.last().is_some_and(is_bare);
        if let Some(what) = word.unknown.clone().filter(|_| text.is_empty() && overrides) {
            // It may hold any number of overrides.
            let flag = arguments.last().map_or(String::new(), |last| last.shown.clone());
            return Err(ConvertError::NotKnown(vec![NotKnown { what, flag }]));
        }
        let overriding = syntax == Syntax::Hydra && !text.starts_with("--");
        match (text.strip_prefix("--"), text.split_once('=')) {
            (_, Some((name, value))) if overriding => arguments.push(Argument {
                name: name.trim_start_matches('+').into(),
                shown: word.written().into(),
                values: vec![value.trim_matches(['\'', '"']).into()],
                unknown: word.unknown.clone(),
            }),
            // `~key` takes a setting out.
            (None, None) if overriding && text.starts_with('~') => arguments.push(Argument {
                name: text.trim_start_matches('~').into(),
                shown: word.written().into(),
                values: vec!["null".into()],
                unknown: word.unknown.clone(),
            }),
            (Some(""), _) => {}
            (Some(flag), _) if flag.starts_with(|c: char| c.is_ascii_alphabetic()) => {
                let (name, value) = flag.split_once('=').map_or((flag, None), |(n, v)| (n, Some(v)));
                arguments.push(Argument {
                    // transformers' parser takes both.
                    name: if syntax == Syntax::Dashes {
                        name.replace('-', "_")
                    } else {
                        name.into()
                    },
                    shown: word.written().into(),
                    values: value.map(str::to_owned).into_iter().collect(),
                    unknown: word.unknown.clone(),
                });
            }
            _ => match arguments.last_mut().filter(|last| !overriding || is_bare(last)) {
                Some(last) => {
                    // It may hold any number of flags.
                    if let Some(what) = word
                        .unknown
                        .clone()
                        .filter(|_| text.is_empty() && !last.values.is_empty())
                    {
                        let flag = last.shown.clone();
                        return Err(ConvertError::NotKnown(vec![NotKnown { what, flag }]));
                    }
                    last.shown = format!("{} {}", last.shown, word.written());
                    last.values.push(text.into());
                    last.unknown = last.unknown.take().or_else(|| word.unknown.clone());
                }
                None => {
                    return Err(ConvertError::Stray {
                        word: text.into(),
                        wanted: if overriding { "key=value" } else { "--flag value" },
                    });
                }
            },
        }
    }
    Ok(arguments)
}

/// Whether a flag of hydra's own waits for its value: `--config-path DIR`.
fn is_bare(last: &Argument) -> bool {
    last.values.is_empty() && last.shown.starts_with("--")
}
