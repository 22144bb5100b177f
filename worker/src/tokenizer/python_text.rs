//! Python's methods of texts, which chat templates call: those that minijinja-contrib has, and those that it lacks.

use minijinja::value::from_args;
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

/// Calls `method` of `value`.
///
/// # Errors
/// When Python's own would refuse the arguments, or there is no such method.
pub(super) fn method(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let own = value.as_str().map(|text| of_text(text, method, args));
    match own.transpose()?.flatten() {
        Some(result) => Ok(result),
        None => unknown_method_callback(state, value, method, args),
    }
}

fn of_text(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let result = match method {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "partition" => {
            let separator = separator(args)?;
            let parts = text.split_once(separator);
            list(&parts.map_or([text, "", ""], |(before, after)| [before, separator, after]))
        }
        "rpartition" => {
            let separator = separator(args)?;
            let parts = text.rsplit_once(separator);
            list(&parts.map_or(["", "", text], |(before, after)| [before, separator, after]))
        }
        "rsplit" => {
            let (separator, most): (Option<&str>, Option<i64>) = from_args(args)?;
            // A negative number is none.
            let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
            let mut parts: Vec<&str> = match separator {
                Some("") => return Err(empty_separator()),
                Some(separator) => text.rsplitn(most.saturating_add(1), separator).collect(),
                None => words_from_the_end(text, most),
            };
            parts.reverse();
            list(&parts)
        }
        _ => return Ok(None),
    };
    Ok(Some(result))
}

fn separator(args: &[Value]) -> Result<&str, Error> {
    let (separator,): (&str,) = from_args(args)?;
    match separator {
        "" => Err(empty_separator()),
        separator => Ok(separator),
    }
}

fn empty_separator() -> Error {
    Error::new(ErrorKind::InvalidOperation, "empty separator")
}

fn list(parts: &[&str]) -> Value {
    parts.iter().map(|part| Value::from(*part)).collect()
}

/// The words of a text, the last first: after `most` of them what is left is one, with the white space before it and inside.
fn words_from_the_end(text: &str, most: usize) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text.trim_end();
    while !rest.is_empty() {
        match rest.rsplit_once(char::is_whitespace) {
            Some((before, word)) if words.len() < most => {
                words.push(word);
                rest = before.trim_end();
            }
            _ => {
                words.push(rest);
                break;
            }
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use minijinja::Environment;

    /// What an expression gives, as JSON.
    fn given(expression: &str) -> String {
        let mut environment = Environment::new();
        environment.set_unknown_method_callback(super::method);
        let result = environment.compile_expression(expression).unwrap().eval(());
        result.map_or_else(
            |error| error.to_string(),
            |value| serde_json::to_string(&value).unwrap(),
        )
    }

    #[test]
    fn texts_are_cut_as_python_cuts_them() {
        for (expression, wanted) in [
            ("'<think>a'.removeprefix('<think>')", r#""a""#),
            ("'a'.removeprefix('b')", r#""a""#),
            ("'a.json'.removesuffix('.json')", r#""a""#),
            ("'a=b=c'.partition('=')", r#"["a","=","b=c"]"#),
            ("'abc'.partition('=')", r#"["abc","",""]"#),
            ("'a=b=c'.rpartition('=')", r#"["a=b","=","c"]"#),
            ("'abc'.rpartition('=')", r#"["","","abc"]"#),
            ("'a=b=c'.rsplit('=', 1)", r#"["a=b","c"]"#),
            ("'a=b=c'.rsplit('=')", r#"["a","b","c"]"#),
            ("'a=b=c'.rsplit('=', -1)", r#"["a","b","c"]"#),
            ("'a=b=c'.rsplit('=', 0)", r#"["a=b=c"]"#),
            ("'  a b   c '.rsplit()", r#"["a","b","c"]"#),
            ("'  a b   c '.rsplit(none, 1)", r#"["  a b","c"]"#),
            ("' a '.rsplit(none, 0)", r#"[" a"]"#),
            ("' '.rsplit()", "[]"),
            ("''.rsplit('=')", r#"[""]"#),
            // One of minijinja-contrib's.
            ("'a=b'.split('=')", r#"["a","b"]"#),
        ] {
            assert_eq!(given(expression), wanted, "{expression}");
        }
        for wrong in ["'a'.partition('')", "'a'.rsplit('')"] {
            assert!(given(wrong).contains("empty separator"), "{wrong}");
        }
        assert!(given("'a'.nosuch()").contains("nosuch"));
    }
}
