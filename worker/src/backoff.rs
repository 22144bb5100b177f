//! Which requests are worth another try, and how long to wait before it.

use std::time::Duration;

use reqwest::StatusCode;

/// What to do after a request failed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Retry {
    /// The same request would fail again.
    Never,
    /// After a backoff of our own.
    Backoff,
    /// Not before this has passed: the server said so.
    After(Duration),
}

impl Retry {
    /// The wait before another try, after `tries` others: a [`backoff`], or what the server asked for, but `cap` at the longest. None: there
    /// is no other try.
    pub fn pause(self, base: Duration, cap: Duration, tries: u32) -> Option<Duration> {
        match self {
            Self::Never => None,
            Self::Backoff => Some(backoff(base, cap, tries, rand::random())),
            Self::After(wait) => Some(wait.min(cap)),
        }
    }
}

/// What the status of a failed request says, where the request changes nothing at the server and so may be repeated: too many requests
/// and an overloaded server (after what `Retry-After` says, seconds only), request timeout, and errors of the server's own may pass.
pub fn after_status(status: StatusCode, retry_after: Option<&str>) -> Retry {
    let wait = retry_after
        .and_then(|text| text.trim().parse().ok())
        .filter(|seconds: &f64| *seconds >= 0.0);
    let wait = wait.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    match (status.as_u16(), wait) {
        (429 | 503, Some(wait)) => Retry::After(wait),
        (408 | 425 | 429 | 500..=599, _) => Retry::Backoff,
        _ => Retry::Never,
    }
}

/// Exponential backoff with full jitter: uniform in [0, min(cap, base * 2^tries)], `tries` counted from 0. See "Exponential
/// Backoff and Jitter", AWS Architecture Blog, 2015. `uniform` in [0, 1).
pub fn backoff(base: Duration, cap: Duration, tries: u32, uniform: f64) -> Duration {
    let ceiling = base.saturating_mul(2_u32.saturating_pow(tries)).min(cap);
    ceiling.mul_f64(uniform.clamp(0.0, 1.0))
}

/// A pause, up to a quarter shorter or longer: who begins to wait together does not go on together. `uniform` in [0, 1).
pub fn spread(pause: Duration, uniform: f64) -> Duration {
    pause.mul_f64(0.75 + uniform.clamp(0.0, 1.0) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_grows_to_its_cap_and_is_jittered_from_zero() {
        let wait = |tries, uniform| backoff(Duration::from_millis(100), Duration::from_secs(1), tries, uniform);
        assert_eq!(wait(0, 0.5), Duration::from_millis(50));
        assert_eq!(wait(2, 0.5), Duration::from_millis(200));
        assert_eq!(wait(40, 1.0), Duration::from_secs(1));
        assert_eq!(wait(3, 0.0), Duration::ZERO);
    }

    #[test]
    fn a_pause_is_spread_by_a_quarter_to_either_side() {
        let pauses = [0.0, 0.5, 1.0].map(|uniform| spread(Duration::from_secs(4), uniform));
        assert_eq!(pauses, [3, 4, 5].map(Duration::from_secs));
    }

    #[test]
    fn a_server_says_when_to_come_back_in_seconds_or_says_nothing() {
        let after = |status, text| after_status(StatusCode::from_u16(status).unwrap(), text);
        assert_eq!(after(429, Some("2")), Retry::After(Duration::from_secs(2)));
        assert_eq!(after(429, Some("Fri, 21 Nov 2026 08:00:00 GMT")), Retry::Backoff);
        assert_eq!(after(429, Some("-1")), Retry::Backoff);
        assert_eq!(after(429, Some("1e300")), Retry::Backoff);
        for status in [502, 504] {
            assert_eq!(after(status, None), Retry::Backoff);
        }
        assert_eq!(after(404, Some("2")), Retry::Never);
        let asked = Retry::After(Duration::from_secs(3600));
        let cap = Duration::from_secs(60);
        assert_eq!(asked.pause(Duration::ZERO, cap, 0), Some(cap));
    }
}
