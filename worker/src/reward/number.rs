//! Numbers as people and models write them.

use std::sync::LazyLock;

use regex::Regex;

/// Digits with or without thousands separators, a decimal part, an exponent.
const MAGNITUDE: &str = r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+\b|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?";

/// Sign and currency in either order, a magnitude, and what it is divided by. None only if the pattern above were invalid,
/// which a test excludes.
static NUMBER: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let sign = "[-+\u{2212}]?";
    Regex::new(&format!(
        r"(?P<sign>{sign})[$€£]?(?P<inner>{sign})(?P<top>{MAGNITUDE})(?:\s?/\s?(?P<bottom>{MAGNITUDE}))?"
    ))
    .ok()
});

/// The last number in `text`: `1,234`, `$5`, `3/4`, `-2.50`, `6.02e23`. None without a finite one.
///
/// A minus right behind a digit, letter or closing bracket is a subtraction: the last number of `12-5` is 5.
pub(super) fn last_number(text: &str) -> Option<f64> {
    let found = NUMBER.as_ref()?.captures_iter(text).last()?;
    let negative = |name: &str| {
        found
            .name(name)
            .is_some_and(|sign| matches!(sign.as_str(), "-" | "\u{2212}"))
    };
    let before = text[..found.get(0)?.start()].chars().next_back();
    let subtraction = before.is_some_and(|character| character.is_alphanumeric() || character == ')');
    let is_negative = (negative("sign") && !subtraction) != negative("inner");

    let magnitude = |name: &str| {
        found
            .name(name)
            .and_then(|digits| digits.as_str().replace(',', "").parse::<f64>().ok())
    };
    let value = match found.name("bottom") {
        Some(_) => magnitude("top")? / magnitude("bottom")?,
        None => magnitude("top")?,
    };
    let value = if is_negative { -value } else { value };
    value.is_finite().then_some(value)
}
