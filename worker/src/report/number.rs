//! Numbers for people.

/// Three significant digits with no more than needed: `0.413`, `12.5`, `12.3k`, `3e-6`, `1.2e15`.
pub(super) fn short(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        return if value.is_nan() {
            "NaN".into()
        } else if value > 0.0 {
            "∞".into()
        } else {
            "−∞".into()
        };
    }
    let text = match size {
        0.0 => "0".into(),
        size if size >= 999_995_000_000.0 => scientific(value),
        size if size >= 999_500_000.0 => trim(value / 1e9, 2) + "G",
        size if size >= 999_500.0 => trim(value / 1e6, 2) + "M",
        size if size >= 10_000.0 => trim(value / 1e3, 1) + "k",
        size if size >= 100.0 => trim(value, 0),
        size if size >= 10.0 => trim(value, 1),
        size if size >= 1.0 => trim(value, 2),
        size if size >= 0.001 => trim(value, (2.0 - size.log10().floor()) as usize),
        _ => scientific(value),
    };
    text.replace('-', "−").replace("e−", "e-")
}

/// A share as `34 %`, with a decimal below ten.
pub(super) fn percent(share: f64) -> String {
    match 100.0 * share {
        value if !value.is_finite() => short(value),
        value if value != 0.0 && value.abs() < 9.95 => format!("{value:.1} %"),
        value => format!("{value:.0} %"),
    }
}

fn scientific(value: f64) -> String {
    let text = format!("{value:.2e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    format!("{}e{exponent}", digits.trim_end_matches('0').trim_end_matches('.'))
}

fn trim(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits_and_no_idle_zero() {
        let cases = [
            (0.0, "0"),
            (0.41, "0.41"),
            (0.0130, "0.013"),
            (-1.5, "−1.5"),
            (123.4, "123"),
            (8123.0, "8123"),
            (12_345.0, "12.3k"),
            (2_500_000.0, "2.5M"),
            (3e-6, "3e-6"),
            (7.5e9, "7.5G"),
            (999_994_000_000.0, "999.99G"),
            (999_996_000_000.0, "1e12"),
            (1.152_9e17, "1.15e17"),
            (-2.5e300, "−2.5e300"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "−∞"),
        ];
        for (value, text) in cases {
            assert_eq!(short(value), text);
        }
    }

    #[test]
    fn a_share_is_a_percentage() {
        assert_eq!([0.0, 0.034, 0.34, 1.0].map(percent), ["0 %", "3.4 %", "34 %", "100 %"]);
    }
}
