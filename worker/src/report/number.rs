//! Numbers for people.

/// Three significant digits with no more than needed: `0.413`, `12.5`, `12.3k`, `3e-6`, `1.2e15`.
pub(super) fn short(value: f64) -> String {
    apart(value, f64::INFINITY)
}

/// As [`short`], and with as many digits as tell it from a number that is `step` away: `25.85k`, `−120.02`.
pub(super) fn apart(value: f64, step: f64) -> String {
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
    let of_unit = |unit: f64, least: usize| trim(value / unit, decimals(least, step / unit));
    let text = match size {
        0.0 => "0".into(),
        size if size >= 999_995_000_000.0 => scientific(value, step),
        size if size >= 999_500_000.0 => of_unit(1e9, 2) + "G",
        size if size >= 999_500.0 => of_unit(1e6, 2) + "M",
        size if size >= 10_000.0 => of_unit(1e3, 1) + "k",
        size if size >= 100.0 => of_unit(1.0, 0),
        size if size >= 10.0 => of_unit(1.0, 1),
        size if size >= 1.0 => of_unit(1.0, 2),
        size if size >= 0.001 => of_unit(1.0, (2.0 - size.log10().floor()) as usize),
        _ => scientific(value, step),
    };
    text.replace('-', "−").replace("e−", "e-")
}

/// A share as `34 %`, with a decimal below ten.
pub(super) fn percent(share: f64) -> String {
    percent_apart(share, f64::INFINITY)
}

/// As [`percent`], and with as many decimals as tell it from a share that is `step` away: `97.5 %`.
pub(super) fn percent_apart(share: f64, step: f64) -> String {
    let value = 100.0 * share;
    if !value.is_finite() {
        return short(value);
    }
    if value == 0.0 {
        return "0 %".into();
    }
    let decimals = decimals(usize::from(value.abs() < 9.95), 100.0 * step);
    format!("{value:.decimals$} %")
}

/// Decimals of which the last one counts a step whole, `least` of them at the least. An endless step asks for no more.
fn decimals(least: usize, step: f64) -> usize {
    const MOST: usize = 9;
    let is_whole = |decimals: &usize| {
        let scaled = step * 10f64.powi(*decimals as i32);
        (scaled - scaled.round()).abs() < 1e-3 * scaled
    };
    (least..=MOST).find(is_whole).unwrap_or(least)
}

fn scientific(value: f64, step: f64) -> String {
    let decimals = decimals(2, step / 10f64.powf(value.abs().log10().floor()));
    let text = format!("{value:.decimals$e}");
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
    fn numbers_beside_each_other_are_told_apart() {
        let cases = [
            (25_850.0, 50.0, "25.85k"),
            (26_000.0, 50.0, "26k"),
            (-120.02, 0.02, "−120.02"),
            (511.2, 0.2, "511.2"),
            (1024.0, 1.0, "1024"),
            (2.0005e-4, 5e-8, "2.0005e-4"),
            (1_000_250_000.0, 250_000.0, "1.00025G"),
            // What is short enough stays as it is.
            (0.975, 0.005, "0.975"),
            (12_500.0, 2500.0, "12.5k"),
            (0.3, 0.05 + 1e-12, "0.3"),
            (5.0, 0.0, "5"),
        ];
        for (value, step, text) in cases {
            assert_eq!(apart(value, step), text);
        }
        let shares = [(0.97, 0.005), (0.975, 0.005), (0.05, 0.025), (0.0, 0.025), (0.4, 0.2)];
        let texts = shares.map(|(share, step)| percent_apart(share, step));
        assert_eq!(texts, ["97.0 %", "97.5 %", "5.0 %", "0 %", "40 %"]);
    }

    #[test]
    fn a_share_is_a_percentage() {
        assert_eq!([0.0, 0.034, 0.34, 1.0].map(percent), ["0 %", "3.4 %", "34 %", "100 %"]);
    }
}
