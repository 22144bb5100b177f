//! Numbers as people and models write them.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::{Captures, Regex};

use super::power::{is_base, is_exponent, with_exponents};

/// What people write for one: a hyphen, the sign itself, a dash.
const MINUS: [char; 3] = ['-', '\u{2212}', '\u{2013}'];

/// Digits, a decimal part, an exponent. What separates thousands has been [left out](ungrouped).
const MAGNITUDE: &str = r"(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?";

/// Digits with what may separate thousands between them: a comma, what LaTeX has for one, an apostrophe, a space that does not break.
static GROUPS: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"\.?[0-9]+(?:(?:,|\{,\}|,\\!|\\,|['\u{2019}\u{a0}\u{202f}\u{2009}])[0-9]+)+").ok());

/// A text whose last digits are but the end of a number: of one in other groups, or with a decimal comma.
static CUT: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let spaced = "(?:^|[^0-9.,/])[0-9]{1,3}(?: [0-9]{3})+";
    Regex::new(&format!(
        r"(?:[0-9][,'\u{{2019}}_][0-9]+|{spaced})(?:\.[0-9]+)?[^0-9]*$"
    ))
    .ok()
});

/// Sign and currency in either order, then a fraction of LaTeX, or a magnitude and what it is divided by. None only if the pattern were
/// invalid, which a test excludes.
static NUMBER: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let sign = "[-+\u{2212}\u{2013}]?";
    // In braces, or a digit alone: `\frac{3}{4}` and `\frac34` are the same.
    let part = |name: &str| format!(r"\s*(?:\{{\s*(?P<{name}>{sign}{MAGNITUDE})\s*\}}|(?P<{name}_digit>[0-9]))");
    let fraction = format!(r"(?:(?P<whole>[0-9]+) ?)?\\[cdt]?frac{}{}", part("over"), part("under"));
    let mixed = r"(?P<units>[0-9]+) +(?P<above>[0-9]+)/(?P<below>[0-9]+)";
    let plain = format!(r"(?P<top>{MAGNITUDE})(?:\s?/\s?(?P<bottom>{MAGNITUDE}))?");
    Regex::new(&format!(
        r"(?P<sign>{sign})(?:\\?[$€£])?(?P<inner>{sign})(?:{fraction}|{mixed}|{plain})"
    ))
    .ok()
});

/// A number of a text.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Number {
    /// The nearest float; finite.
    pub value: f64,
    /// Sign and digits, where it is written as a whole number: beyond 2^53 a float stands for several of them.
    whole: Option<String>,
    /// Whether it is left to the reader to divide: `84/2`, but not `2 1/2`.
    is_quotient: bool,
}

impl Number {
    /// None for one that no float can hold.
    fn of(value: f64, whole: Option<String>, is_quotient: bool) -> Option<Self> {
        let number = Self {
            value,
            whole,
            is_quotient,
        };
        value.is_finite().then_some(number)
    }

    /// Whether it differs by `tolerance` at most from that of the label. Where the label is a whole number `84/2` is none: a policy that is
    /// rewarded for it learns to copy the question.
    pub fn is_within(&self, tolerance: f64, label: &Self) -> bool {
        match (&self.whole, &label.whole) {
            (None, Some(_)) if self.is_quotient => false,
            // Two that are not the same differ by 1 at least.
            (Some(one), Some(other)) if tolerance < 1.0 => one == other,
            _ => (self.value - label.value).abs() <= tolerance,
        }
    }
}

