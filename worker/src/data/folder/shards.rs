//! Shards that count themselves, as `train-00000-of-00002.parquet` does, and whether all are there.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;

/// What is missing of the first set of shards that is not whole: one that was fetched in part reads like a whole one.
pub(super) fn missing(names: &[OsString]) -> Option<String> {
    let mut sets: BTreeMap<_, BTreeSet<usize>> = BTreeMap::new();
    for (number, set) in names.iter().filter_map(|name| shard(name.to_str()?)) {
        sets.entry(set).or_default().insert(number);
    }
    let ((set, count, rest), there) = sets.iter().find(|((_, count, _), there)| there.len() < *count)?;
    let there = there.len();
    Some(format!(
        "{there} of the {count} files {set}-*{rest} are here, and only these are read: fetch the others if they are wanted"
    ))
}

/// The number of a shard; and of its set the name, how many there are, and how their names end.
fn shard(name: &str) -> Option<(usize, (&str, usize, &str))> {
    let (before, after) = name.rsplit_once("-of-")?;
    let (set, number) = before.rsplit_once('-')?;
    let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
    let count = after[..digits].parse().ok()?;
    let rest = &name[before.len()..];
    Some((number.parse().ok()?, (set, count, rest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(names: &[&str]) -> Option<String> {
        let names: Vec<OsString> = names.iter().map(OsString::from).collect();
        missing(&names)
    }

    #[test]
    fn a_set_of_shards_of_which_some_are_missing_is_told_with_how_many_are_there() {
        let whole = ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"];
        assert_eq!(said(&whole), None);
        assert_eq!(
            said(&[&["a-00002-of-00003.parquet"][..], &whole[..]].concat()).unwrap(),
            "1 of the 3 files a-*-of-00003.parquet are here, and only these are read: fetch the others if they are wanted"
        );
        assert!(
            said(&whole[1..])
                .unwrap()
                .starts_with("1 of the 2 files train-*-of-00002.parquet")
        );
    }

    #[test]
    fn names_that_count_nothing_are_no_shards() {
        assert_eq!(
            said(&["a.jsonl", "best-of-5.jsonl", "one-x-of-9.jsonl", "part-1-of-.jsonl"]),
            None
        );
    }
}
