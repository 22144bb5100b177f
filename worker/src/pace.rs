//! How long a transfer of many bytes may take, from a process, a hub or a disk: a minimum, and more time for more bytes. Both sides
//! of a transfer compute the limit like this, so that neither gives up while the other goes on.

use std::time::Duration;

/// However few they are: whoever takes them may have something to end first.
pub const LEAST: Duration = Duration::from_secs(600);
/// Bytes in a second that any way has: a sixth of a gigabit network, or a slow disk.
pub const LEAST_RATE: u64 = 20_000_000;

/// For so many bytes.
pub fn deadline(bytes: u64) -> Duration {
    lengthened(LEAST, bytes, LEAST_RATE)
}

/// For so many bytes, where fewer have `least`, and `rate` of them may take another second.
pub fn lengthened(least: Duration, bytes: u64, rate: u64) -> Duration {
    least.saturating_add(Duration::from_secs(bytes / rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_bytes_have_ten_minutes_and_those_of_a_large_model_hours() {
        assert_eq!(deadline(0), Duration::from_secs(600));
        // A policy of 7B in bfloat16, and one of 70B in float32.
        assert_eq!(deadline(14_000_000_000).as_secs(), 600 + 700);
        assert_eq!(deadline(280_000_000_000).as_secs(), 600 + 14_000);
        assert_eq!(lengthened(Duration::from_secs(2), 19_999_999, LEAST_RATE).as_secs(), 2);
        assert!(deadline(u64::MAX) > deadline(u64::MAX / 2));
    }
}
