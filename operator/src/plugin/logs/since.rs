//! `--since` and `--since-time`: how far back a log is read.

use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;

use crate::plugin::duration;

/// Lines from so long before the command began on. A log that opens later, as that of a pod which replaces another, has all since then, too.
#[derive(Clone, Copy, Debug)]
pub struct Since {
    before: Duration,
    began: Instant,
}

impl Since {
    /// `5s`, `2m` or `3h`, from now back.
    ///
    /// # Errors
    /// What fits, when it is no duration or none at all.
    pub fn parse(text: &str) -> Result<Self, String> {
        let before = duration::parse(text).filter(|before| !before.is_zero());
        let before = before.ok_or("a time is a number with a unit, as 30s, 5m or 2h")?;
        Ok(Self {
            before,
            began: Instant::now(),
        })
    }

    /// Seconds from now back, a begun one as a whole, as the API has them: the node counts them by its own clock.
    pub fn seconds(self) -> i64 {
        let back = self.before.saturating_add(self.began.elapsed());
        let begun = u64::from(back.subsec_nanos() > 0);
        i64::try_from(back.as_secs().saturating_add(begun)).unwrap_or(i64::MAX)
    }
}

/// `--since-time`: a time as RFC 3339 writes it.
///
/// # Errors
/// What fits, when it is none.
pub fn parse_time(text: &str) -> Result<Timestamp, String> {
    let time = text.parse::<Timestamp>();
    time.map_err(|_| "a time has its date and its zone, as 2026-01-31T09:30:00Z or 2026-01-31T10:30:00+01:00".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read_from_so_long_before_the_command_began_on_however_late_it_opens() {
        let since = |text: &str| Since::parse(text).unwrap();
        assert!([5, 6].contains(&since("5s").seconds()));
        assert_eq!(since("1500ms").seconds(), 2);
        let earlier = Since {
            began: Instant::now() - Duration::from_secs(2),
            ..since("2m")
        };
        assert!([122, 123].contains(&earlier.seconds()));
    }

    #[test]
    fn what_is_no_time_is_refused_with_what_fits() {
        for wrong in ["", "5", "0s", "yesterday"] {
            assert!(Since::parse(wrong).unwrap_err().contains("as 30s, 5m or 2h"), "{wrong}");
        }
    }

    #[test]
    fn a_time_is_read_in_any_zone_and_without_one_is_refused_with_what_fits() {
        assert_eq!(
            parse_time("2026-01-31T10:30:00+01:00"),
            parse_time("2026-01-31T09:30:00Z")
        );
        for wrong in ["", "5m", "2026-01-31", "2026-01-31T09:30:00", "09:30"] {
            assert!(
                parse_time(wrong).unwrap_err().contains("as 2026-01-31T09:30:00Z"),
                "{wrong}"
            );
        }
    }
}
