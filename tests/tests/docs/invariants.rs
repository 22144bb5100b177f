//! Invariants of ARCHITECTURE.md that are seen in the source.

use std::collections::BTreeSet;

use crate::errors::code;

/// A file's lines without comments.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(|line| line.split("//").next().unwrap_or_default())
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
}

#[test]
fn what_decides_what_an_engine_computes_next_names_no_tensor() {
    let parts = ["sequence", "blocks", "scheduler"].map(|part| format!("worker/src/engine/{part}"));
    let is_of = |name: &str, part: &str| {
        let rest = name.strip_prefix(part);
        rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
    };
    for part in parts {
        let files: Vec<(String, String)> = code().into_iter().filter(|(name, _)| is_of(name, &part)).collect();
        assert!(!files.is_empty(), "no {part}");
        for (name, text) in files {
            let mut words = lines(&text).flat_map(words);
            let found = words.find(|word| *word == "tch" || word.to_lowercase().contains("tensor"));
            assert_eq!(found, None, "{name}");
        }
    }
}

/// Whether a line has the keyword, and be it before a line's end; `unsafe_code` and `'unsafe-inline'` are other words.
fn is_unsafe(line: &str) -> bool {
    line.match_indices("unsafe").any(|(at, word)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let begins = before.is_none_or(|c| !c.is_ascii_alphanumeric() && c != '_');
        begins && after.is_none_or(|c| c.is_whitespace() || c == '{' || c == '(')
    })
}

#[test]
fn unsafe_code_is_found_below_native_and_in_safetensors_only() {
    let has_some = |text: &str| lines(text).any(is_unsafe);
    let code = code();
    let found = code.iter().filter(|(_, text)| has_some(text));
    let (native, others): (BTreeSet<&str>, BTreeSet<&str>) = found
        .map(|(name, _)| name.as_str())
        .partition(|name| name.starts_with("worker/src/native/"));
    assert!(!native.is_empty());
    assert_eq!(others, BTreeSet::from(["worker/src/model/safetensors.rs"]));
}
