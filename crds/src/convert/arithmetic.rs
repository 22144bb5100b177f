//! Whole numbers in a shell's `$((...))`: variables, `+ - * / %`, signs and parentheses.

/// The value of a sum; None where it is none, or too large.
pub fn evaluate(text: &str, variable: &dyn Fn(&str) -> Option<i64>) -> Option<i64> {
    let mut sum = Sum {
        text,
        variable,
        depth: 0,
    };
    let value = sum.terms()?;
    sum.text.trim().is_empty().then_some(value)
}

/// A decimal number. None for others, as `010`, which is 8 to a shell.
pub fn number(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let is_decimal = digits == "0" || !digits.starts_with('0');
    text.parse().ok().filter(|_| is_decimal)
}

/// Deeper parentheses are nobody's sum.
const DEEPEST: usize = 32;

struct Sum<'a> {
    text: &'a str,
    variable: &'a dyn Fn(&str) -> Option<i64>,
    depth: usize,
}

impl Sum<'_> {
    fn next_if(&mut self, wanted: &[char]) -> Option<char> {
        self.text = self.text.trim_start();
        let first = self.text.chars().next().filter(|c| wanted.contains(c))?;
        self.text = &self.text[first.len_utf8()..];
        Some(first)
    }

    fn terms(&mut self) -> Option<i64> {
        let mut value = self.factors()?;
        while let Some(operator) = self.next_if(&['+', '-']) {
            let term = self.factors()?;
            value = match operator {
                '+' => value.checked_add(term)?,
                _ => value.checked_sub(term)?,
            };
        }
        Some(value)
    }

    fn factors(&mut self) -> Option<i64> {
        let mut value = self.atom()?;
        while let Some(operator) = self.next_if(&['*', '/', '%']) {
            let factor = self.atom()?;
            value = match operator {
                '*' => value.checked_mul(factor)?,
                '/' => value.checked_div(factor)?,
                _ => value.checked_rem(factor)?,
            };
        }
        Some(value)
    }

    /// With one sign at the most: two count a variable up or down (`++n`).
    fn atom(&mut self) -> Option<i64> {
        let sign = self.next_if(&['-', '+']);
        let value = self.unsigned()?;
        match sign {
            Some('-') => value.checked_neg(),
            _ => Some(value),
        }
    }

    fn unsigned(&mut self) -> Option<i64> {
        if self.next_if(&['(']).is_some() {
            self.depth += 1;
            let value = (self.depth <= DEEPEST).then(|| self.terms())??;
            self.depth -= 1;
            self.next_if(&[')'])?;
            return Some(value);
        }
        let end = self
            .text
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(self.text.len());
        let (word, rest) = self.text.split_at(end);
        self.text = rest;
        number(word).or_else(|| (self.variable)(word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Option<i64> {
        evaluate(text, &|name| (name == "n").then_some(5))
    }

    #[test]
    fn sums_are_worked_out_as_a_shell_does() {
        assert_eq!(of("1024 * 2"), Some(2048));
        assert_eq!(of("(n + n) * 3 - 7 / 2 % 2"), Some(29));
        assert_eq!(of("2 * (3 + 4) * n"), Some(70));
        assert_eq!(of("-2 + n * -(1 + 1) - -n + 0"), Some(-7));
    }

    #[test]
    fn what_is_no_sum_of_known_numbers_is_none() {
        for text in [
            "",
            "m",
            "1 +",
            "(1",
            "1 / 0",
            "9223372036854775807 + 1",
            "1 2",
            "é",
            "n > 3",
            "010 + 1",
            "0x10",
            "++n",
            "n++",
            "--n - 1",
        ] {
            assert_eq!(of(text), None, "{text}");
        }
        assert_eq!(of(&"(".repeat(100_000)), None);
    }
}
