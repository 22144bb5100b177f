//! Regular expressions in a manifest. The operator compiles those of everybody who may write one, so what they may cost has a limit.

use regex::{Regex, RegexBuilder};

/// Bytes of a compiled expression: far above what an ordinary one takes. A few characters can ask for far more (`\w{300}`), and for
/// a tenth of a second to compile.
const LARGEST: usize = 4 << 20;

/// Compiles `pattern`, in the syntax of Rust's regex.
///
/// # Errors
/// Why it cannot be used, in words.
pub fn compile(pattern: &str) -> Result<Regex, String> {
    let compiled = RegexBuilder::new(pattern).size_limit(LARGEST).build();
    compiled.map_err(|error| match error {
        regex::Error::CompiledTooBig(limit) => {
            format!("it would take more than {limit} bytes: repeat less in it ({{n}}), in {pattern:?}")
        }
        // The last line of the crate's drawing is the reason in words.
        error => {
            let drawing = error.to_string();
            let reason = drawing.lines().last().unwrap_or_default();
            let reason = reason.trim_start_matches("error: ");
            format!("not a regular expression: {reason}, in {pattern:?}")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_that_would_be_large_is_refused_and_an_ordinary_one_is_not() {
        let refused = compile(r"\w{300}").unwrap_err();
        assert!(
            refused.contains("repeat less") && refused.contains(r"\\w{300}"),
            "{refused}"
        );
        for ordinary in [
            r"(?i)answer:\s*(-?\d+(?:[.,]\d+)?)",
            r"<think>[\s\S]{0,2000}</think>",
            r"^\p{L}{1,20}$",
        ] {
            compile(ordinary).unwrap();
        }
        let refused = compile("(a").unwrap_err();
        assert_eq!(refused, "not a regular expression: unclosed group, in \"(a\"");
    }
}
