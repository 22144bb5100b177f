//! `--request-timeout` as kubectl reads it: a number of seconds, or a duration as Go writes it.

use std::time::Duration;

/// What is as good as no limit, and can still be added to a time.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// Go's units, in seconds (`time.ParseDuration`).
const UNITS: [(&str, f64); 7] = [
    ("ns", 1e-9),
    ("us", 1e-6),
    ("µs", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("h", 3600.0),
];

/// `5s`, `1m30s`, `1.5h` or `30`; 0 is [FOREVER].
pub fn parse(text: &str) -> Result<Duration, String> {
    let seconds = match text.parse::<u32>() {
        Ok(seconds) => Some(f64::from(seconds)),
        Err(_) => sum(text),
    };
    let limit = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    match limit {
        Some(limit) if limit.is_zero() => Ok(FOREVER),
        Some(limit) => Ok(limit.min(FOREVER)),
        None => Err("a time is a number with a unit, as 500ms, 30s, 2m or 1h; 0 waits for ever".into()),
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
    fn a_timeout_is_read_as_kubectl_reads_it() {
        let cases = [
            ("5", 5_000),
            ("5s", 5_000),
            ("1m30s", 90_000),
            ("1.5h", 5_400_000),
            ("250ms", 250),
        ];
        for (text, milliseconds) in cases {
            assert_eq!(parse(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for none in ["0", "0s", "999999999h"] {
            assert_eq!(parse(none), Ok(FOREVER), "{none}");
        }
        for wrong in ["", "soon", "-5s", "5 s", "5d", "s", "1m30", "..s"] {
            assert!(parse(wrong).unwrap_err().contains("as 500ms"), "{wrong}");
        }
    }
}
