//! Quantities of Kubernetes: `64Gi`, `500m`, `1e3`.

use std::sync::LazyLock;

use regex::Regex;

/// One that is not negative (`ParseQuantity` of apimachinery), as all of a pod and a claim must be: its number and its unit. Made once: the
/// operator looks at a job's templates again and again.
static QUANTITY: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"^\+?([0-9]+\.?[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]?|[eE][+-]?[0-9]+)$").ok());

/// Whether a quantity is more than another; false where one of them is none.
pub fn exceeds(quantity: &str, other: &str) -> bool {
    match (amount(quantity), amount(other)) {
        // `0.3` and `300m` may differ in their last bits.
        (Some(amount), Some(other)) => amount > other * (1.0 + 1e-9),
        _ => false,
    }
}

/// What a quantity comes to: bytes, cores, pieces. None for a text that is none.
pub fn amount(text: &str) -> Option<f64> {
    let parts = QUANTITY.as_ref()?.captures(text)?;
    let number: f64 = parts[1].parse().ok()?;
    let unit = match &parts[2] {
        "" => 1.0,
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1024.0,
        "Mi" => 1024f64.powi(2),
        "Gi" => 1024f64.powi(3),
        "Ti" => 1024f64.powi(4),
        "Pi" => 1024f64.powi(5),
        "Ei" => 1024f64.powi(6),
        exponent => format!("1{exponent}").parse().ok()?,
    };
    Some(number * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_compared_by_what_they_come_to() {
        for (more, less) in [
            ("1Gi", "1G"),
            ("2", "999m"),
            ("2k", "1e3"),
            ("1E3", "0.9k"),
            ("200Gi", "20Gi"),
        ] {
            assert!(exceeds(more, less) && !exceeds(less, more), "{more} and {less}");
        }
        for (one, other) in [
            ("0.1Gi", "107374182400m"),
            ("1k", "1E3"),
            ("0.3", "300m"),
            ("1Gi", "16GB"),
        ] {
            assert!(!exceeds(one, other) && !exceeds(other, one), "{one} and {other}");
        }
    }
}
