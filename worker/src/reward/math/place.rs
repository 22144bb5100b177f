//! Where a text states its answer.

use std::sync::LazyLock;

use regex::Regex;

/// LaTeX's boxes around an answer.
const BOXES: [&str; 2] = [r"\boxed", r"\fbox"];

/// What GSM8K has before the answer of a label.
const HASHES: &str = "####";

/// What stands before an answer that has no box. None only if the pattern were invalid, which a test excludes.
static MARKER: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"(?i)\banswers?\b[*_]*\s*(?::|(?:is|are)\b)|####").ok());

/// The answer of a response.
pub(super) fn of_response(text: &str) -> Option<&str> {
    match last_box(text) {
        Some(inside) => inside,
        None => behind_marker(text),
    }
}

/// The answer of a label, which may be nothing else.
pub(super) fn of_label(text: &str) -> &str {
    let behind = || text.rsplit_once(HASHES).map_or(text, |(_, answer)| answer);
    last_box(text).flatten().unwrap_or_else(behind)
}

/// What stands in the last box: None without a box, and Some(None) where it has no end. That is a text that was cut off, and what stands in
/// an earlier box was not its last word.
fn last_box(text: &str) -> Option<Option<&str>> {
    let ends = BOXES.iter().flat_map(|name| {
        let ends = text.match_indices(name).map(|(start, name)| start + name.len());
        // `\boxedeq` is another command.
        ends.filter(|end| !text[*end..].starts_with(|next: char| next.is_ascii_alphabetic()))
    });
    let rest = text[ends.max()?..].trim_start();
    match rest.strip_prefix('{') {
        Some(inside) => Some(closing_brace(inside).map(|end| &inside[..end])),
        // `\boxed 5`, as TeX allows for one token; models write more.
        None => Some(rest.split(|char: char| char.is_whitespace() || char == '$').next()),
    }
}

/// Where the brace is closed that was opened before `text`.
fn closing_brace(text: &str) -> Option<usize> {
    let (mut depth, mut escaped) = (0_usize, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'{' => depth += 1,
            b'}' if depth == 0 => return Some(at),
            b'}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// The sentence behind the last marker, at most to the end of its line.
fn behind_marker(text: &str) -> Option<&str> {
    let marker = MARKER.as_ref()?.find_iter(text).last()?;
    let dressing = |char: char| char.is_whitespace() || ":*_$".contains(char);
    let rest = text[marker.end()..].trim_start_matches(dressing);
    let line = rest.strip_prefix(r"\[").unwrap_or(rest).trim_start().lines().next()?;
    Some(line.split_once(". ").map_or(line, |(sentence, _)| sentence))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_box_has_the_answer_with_the_braces_inside_it() {
        for (response, answer) in [
            (r"So it is \boxed{\frac{3}{4}}.", Some(r"\frac{3}{4}")),
            (r"\boxed{1}, no: $\fbox{ 2 }$ {done}", Some(" 2 ")),
            (r"\boxed{\left\{1, 2\right.}", Some(r"\left\{1, 2\right.")),
            (r"$\boxed 12$.", Some("12")),
            (r"\boxed\frac{1}{2} it is", Some(r"\frac{1}{2}")),
            (r"\boxed {7} and \boxedeq{8}", Some("7")),
            (r"The answer is 3. \boxed{4}, so the answer is right.", Some("4")),
            (r"\boxed{é}", Some("é")),
            // Cut off: neither an earlier box nor a marker is the last word.
            (r"\boxed{1}, no, the answer is 2: \boxed{\frac{3}{4}", None),
        ] {
            assert_eq!(of_response(response), answer, "{response}");
        }
    }

    #[test]
    fn without_a_box_the_answer_stands_behind_the_last_marker() {
        for (response, answer) in [
            ("Answer: 33? No.\n\n**Answer:** $34$\nin 2 steps", Some("34$")),
            (
                "Final Answer: The final answer is $4$. I hope it is correct.",
                Some("4$"),
            ),
            ("The answer is:\n\\[\n\\frac{1}{2}\n\\]", Some(r"\frac{1}{2}")),
            ("The answers are 1 and 2", Some("1 and 2")),
            ("48 + 1024 = 1072\n#### 1,072", Some("1,072")),
            ("The answer is 0.5 of it", Some("0.5 of it")),
            ("I think it is 34", None),
            ("Answer:", None),
            ("", None),
        ] {
            assert_eq!(of_response(response), answer, "{response}");
        }
    }

    #[test]
    fn a_label_is_its_box_else_what_is_behind_its_hashes_else_itself() {
        let gsm8k = "She sold 48/2 = <<48/2=24>>24 clips.\n#### 1,072";
        for (label, answer) in [
            (r"Thus $x = \boxed{3}$.", "3"),
            (gsm8k, " 1,072"),
            (r"\frac{1}{2}", r"\frac{1}{2}"),
            ("the answer is 5", "the answer is 5"),
        ] {
            assert_eq!(of_label(label), answer, "{label}");
        }
    }
}
