//! Limits as kubectl reads them: a number of seconds, or a duration as Go writes it.

use std::time::Duration;

use super::duration;

/// What is as good as no limit, and can still be added to a time.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);
const FITS: &str = "a time is a number with a unit, as 500ms, 30s, 2m or 1h";

/// `--request-timeout`: `5s`, `1m30s`, `1.5h` or `30`; 0 is [FOREVER].
pub fn parse(text: &str) -> Result<Duration, String> {
    match read(text) {
        Some(limit) if limit.is_zero() => Ok(FOREVER),
        Some(limit) => Ok(limit),
        None => Err(format!("{FITS}; 0 waits for ever")),
    }
}

/// The same of a wait, which looks once where its limit is 0, as `kubectl wait` does.
pub fn of_wait(text: &str) -> Result<Duration, String> {
    read(text).ok_or_else(|| format!("{FITS}; 0 looks once"))
}

fn read(text: &str) -> Option<Duration> {
    let seconds = text.parse::<u32>().map(|seconds| Duration::from_secs(seconds.into()));
    let limit = seconds.ok().or_else(|| duration::parse(text))?;
    Some(limit.min(FOREVER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_read_as_kubectl_reads_it() {
        for (text, seconds) in [("5", 5), ("5s", 5), ("1m30s", 90)] {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for none in ["0", "0s", "999999999h"] {
            assert_eq!(parse(none), Ok(FOREVER), "{none}");
        }
        for wrong in ["", "soon", "-5s", "5d"] {
            assert!(parse(wrong).unwrap_err().contains("as 500ms"), "{wrong}");
            assert!(of_wait(wrong).unwrap_err().contains("0 looks once"), "{wrong}");
        }
    }

    #[test]
    fn a_wait_without_time_is_one_look_and_no_wait_is_longer_than_a_time_can_be() {
        for (text, seconds) in [("0", 0), ("0s", 0), ("90", 90), ("2m", 120)] {
            assert_eq!(of_wait(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        assert_eq!(of_wait("999999999h"), Ok(FOREVER));
    }
}
