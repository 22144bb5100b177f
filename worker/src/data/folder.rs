//! The data files of a folder: shards, in the order of their names.

mod shards;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use ppo_crds::spec::DataFormat;

/// What Python's `datasets` writes beside rows, and says of them.
const NO_ROWS: [&str; 4] = [
    "dataset_dict.json",
    "dataset_info.json",
    "dataset_infos.json",
    "state.json",
];

/// Words in the names of files to train on.
const TRAIN: [&str; 2] = ["train", "training"];
/// Words in the names of files to measure on.
const HELD_OUT: [&str; 11] = [
    "test",
    "testing",
    "val",
    "valid",
    "validation",
    "dev",
    "eval",
    "evaluation",
    "heldout",
    "held",
    "holdout",
];

/// The data files that lie directly in a folder, in the byte order of their names.
///
/// # Errors
/// A folder that cannot be read, has none, or has such as are not meant to be read as one: with what lies there.
pub(super) fn data_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut names = names(folder).context("cannot read the folder")?;
    names.sort();
    let is_hidden = |name: &OsString| name.as_encoded_bytes().starts_with(b".");
    names.retain(|name| !is_hidden(name));
    let (files, others): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| is_data(folder, name));
    check(&files, &others)?;
    tracing::info!(
        folder = %folder.display(),
        left_out = (!others.is_empty()).then(|| listed(&others)),
        "{} files of rows: {}",
        files.len(),
        listed(&files)
    );
    if let Some(words) = shards::missing(&files) {
        tracing::warn!(folder = %folder.display(), "{words}");
    }
    Ok(files.into_iter().map(|name| folder.join(name)).collect())
}

fn names(folder: &Path) -> std::io::Result<Vec<OsString>> {
    std::fs::read_dir(folder)?
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect()
}

/// Whether it is read. A link to nowhere is, so that it is missed by its name.
fn is_data(folder: &Path, name: &OsStr) -> bool {
    let has_rows = !NO_ROWS.iter().any(|known| name == OsStr::new(known));
    let is_other = || std::fs::metadata(folder.join(name)).is_ok_and(|found| !found.is_file());
    has_rows && DataFormat::of(Path::new(name)).is_some() && !is_other()
}

/// Whether the files are meant to be read as one.
fn check(files: &[OsString], others: &[OsString]) -> Result<()> {
    let Some(first) = files.first() else {
        let there = if others.is_empty() {
            "nothing".to_owned()
        } else {
            listed(others)
        };
        let is_arrow = |name: &OsString| Path::new(name).extension() == Some(OsStr::new("arrow"));
        let wanted = match others.iter().any(is_arrow) {
            // Of `save_to_disk`, or of the cache.
            true => "; `datasets` writes rows that are read here with .to_parquet(FILE) or .to_json(FILE)",
            false => "",
        };
        bail!(
            "no {} file lies directly in this folder; it has {there}{wanted}",
            DataFormat::EXTENSIONS
        );
    };
    let format = |name: &OsString| DataFormat::of(Path::new(name));
    if let Some(other) = files.iter().find(|name| format(name) != format(first)) {
        bail!(
            "a folder is read whole, and the files of this one have two formats, as {} and {}: {APART}",
            first.display(),
            other.display()
        );
    }
    let with = |words: &[&str], without: &[&str]| {
        let fits = |name: &&OsString| has_word(name, words) && !has_word(name, without);
        files.iter().find(fits)
    };
    if let (Some(train), Some(held_out)) = (with(&TRAIN, &HELD_OUT), with(&HELD_OUT, &TRAIN)) {
        bail!(
            "a folder is read whole, and this one has rows to train on and held-out ones, by the names of {} and {}: {APART}",
            train.display(),
            held_out.display()
        );
    }
    Ok(())
}

/// What to do with files of one folder that are not read as one.
const APART: &str = "give each kind a folder of its own, or name the files in place of their folder";

fn has_word(name: &OsStr, words: &[&str]) -> bool {
    let name = name.to_string_lossy().to_ascii_lowercase();
    name.split(|c: char| !c.is_ascii_alphanumeric())
        .any(|word| words.contains(&word))
}

