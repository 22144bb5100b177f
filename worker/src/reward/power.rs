//! Powers in a text: those of ten are numbers, and what else is raised is left to the reader.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::{Captures, Regex};

const RAISED: &str = "⁰¹²³⁴⁵⁶⁷⁸⁹";

/// A power of ten, alone or behind its factor: `10^{8}`, `3 \times 10^8`, `6.02 × 10²³`. None only if the pattern were invalid, which a test
/// excludes.
static POWER: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let (sign, space) = ("[-+\u{2212}\u{2013}]?", r"(?:\s|\\[,;:! ])*");
    let factor = format!(r"(?P<factor>[0-9]+(?:\.[0-9]+)?|\.[0-9]+){space}(?:\\times|\\cdot|[×·⋅∙*xX]){space}");
    let exponent = format!(r"(?:\^|\*\*)\s*(?:\{{\s*(?P<braced>{sign}[0-9]+)\s*\}}|(?P<bare>{sign}[0-9]+))");
    Regex::new(&format!(
        r"(?:{factor}|\b)10\s*(?:{exponent}|(?P<raised>[⁺⁻]?[{RAISED}]+))"
    ))
    .ok()
});

/// `text` with its powers of ten as exponents: `3 \times 10^{8}` is `3e8`.
pub(super) fn with_exponents(text: &str) -> Option<Cow<'_, str>> {
    let written = |found: &Captures| {
        let part = |name: &str| found.name(name).map(|part| part.as_str());
        let before = found.get(0).map_or("", |whole| &text[..whole.start()]);
        // The end of a decimal number: `3.10^2`.
        if part("factor").is_none() && before.ends_with(['.', ',']) {
            return found[0].to_owned();
        }
        let exponent = part("braced").or_else(|| part("bare")).or_else(|| part("raised"));
        let exponent: String = exponent.unwrap_or_default().chars().map(lowered).collect();
        format!("{}e{exponent}", part("factor").unwrap_or("1"))
    };
    Some(POWER.as_ref()?.replace_all(text, written))
}

/// Whether a number behind this text is an exponent: `cm^2`, `x^{-1}`.
pub(super) fn is_exponent(before: &str) -> bool {
    before.trim_end_matches([' ', '{']).ends_with('^')
}

/// Whether a number before this text is raised to another one. `90^\circ` is not.
pub(super) fn is_base(behind: &str) -> bool {
    let behind = behind.trim_start();
    let exponent = behind
        .strip_prefix('^')
        .map(|rest| rest.trim_start_matches([' ', '{', '-', '+']));
    exponent.is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
        || behind.starts_with(|first: char| first == '⁻' || RAISED.contains(first))
}

/// A sign or digit of an exponent as a float has it.
fn lowered(character: char) -> char {
    let digit = RAISED.chars().zip('0'..='9').find(|(raised, _)| *raised == character);
    match character {
        '⁻' | '\u{2212}' | '\u{2013}' => '-',
        '⁺' => '+',
        other => digit.map_or(other, |(_, digit)| digit),
    }
}
