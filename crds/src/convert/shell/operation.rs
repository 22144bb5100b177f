//! What `${NAME...}` does to a value that is known: `${NAME##*/}`, `${NAME%/}`, `${NAME//a/b}`, `${NAME,,}`, `${NAME[0]}` (the manual of
//! bash, section 3.5.3). Patterns are texts with `*` in them.

use regex::{NoExpand, Regex};

use super::{LONGEST, Word};

/// The words after the operation; None where it is another one, or not all of them are known.
pub(super) fn applied(words: &[Word], operation: &str) -> Option<Vec<Word>> {
    if words.iter().any(|word| word.unknown.is_some()) {
        return None;
    }
    if let Some(place) = operation.strip_prefix('[') {
        let index: usize = place.strip_suffix(']')?.parse().ok()?;
        return words.get(index).map(|word| vec![word.clone()]);
    }
    let one = |word: &Word| changed(&word.text, operation).map(|text| Word::new(text, None));
    words.iter().map(one).collect()
}

fn changed(text: &str, operation: &str) -> Option<String> {
    match operation {
        ",," => return Some(text.to_lowercase()),
        "^^" => return Some(text.to_uppercase()),
        _ => {}
    }
    if let Some(replacement) = operation.strip_prefix('/') {
        return replaced(text, replacement);
    }
    // Twice the sign cuts off the longest that the pattern is of, once the shortest.
    let kept = match (operation.strip_prefix("##"), operation.strip_prefix("%%")) {
        (Some(cut), _) => format!("{}(.*)", pattern(cut, ".*")?),
        (_, Some(cut)) => format!("(.*?){}", pattern(cut, ".*")?),
        _ => match (operation.strip_prefix('#'), operation.strip_prefix('%')) {
            (Some(cut), _) => format!("{}(.*)", pattern(cut, ".*?")?),
            (_, Some(cut)) => format!("(.*){}", pattern(cut, ".*")?),
            _ => return None,
        },
    };
    let kept = Regex::new(&format!("(?s)^{kept}$")).ok()?;
    let found = kept.captures(text).and_then(|found| found.get(1));
    Some(found.map_or(text, |kept| kept.as_str()).to_owned())
}

/// `PATTERN/TEXT`, and with a slash in front all of them. An empty pattern is nowhere.
fn replaced(text: &str, operation: &str) -> Option<String> {
    let all = operation.strip_prefix('/');
    let (old, new) = halves(all.unwrap_or(operation));
    // These stand for the text's begin and end.
    if old.starts_with(['#', '%']) {
        return None;
    }
    if old.is_empty() {
        return Some(text.to_owned());
    }
    let (old, new) = (Regex::new(&format!("(?s){}", pattern(old, ".*")?)).ok()?, plain(new)?);
    let most = if all.is_some() { usize::MAX } else { 1 };
    let added = old.find_iter(text).take(most).count().saturating_mul(new.len());
    // `replacen` takes 0 for all.
    let times = usize::from(all.is_none());
    (added <= LONGEST).then(|| old.replacen(text, times, NoExpand(&new)).into_owned())
}

/// What stands before the first slash that has no backslash, and what behind it.
fn halves(operation: &str) -> (&str, &str) {
    let mut escaped = false;
    for (at, c) in operation.char_indices() {
        if c == '/' && !escaped {
            return (&operation[..at], &operation[at + 1..]);
        }
        escaped = c == '\\' && !escaped;
    }
    (operation, "")
}

/// A pattern as a regular expression, with `any` for its stars. None for one with signs that are not read.
fn pattern(text: &str, any: &str) -> Option<String> {
    let mut expression = String::new();
    let mut letters = text.chars();
    while let Some(c) = letters.next() {
        match c {
            '*' => expression.push_str(any),
            '\\' => expression.push_str(&regex::escape(&letters.next()?.to_string())),
            '?' | '[' | '$' | '`' | '\'' | '"' => return None,
            c => expression.push_str(&regex::escape(&c.to_string())),
        }
    }
    Some(expression)
}

/// A text without its backslashes. None for one that would have to be expanded.
fn plain(text: &str) -> Option<String> {
    let mut plain = String::new();
    let mut letters = text.chars();
    while let Some(c) = letters.next() {
        match c {
            '\\' => plain.push(letters.next()?),
            '&' | '$' | '`' | '\'' | '"' => return None,
            c => plain.push(c),
        }
    }
    Some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_and_replaced_as_bash_does() {
        for (text, operation, expected) in [
            ("org/a/b", "##*/", "b"),
            ("org/a/b", "#*/", "a/b"),
            ("org/a/b", "%/*", "org/a"),
            ("org/a/b", "%%/*", "org"),
            ("/m/", "%/", "/m"),
            ("a.tar.gz", "%.gz", "a.tar"),
            ("a", "##*/", "a"),
            ("org/a/b", "//\\//-", "org-a-b"),
            ("org/a/b", "/\\//_", "org_a/b"),
            ("x.actor=1 x.actor=2", "//x.actor/critic", "critic=1 critic=2"),
            ("aXbX", "//X", "ab"),
            ("a$1", "/a/b", "b$1"),
            ("aé", "//é/e", "ae"),
            ("Qwen", ",,", "qwen"),
            ("a", "^^", "A"),
            ("a", "//", "a"),
        ] {
            assert_eq!(
                changed(text, operation).as_deref(),
                Some(expected),
                "{text} {operation}"
            );
        }
    }

    #[test]
    fn what_is_not_read_is_not_known() {
        for operation in ["/a?/b", "/[a]/b", "/#a/b", "/a/$B", "%$B", "@Q", ":1", "%\\", "[@]"] {
            assert_eq!(changed("a", operation), None, "{operation}");
        }
        assert_eq!(changed(&"a".repeat(LONGEST), &format!("//a/{}", "b".repeat(99))), None);
        let unknown = Word::new("", Some("$X".into()));
        assert_eq!(applied(&[unknown], ",,"), None);
        assert_eq!(applied(&[Word::new("a", None)], "[1]"), None);
    }
}