/// The last number in `text`: `1,234`, `$5`, `3/4`, `-2.50`, `6.02e23`, `6.02 × 10^{23}`, `\frac{3}{4}`, `2\frac{1}{2}`, `2 1/2`. None without a finite one.
///
/// A minus right behind a digit, letter or closing bracket is a subtraction: the last number of `12-5` is 5. One with a space behind it is a
/// sign where a number has to come, as in `x = - 5`: a dash that opens a line is none.
pub(super) fn last_number(text: &str) -> Option<Number> {
    let text = ungrouped(text)?;
    let text = with_exponents(&text)?;
    let is_number = |found: &Captures| found.get(0).is_some_and(|whole| !is_exponent(&text[..whole.start()]));
    let found = NUMBER.as_ref()?.captures_iter(&text).filter(is_number).last()?;
    // `2^{10}` is left to the reader, and neither 2 nor 10.
    if is_base(&text[found.get(0)?.end()..]) {
        return None;
    }
    let is_minus = |name: &str| found.name(name).is_some_and(|sign| sign.as_str().starts_with(MINUS));
    let before = &text[..found.get(0)?.start()];
    let subtraction = before.ends_with(|character: char| character.is_alphanumeric() || character == ')');
    let spaced = found["sign"].is_empty() && is_spaced_minus(before);
    let is_negative = (is_minus("sign") && !subtraction || spaced) != is_minus("inner");

    let number = |name: &str| found.name(name).and_then(|digits| parse(digits.as_str()));
    let part = |in_braces: &str, digit: &str| number(in_braces).or_else(|| number(digit));
    // Rounded once, as 4/3 is.
    let mixed = |whole: f64, over: f64, under: f64| (whole * under + over) / under;
    let (mut digits, mut is_quotient) = (None, false);
    let value = if let Some(top) = found.name("top") {
        let top = top.as_str();
        // The stop of a sentence, or of `Rs.`, is no decimal point.
        let stops = top.starts_with('.') && before.ends_with(|last: char| last.is_alphanumeric() || last == '.');
        let top = if stops { &top[1..] } else { top };
        match found.name("bottom") {
            Some(_) => {
                is_quotient = true;
                parse(top)? / number("bottom")?
            }
            None => {
                digits = whole_digits(top);
                parse(top)?
            }
        }
    } else if let Some(whole) = number("units") {
        match (number("above")?, number("below")?) {
            (over, under) if over < under => mixed(whole, over, under),
            // Two numbers beside each other.
            (over, under) => return Number::of(over / under, None, true),
        }
    } else {
        let (over, under) = (part("over", "over_digit")?, part("under", "under_digit")?);
        let whole = number("whole");
        // A part of one is less than one: `0\frac{84}{2}` is a division, too.
        is_quotient = whole.is_none() || over.abs() >= under.abs();
        mixed(whole.unwrap_or(0.0), over, under)
    };
    let value = if is_negative { -value } else { value };
    let signed = |digits: &str| match is_negative && !digits.is_empty() {
        true => format!("-{digits}"),
        false => digits.to_owned(),
    };
    Number::of(value, digits.map(signed), is_quotient)
}

/// The digits of a magnitude without idle zeros, none of 0; None where it has decimals or an exponent.
fn whole_digits(magnitude: &str) -> Option<&str> {
    let (whole, decimals) = magnitude.split_once('.').unwrap_or((magnitude, ""));
    let is_whole = whole.bytes().all(|byte| byte.is_ascii_digit()) && decimals.bytes().all(|byte| byte == b'0');
    is_whole.then(|| whole.trim_start_matches('0'))
}

/// Whether a number behind this text has a minus that a space parts from it.
fn is_spaced_minus(before: &str) -> bool {
    let spaces = [' ', '\t'];
    let minus = before.trim_end_matches(spaces).strip_suffix(MINUS);
    minus.is_some_and(|before| before.trim_end_matches(spaces).ends_with(['=', ':', '(', '[', '{']))
}

/// Whether only the end of the last number of `text` is read: `14` of `3,14`, `000` of `1 000`. Of a label that would be a wrong one.
pub(super) fn is_cut(text: &str) -> bool {
    CUT.as_ref()
        .zip(ungrouped(text))
        .is_some_and(|(cut, text)| cut.is_match(&text))
}

/// `text` with its thousands in one piece: one to three digits, then groups of three. Whatever but a digit may stand behind the last one:
/// `72,000km`, `5,000円`.
fn ungrouped(text: &str) -> Option<Cow<'_, str>> {
    let joined = |found: &Captures| {
        if is_indian(&found[0]) {
            return found[0].replace(',', "");
        }
        let (mut rest, mut joined, mut goes_on) = (&found[0], String::new(), false);
        while let Some(first) = rest.find(|character: char| character.is_ascii_digit()) {
            let digits = rest[first..].bytes().take_while(u8::is_ascii_digit).count();
            let (part, behind) = rest.split_at(first + digits);
            if goes_on && digits == 3 {
                joined += &part[first..];
            } else {
                joined += part;
                // Decimals have no groups.
                goes_on = digits <= 3 && !part.starts_with('.');
            }
            rest = behind;
        }
        joined
    };
    Some(GROUPS.as_ref()?.replace_all(text, joined))
}

/// `12,34,567`, as India writes it.
fn is_indian(groups: &str) -> bool {
    let parts: Vec<&str> = groups.split(',').collect();
    let has = |part: &str, least: usize, most: usize| {
        (least..=most).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit())
    };
    match parts.as_slice() {
        [first, middle @ .., last] if !middle.is_empty() => {
            has(first, 1, 2) && middle.iter().all(|part| has(part, 2, 2)) && has(last, 3, 3)
        }
        _ => false,
    }
}

/// A magnitude with its sign.
fn parse(digits: &str) -> Option<f64> {
    digits.replace(MINUS, "-").parse().ok()
}
