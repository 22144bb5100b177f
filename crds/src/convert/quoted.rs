//! Commands that a script quotes as a whole, for another shell to read: `bash -c "..."`, `ssh HOST "..."`.

use super::shell::{self, Environment, Word};
use super::{ConvertError, NotKnown};

/// Nobody quotes a command as often as this.
const DEEPEST: usize = 4;

/// The commands of a script; those that are quoted and start the framework in the place of the one they are words of.
///
/// # Errors
/// A quote that is open in what was quoted, a value that is too long, or a variable in it that is not known: where it stands in there cannot be told.
pub fn opened(
    mut commands: Vec<Vec<Word>>,
    starts: fn(&str) -> bool,
    environment: Environment<'_>,
) -> Result<Vec<Vec<Word>>, ConvertError> {
    for _ in 0..DEEPEST {
        if commands.iter().all(|words| script(words, starts).is_none()) {
            break;
        }
        let mut opened = Vec::new();
        for words in commands {
            let Some(at) = script(&words, starts) else {
                opened.push(words);
                continue;
            };
            if let Some(what) = words[at].unknown.clone() {
                let before: Vec<&str> = words[..at].iter().map(|word| word.text.as_str()).collect();
                let flag = format!("{} ...", before[at.saturating_sub(2)..].join(" "));
                return Err(ConvertError::NotKnown(vec![NotKnown { what, flag }]));
            }
            opened.extend(shell::commands_with(
                &words[at].text,
                arguments(&words, at),
                environment,
            )?);
        }
        commands = opened;
    }
    Ok(commands)
}

/// What stands behind a script that a shell is given with `-c`: its name, then its arguments.
fn arguments(words: &[Word], at: usize) -> &[Word] {
    let is_given = !words[0].text.ends_with("ssh") && words[at - 1].text.ends_with('c');
    words.get(at + 2..).filter(|_| is_given).unwrap_or_default()
}

/// Which word of a command is a script that starts the framework.
fn script(words: &[Word], starts: fn(&str) -> bool) -> Option<usize> {
    let is_whole = |text: &str| text.contains(char::is_whitespace) && text.split_whitespace().any(starts);
    let program = |word: &Word| word.text.rsplit('/').next().unwrap_or_default().to_owned();
    let first = program(words.first()?);
    let is_read = |at: usize| {
        let before = words[at - 1].text.as_str();
        let short = before.starts_with('-') && !before.starts_with("--") && before.ends_with('c');
        let python = at > 1 && program(&words[at - 2]).starts_with("python");
        (short && !python) || before == "--wrap" || ["ssh", "eval"].contains(&first.as_str())
    };
    (1..words.len()).find(|&at| is_whole(&words[at].text) && is_read(at))
}
