//! Durations as kubectl writes them.

use k8s_openapi::jiff::Timestamp;

/// A duration in at most two units, as `duration.HumanDuration` of k8s.io/apimachinery rounds it: `90s`, `5m30s`, `5h20m`,
/// `3d4h`.
pub fn human(seconds: i64) -> String {
    let seconds = seconds.max(0);
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let days = hours / 24;
    match seconds {
        i64::MIN..120 => format!("{seconds}s"),
        120..600 => two(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, "d", hours % 24, "h"),
        691_200..63_072_000 => format!("{days}d"),
        63_072_000..252_288_000 => two(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

/// The same for counts of seconds that cannot be negative.
pub fn human_unsigned(seconds: u64) -> String {
    human(i64::try_from(seconds).unwrap_or(i64::MAX))
}

fn two(first: i64, unit: &str, second: i64, smaller: &str) -> String {
    match second {
        0 => format!("{first}{unit}"),
        _ => format!("{first}{unit}{second}{smaller}"),
    }
}

/// Seconds from `then` to `now`, never negative: clocks differ.
pub fn seconds_since(then: Timestamp, now: Timestamp) -> i64 {
    now.as_second().saturating_sub(then.as_second()).max(0)
}

/// Age of `then`, in words.
pub fn since(then: Timestamp, now: Timestamp) -> String {
    human(seconds_since(then, now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_read_as_kubectl_writes_them() {
        let cases = [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (330, "5m30s"),
            (10_740, "179m"),
            (3 * 3600 + 20 * 60, "3h20m"),
            (47 * 3600, "47h"),
            (3 * 86_400 + 4 * 3600, "3d4h"),
            (100 * 86_400, "100d"),
            (800 * 86_400, "2y70d"),
            (4000 * 86_400, "10y"),
            (-5, "0s"),
        ];
        for (seconds, words) in cases {
            assert_eq!(human(seconds), words);
        }
    }
}
