//! Where a prompt stands in the text of a request, so that the rest is the response.

use std::ops::Range;

/// Bytes without white space that are left of a prompt at the least: fewer begin a text that has nothing of the prompt, by chance.
const LEAST_LEFT: usize = 16;

/// Where `query` has `prompt`; the response follows. A trainer may decode BOS or padding in front of it, and other white space than it
/// has: decoders take it from the ends of a text and from before a comma, and add it beside special tokens. Of a prompt that was cut on
/// the left to a length there is the end, behind nothing but `fillers`.
pub(super) fn place_of_prompt(query: &str, prompt: &str, fillers: &[String]) -> Option<Range<usize>> {
    if let Some(start) = query.find(prompt) {
        return Some(start..start + prompt.len());
    }
    let (bare, wanted) = (without_white(query), without_white(prompt));
    let found = match bare.find(&wanted) {
        Some(start) => start..start + wanted.len(),
        None => place_of_end(&bare, &wanted, fillers)?,
    };
    let (start, end) = (place(query, found.start), place(query, found.end));
    // What the prompt ends with is not the response's.
    let tail = &prompt[prompt.trim_end().len()..];
    let same = tail
        .chars()
        .zip(query[end..].chars())
        .take_while(|(own, other)| own == other);
    let own: usize = same.map(|(own, _)| own.len_utf8()).sum();
    Some(start..end + own)
}

fn without_white(text: &str) -> String {
    text.chars().filter(|char| !char.is_whitespace()).collect()
}

/// Where the first `bytes` of `text` without its white space end in it.
fn place(text: &str, bytes: usize) -> usize {
    let (mut left, mut end) = (bytes, 0);
    for (at, char) in text.char_indices().filter(|(_, char)| !char.is_whitespace()) {
        if left == 0 {
            break;
        }
        left = left.saturating_sub(char.len_utf8());
        end = at + char.len_utf8();
    }
    end
}

/// Where `query` has the longest end of `prompt` that it begins with.
fn place_of_end(query: &str, prompt: &str, fillers: &[String]) -> Option<Range<usize>> {
    let fillers = || fillers.iter().filter(|filler| !filler.is_empty());
    let mut rest = query;
    while let Some(shorter) = fillers().find_map(|filler| rest.strip_prefix(filler.as_str())) {
        rest = shorter;
    }
    let start = query.len() - rest.len();
    let length = overlap(prompt.as_bytes(), rest.as_bytes());
    (length >= LEAST_LEFT).then(|| start..start + length)
}

/// Length of the longest end of `text` that is a beginning of `head`, in time linear in both (Knuth, Morris, Pratt): a request may be long,
/// and of one letter.
fn overlap(text: &[u8], head: &[u8]) -> usize {
    let head = &head[..head.len().min(text.len())];
    // Of each beginning of the head the longest shorter one that ends it.
    let mut borders = vec![0; head.len()];
    let mut matched = 0;
    for (at, byte) in head.iter().enumerate().skip(1) {
        matched = longer(head, &borders, matched, *byte);
        borders[at] = matched;
    }
    let longer = |matched, byte: &u8| longer(head, &borders, matched, *byte);
    text.iter().fold(0, longer)
}

/// Length of the beginning of `head` that ends with `byte`, after one of `matched` bytes.
fn longer(head: &[u8], borders: &[usize], mut matched: usize, byte: u8) -> usize {
    loop {
        if head.get(matched) == Some(&byte) {
            return matched + 1;
        }
        let Some(last) = matched.checked_sub(1) else { return 0 };
        matched = borders[last];
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What is read as the prompt, and as the response.
    fn split<'a>(query: &'a str, prompt: &str) -> Option<(&'a str, &'a str)> {
        let fillers = ["<s>".to_owned(), "<pad>".to_owned()];
        let place = place_of_prompt(query, prompt, &fillers)?;
        Some((&query[place.clone()], &query[place.end..]))
    }

    #[test]
    fn a_prompt_is_found_behind_what_fills_a_batch() {
        for (query, prompt, wanted) in [
            ("2+2? 4", "2+2?", ("2+2?", " 4")),
            ("<pad><s>2+2?4", "2+2?", ("2+2?", "4")),
            ("4", "", ("", "4")),
        ] {
            assert_eq!(split(query, prompt), Some(wanted), "{query:?} {prompt:?}");
        }
        assert_eq!(split("4", "2+2?"), None);
        assert_eq!(split("", "2+2?"), None);
    }

    #[test]
    fn a_prompt_is_found_whose_white_space_was_decoded_otherwise() {
        for (query, prompt, wanted) in [
            ("<s> [Q] Hi 4", "<s>[Q] Hi", ("<s> [Q] Hi", " 4")),
            ("Hi, you 4", " Hi , you", ("Hi, you", " 4")),
            // The prompt's own white space is no part of the response, and no more of it is the prompt's.
            (" Q:\n\n4", "Q :\n", (" Q:\n", "\n4")),
            ("Q:4", "Q: ", ("Q:", "4")),
            ("é\u{3000}ü: 4", "éü:", ("é\u{3000}ü:", " 4")),
        ] {
            assert_eq!(split(query, prompt), Some(wanted), "{query:?} {prompt:?}");
        }
    }

    #[test]
    fn a_prompt_that_was_cut_on_the_left_is_found_by_its_end() {
        let prompt = "Here are nine numbers: 1 2 3. Add up the last two:\n";
        for filled in ["", "<s> ", "<pad><pad><s>"] {
            let query = format!("{filled}bers: 1 2 3. Add up the last two:\n5");
            let (_, response) = split(&query, prompt).unwrap();
            assert_eq!(response, "5", "{query:?}");
        }
        // So little may be chance, or another text of the same ending.
        assert_eq!(split("last two: 5", prompt), None);
        assert_eq!(split("Subtract. Add up the last two: 5", prompt), None);
    }

    proptest! {
        #[test]
        fn an_overlap_is_the_longest_one(text in "[ab]{0,12}", head in "[ab]{0,12}") {
            let most = text.len().min(head.len());
            let wanted = (0..=most).rev().find(|length| head.starts_with(&text[text.len() - length..]));
            prop_assert_eq!(Some(overlap(text.as_bytes(), head.as_bytes())), wanted);
        }
    }
}
