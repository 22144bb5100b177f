//! Writes results to standard output.

use std::io::{self, Write as _};

use anyhow::Result;
use serde::Serialize;

/// Writes text, as far as it is [visible].
pub fn print(text: &str) -> Result<()> {
    print_styled(&visible(text))
}

/// What a terminal shows as it stands: words of pods, of events and of servers must not move the cursor, and neither recolour nor
/// reorder what stands beside them. Line breaks and tabs stay.
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            plain if !is_hidden(plain) => shown.push(plain),
            control if control.is_control() => shown.extend(control.escape_default()),
            _ => shown.push('\u{fffd}'),
        }
    }
    shown
}

/// Whether a terminal obeys the character and does not show it: controls, bidirectional overrides and isolates.
fn is_hidden(character: char) -> bool {
    match character {
        '\n' | '\t' => false,
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        other => other.is_control(),
    }
}

/// Writes text with styles; what it has of others was made [visible] before. Colour is left out where nobody sees it: not a terminal,
/// or NO_COLOR is set.
pub fn print_styled(text: &str) -> Result<()> {
    let mut output = anstream::stdout().lock();
    output.write_all(text.as_bytes())?;
    output.flush()?;
    Ok(())
}

/// Writes a value for programs.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    print_styled(&json(value)?)
}

/// The same for programs and people.
pub fn print_yaml(value: &impl Serialize) -> Result<()> {
    print_styled(&yaml(value)?)
}

/// JSON that reads back as it was: what a terminal would obey can only be within a string there, and is written as JSON's own escape.
fn json(value: &impl Serialize) -> Result<String> {
    let written = serde_json::to_string_pretty(value)?;
    let mut shown = String::with_capacity(written.len() + 1);
    for character in written.chars() {
        match is_hidden(character) {
            true => shown.push_str(&format!("\\u{:04x}", u32::from(character))),
            false => shown.push(character),
        }
    }
    shown.push('\n');
    Ok(shown)
}

/// YAML writes most characters as they are, so text with one that a terminal would obey is written as JSON: that is YAML, too.
fn yaml(value: &impl Serialize) -> Result<String> {
    // By way of JSON, so that both have the same fields: YAML's writer has tags for the variants of an enum.
    let value = serde_json::to_value(value)?;
    let written = serde_yaml::to_string(&value)?;
    match written.chars().any(is_hidden) {
        true => json(&value),
        false => Ok(written),
    }
}

/// Whether the reader of our output has gone, as `head` does.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kinds = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .map(io::Error::kind);
    kinds.into_iter().any(|kind| kind == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_others_reach_a_terminal_as_plain_text() {
        let title = "exit code 1: \u{1b}]0;owned\u{7} \u{1b}[2J\u{9b}31m\r\u{202e}x\n\tnext";
        let shown = visible(title);
        assert!(
            shown.starts_with("exit code 1: \\u{1b}]0;owned\\u{7} \\u{1b}[2J"),
            "{shown}"
        );
        assert!(shown.ends_with("\n\tnext"), "{shown}");
        let plain = |character: char| !character.is_control() || "\n\t".contains(character);
        assert!(shown.chars().all(plain) && !shown.contains('\u{202e}'), "{shown:?}");
        // Once is enough.
        assert_eq!(visible(&shown), shown);
    }

    #[test]
    fn what_programs_read_has_every_character_and_none_that_a_terminal_obeys() {
        let strange = serde_json::json!({"message": "a\u{9b}31m\u{1b}[2J\u{202e}b\u{7f}\tc", "steps": [1, 2.5]});
        let (json, yaml) = (json(&strange).unwrap(), yaml(&strange).unwrap());
        assert!(
            !json.chars().any(is_hidden) && !yaml.chars().any(is_hidden),
            "{json:?} {yaml:?}"
        );
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap(), strange);
        assert_eq!(serde_yaml::from_str::<serde_json::Value>(&yaml).unwrap(), strange);
    }

    #[test]
    fn yaml_has_the_fields_of_json() {
        #[derive(Serialize)]
        enum Kind {
            Of(u32),
        }
        assert_eq!(yaml(&[Kind::Of(3)]).unwrap(), "- Of: 3\n");
    }
}
