//! Whether a command succeeds, where that can be told without running it: tests of texts and numbers, and what every script
//! counts on.

use regex::Regex;

use super::Word;

/// True, false, or not known.
pub(super) type Truth = Option<bool>;

/// Commands that a script goes on after as if they could not fail.
const COUNTED_ON: [&str; 13] = [
    ":", ".", "true", "cd", "source", "set", "echo", "printf", "mkdir", "export", "ulimit", "sleep", "shift",
];

/// True where both are, false where one is not.
pub(super) fn and(left: Truth, right: Truth) -> Truth {
    match (left, right) {
        (Some(false), _) | (_, Some(false)) => Some(false),
        (Some(true), Some(true)) => Some(true),
        _ => None,
    }
}

/// False where both are, true where one is not.
pub(super) fn or(left: Truth, right: Truth) -> Truth {
    not(and(not(left), not(right)))
}

/// The other.
pub(super) fn not(truth: Truth) -> Truth {
    truth.map(|truth| !truth)
}

/// Whether a command succeeds. `is_set` says which variables the script sets.
pub(super) fn of_command(words: &[Word], is_set: &dyn Fn(&str) -> bool) -> Truth {
    let negations = words.iter().take_while(|word| word.text == "!").count();
    let (first, rest) = words[negations..].split_first()?;
    let truth = match (first.text.as_str(), rest.split_last()) {
        ("test", _) => of_test(rest, is_set),
        ("[", Some((last, inside))) if last.text == "]" => of_test(inside, is_set),
        ("[[", Some((last, inside))) if last.text == "]]" => of_tests(inside, is_set),
        ("false", _) => Some(false),
        (first, _) => COUNTED_ON.contains(&first).then_some(true),
    };
    truth.map(|truth| truth != (negations % 2 == 1))
}

/// The first variable that is wanted for knowing what a command does.
pub(super) fn wanted(words: &[Word]) -> Option<String> {
    let mut unknown = words.iter().filter_map(|word| word.unknown.as_deref());
    unknown.find(|what| variable(what).is_some()).map(str::to_owned)
}

/// The name of a variable that is written so.
pub(super) fn variable(what: &str) -> Option<&str> {
    let name = what.strip_prefix('$')?;
    let letters = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    (letters && !name.is_empty()).then_some(name)
}

/// A word's text, where it is known. A variable that nobody sets is empty.
pub(super) fn known<'a>(word: &'a Word, is_set: &dyn Fn(&str) -> bool) -> Option<&'a str> {
    match word.unknown.as_deref() {
        None => Some(word.text.as_str()).filter(|text| !text.contains('$')),
        Some(what) => {
            let unset = variable(what).is_some_and(|name| !is_set(name));
            (unset && word.text.is_empty()).then_some("")
        }
    }
}

/// What stands between `[[` and `]]`: tests with `&&`, which binds closer, and `||` between them.
fn of_tests(words: &[Word], is_set: &dyn Fn(&str) -> bool) -> Truth {
    if words.iter().any(|word| word.text == "(") {
        return None;
    }
    let all = |words: &[Word]| {
        let tests = words.split(|word| word.text == "&&");
        tests.map(|test| of_test(test, is_set)).reduce(and).flatten()
    };
    words.split(|word| word.text == "||").map(all).reduce(or).flatten()
}

fn of_test(words: &[Word], is_set: &dyn Fn(&str) -> bool) -> Truth {
    let texts: Vec<&str> = words.iter().map(|word| known(word, is_set)).collect::<Option<_>>()?;
    let negated = texts.len() > 1 && texts[0] == "!";
    let truth = match &texts[usize::from(negated)..] {
        [text] => Some(!text.is_empty()),
        ["-z", text] => Some(text.is_empty()),
        ["-n", text] => Some(!text.is_empty()),
        [text, "=" | "==", pattern] => matches(pattern, text),
        [text, "!=", pattern] => not(matches(pattern, text)),
        [left, operator, right] => compared(left.parse().ok()?, operator, right.parse().ok()?),
        _ => None,
    };
    truth.map(|truth| truth != negated)
}

fn compared(left: i64, operator: &str, right: i64) -> Truth {
    Some(match operator {
        "-eq" => left == right,
        "-ne" => left != right,
        "-lt" => left < right,
        "-le" => left <= right,
        "-gt" => left > right,
        "-ge" => left >= right,
        _ => return None,
    })
}

/// Whether a pattern is that of a text. `*` is read, other signs are not.
pub(super) fn matches(pattern: &str, text: &str) -> Truth {
    if pattern.contains(['?', '[', '\\']) {
        return None;
    }
    let parts: Vec<String> = pattern.split('*').map(regex::escape).collect();
    let whole = Regex::new(&format!("(?s)^{}$", parts.join(".*"))).ok()?;
    Some(whole.is_match(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn truth(command: &str) -> Truth {
        let words: Vec<Word> = command
            .split(' ')
            .map(|text| match text.strip_prefix('?') {
                Some(name) => Word::new("", Some(format!("${name}"))),
                None => Word::new(text.replace('_', ""), None),
            })
            .collect();
        of_command(&words, &|name| name == "SET")
    }

    #[test]
    fn tests_of_texts_and_numbers_are_told() {
        for command in [
            "[ -z _ ]",
            "[ -n a ]",
            "[ a ]",
            "[ a = a ]",
            "[[ abc == a*c ]]",
            "[[ ! a == b* ]]",
            "test a != b",
            "! [ a = b ]",
            "[ 8 -gt 1 ]",
            "[ 2 -le 2 ]",
            "true",
            "! false",
            "cd /x",
        ] {
            assert_eq!(truth(command), Some(true), "{command}");
        }
        for command in [
            "[ -n _ ]",
            "[ a = b ]",
            "[ _ ]",
            "[[ abc == a*d ]]",
            "[ 1 -eq 2 ]",
            "! true",
        ] {
            assert_eq!(truth(command), Some(false), "{command}");
        }
    }

    #[test]
    fn what_would_have_to_be_run_is_not_told() {
        for command in [
            "[ -f /x ]",
            "[ $? -eq 0 ]",
            "[ a = a",
            "[[ a =~ b ]]",
            "[[ abc == a[b]c ]]",
            "nvidia-smi",
            "[ a -gt 1 ]",
            "[ ?SET = a ]",
            "[ -z ?SET ]",
        ] {
            assert_eq!(truth(command), None, "{command}");
        }
    }

    #[test]
    fn a_variable_that_nobody_sets_is_empty() {
        assert_eq!(truth("[ -z ?HERE ]"), Some(true));
        assert_eq!(truth("[ ?HERE = a ]"), Some(false));
        assert_eq!(truth("[ -z ?(date) ]"), None);
    }

    #[test]
    fn a_pattern_with_stars_is_matched_in_order() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("a*", "a", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "acb", false),
            ("*b", "ab", true),
            ("ab*ba", "aba", false),
        ] {
            assert_eq!(matches(pattern, text), Some(expected), "{pattern} {text}");
        }
    }
}
