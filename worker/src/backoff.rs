//! How long to wait before another try.

use std::time::Duration;

/// Exponential backoff with full jitter: uniform in [0, min(cap, base * 2^tries)], `tries` counted from 0. See "Exponential
/// Backoff and Jitter", AWS Architecture Blog, 2015. `uniform` in [0, 1).
pub fn backoff(base: Duration, cap: Duration, tries: u32, uniform: f64) -> Duration {
    let ceiling = base.saturating_mul(2_u32.saturating_pow(tries)).min(cap);
    ceiling.mul_f64(uniform.clamp(0.0, 1.0))
}