/// A few names, and how many more there are.
fn listed(names: &[OsString]) -> String {
    const SHOWN: usize = 4;
    let shown = names.iter().take(SHOWN).map(|name| name.display().to_string());
    let shown = shown.collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with these files; a name that ends with a slash is a folder.
    fn folder(names: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in names {
            let path = folder.path().join(name);
            match name.strip_suffix('/') {
                Some(_) => std::fs::create_dir(path).unwrap(),
                None => std::fs::write(path, "").unwrap(),
            }
        }
        folder
    }

    fn files(names: &[&str]) -> Result<Vec<String>> {
        let folder = folder(names);
        let found = data_files(folder.path())?;
        let below = |path: PathBuf| path.strip_prefix(folder.path()).unwrap().display().to_string();
        Ok(found.into_iter().map(below).collect())
    }

    fn refused(names: &[&str]) -> String {
        files(names).unwrap_err().to_string()
    }

    #[test]
    fn files_come_in_the_byte_order_of_their_names() {
        let found = files(&["b.jsonl", "a10.jsonl", "a9.ndjson", "B.jsonl"]).unwrap();
        assert_eq!(found, ["B.jsonl", "a10.jsonl", "a9.ndjson", "b.jsonl"]);
    }

    #[test]
    fn what_lies_beside_the_data_of_a_hub_is_left_out() {
        let beside = [
            "README.md",
            ".gitattributes",
            ".a.parquet",
            "dataset_infos.json",
            "b.parquet/",
        ];
        let found = files(&[&["a.parquet"][..], &beside[..]].concat()).unwrap();
        assert_eq!(found, ["a.parquet"]);
    }

    #[test]
    fn two_formats_are_refused_with_a_file_of_each() {
        let words = refused(&["a.jsonl", "b.jsonl", "c.parquet"]);
        assert!(
            words.contains("as a.jsonl and c.parquet: give each kind a folder of its own"),
            "{words}"
        );
        assert!(refused(&["a.json", "b.jsonl"]).contains("as a.json and b.jsonl"));
    }

    #[test]
    fn held_out_files_beside_those_to_train_on_are_refused_with_one_of_each() {
        for (train, held_out) in [
            ("train-00000-of-00002.parquet", "test-00000-of-00001.parquet"),
            ("gsm8k_train.parquet", "gsm8k_validation.parquet"),
            ("train.jsonl", "heldout.jsonl"),
            ("train.jsonl", "held-out.jsonl"),
        ] {
            let words = refused(&[held_out, train]);
            assert!(
                words.contains(&format!("by the names of {train} and {held_out}")),
                "{words}"
            );
        }
        files(&["test-a.jsonl", "test-b.jsonl", "latest.jsonl"]).unwrap();
        files(&["train.jsonl", "trainable_test_train.jsonl", "latest.jsonl"]).unwrap();
    }

    #[test]
    fn a_folder_without_data_is_refused_with_what_it_has_and_what_was_looked_for() {
        assert_eq!(
            refused(&[]),
            "no .jsonl, .ndjson, .json or .parquet file lies directly in this folder; it has nothing"
        );
        let words = refused(&["a.csv", "b.txt", "data/", "e", "f", "g"]);
        assert!(words.ends_with("it has a.csv, b.txt, data, e and 2 more"), "{words}");
    }

    #[test]
    fn a_data_set_that_was_saved_to_disk_is_refused_with_how_to_write_its_rows() {
        let words = refused(&["data-00000-of-00001.arrow", "dataset_info.json", "state.json"]);
        let wanted = "it has data-00000-of-00001.arrow, dataset_info.json, state.json; `datasets` writes rows that are read here \
                      with .to_parquet(FILE) or .to_json(FILE)";
        assert!(words.ends_with(wanted), "{words}");
    }

    #[test]
    fn a_link_to_a_file_is_read_and_one_to_nowhere_is_not_passed_over() {
        let folder = folder(&["a.jsonl"]);
        for (target, name) in [("a.jsonl", "b.jsonl"), ("nowhere", "c.jsonl")] {
            std::os::unix::fs::symlink(target, folder.path().join(name)).unwrap();
        }
        assert_eq!(data_files(folder.path()).unwrap().len(), 3);
    }
}
