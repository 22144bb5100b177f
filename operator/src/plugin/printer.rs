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
            '\n' | '\t' => shown.push(character),
            // Bidirectional overrides and isolates.
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => shown.push('\u{fffd}'),
            control if control.is_control() => shown.extend(control.escape_default()),
            other => shown.push(other),
        }
    }
    shown
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
    print(&format!("{}\n", serde_json::to_string_pretty(value)?))
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
}
