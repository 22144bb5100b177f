//! Durations as Go writes them (`time.ParseDuration`), which kubectl's flags are.

use std::time::Duration;

/// Go's units, in seconds.
const UNITS: [(&str, f64); 7] = [
    ("ns", 1e-9),
    ("us", 1e-6),
    ("µs", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("h", 3600.0),
];

/// `5s`, `1m30s`, `1.5h` or `0`; None for anything else, and what is too long to be counted.
pub fn parse(text: &str) -> Option<Duration> {
    match text {
        "0" => Some(Duration::ZERO),
        _ => Duration::try_from_secs_f64(sum(text)?).ok(),
    }
}

fn sum(text: &str) -> Option<f64> {
    let is_of_number = |character: char| character.is_ascii_digit() || character == '.';
    let (mut rest, mut seconds) = (text, 0.0);
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.find(|character: char| !is_of_number(character))?);
        let (unit, next) = after.split_at(after.find(is_of_number).unwrap_or(after.len()));
        let (_, size) = UNITS.iter().find(|(name, _)| *name == unit)?;
        seconds += number.parse::<f64>().ok()? * size;
        rest = next;
    }
    (!text.is_empty()).then_some(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_read_as_go_reads_it() {
        let cases = [
            ("5s", 5_000),
            ("1m30s", 90_000),
            ("1.5h", 5_400_000),
            ("250ms", 250),
            ("0", 0),
            ("0s", 0),
        ];
        for (text, milliseconds) in cases {
            assert_eq!(parse(text), Some(Duration::from_millis(milliseconds)), "{text}");
        }
        for wrong in ["", "5", "soon", "-5s", "5 s", "5d", "s", "1m30", "..s"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
