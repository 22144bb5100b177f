//! Rows of several files: those of a folder, and those of a list.

use super::*;

/// A folder with files of these names and texts.
fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

fn refused(files: &[(&str, &str)]) -> String {
    let folder = folder(files);
    format!(
        "{:#}",
        PromptSet::load(&wanted(folder.path()), &tokenizer()).unwrap_err()
    )
}

const ONE: &str = r#"{"prompt": "one", "answer": 1}"#;
const TWO: &str = r#"{"prompt": "two", "answer": 2}"#;
const THREE: &str = r#"{"prompt": "three", "answer": 3}"#;

#[test]
fn a_folder_of_shards_gives_the_prompts_of_the_file_that_they_were_cut_from() {
    let of_shards = folder(&[("b.jsonl", THREE), ("a.jsonl", &format!("{ONE}\n{TWO}\n"))]);
    let of_one = folder(&[("all.jsonl", &[ONE, TWO, THREE].join("\n"))]);
    let load = |path: &Path| {
        let mut wanted = wanted(path);
        wanted.label_field = Some("answer".into());
        PromptSet::load(&wanted, &tokenizer()).unwrap()
    };
    let (shards, mut whole) = (load(of_shards.path()), load(&of_one.path().join("all.jsonl")));
    let place = |name: &str, at: At| at.in_file(&of_shards.path().join(name).display().to_string().into());
    let places = [
        place("a.jsonl", At::line(0)),
        place("a.jsonl", At::line(1)),
        place("b.jsonl", At::line(0)),
    ];
    for (prompt, place) in whole.prompts.iter_mut().zip(places) {
        prompt.place = place;
    }
    assert_eq!(shards, whole);
}

#[test]
fn a_folder_of_two_parquet_files_has_the_rows_of_both() {
    let folder = folder(&[("README.md", "# Rows")]);
    for (compression, name) in [
        ("snappy", "train-00000-of-00002.parquet"),
        ("zstd", "train-00001-of-00002.parquet"),
    ] {
        let fixture = fixtures().join(format!("prompts/{compression}.parquet"));
        std::fs::copy(fixture, folder.path().join(name)).unwrap();
    }
    let values = |path: &Path| -> Vec<Value> {
        let rows = read_rows(path).unwrap();
        rows.into_iter().map(|row| row.value).collect()
    };
    let of_one = values(&fixtures().join("prompts/none.parquet"));
    assert_eq!(values(folder.path()), [of_one.clone(), of_one].concat());
}

#[test]
fn a_bad_row_of_the_second_file_is_named_with_file_and_line() {
    for (row, words) in [
        (r#"{"prompt": 3}"#, r#"b.jsonl: line 2: field "prompt" is the number 3"#),
        ("{", "b.jsonl: line 2: not JSON"),
    ] {
        let error = refused(&[("a.jsonl", ONE), ("b.jsonl", &format!("{TWO}\n{row}"))]);
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn a_folder_that_is_not_to_be_read_as_one_is_named_with_what_is_wrong() {
    for (files, words) in [
        (&[("a.jsonl", ONE), ("b.parquet", "")][..], "as a.jsonl and b.parquet"),
        (
            &[("train.jsonl", ONE), ("test.jsonl", TWO)],
            "train.jsonl and test.jsonl",
        ),
        (
            &[("README.md", "")],
            "no .jsonl, .ndjson, .json or .parquet file lies directly in this folder",
        ),
    ] {
        let error = refused(files);
        let folder = std::env::temp_dir();
        assert!(
            error.starts_with(&folder.display().to_string()) && error.contains(words),
            "{error}"
        );
    }
    let missing = format!("{:#}", read_rows(Path::new("/nowhere/train")).unwrap_err());
    assert!(
        missing.starts_with("/nowhere/train: cannot read the file or folder"),
        "{missing}"
    );
}

#[test]
fn files_and_folders_of_a_list_are_read_in_its_order_and_as_often_as_they_are_named() {
    let folder = folder(&[("a.jsonl", ONE), ("b.jsonl", TWO)]);
    let apart = tempfile::tempdir().unwrap();
    let file = apart.path().join("c.json");
    std::fs::write(&file, format!("[{THREE}]")).unwrap();
    let of = |paths: &[&Path]| {
        let mut wanted = wanted(folder.path());
        wanted.path = paths.iter().map(|path| path.to_path_buf()).collect::<Vec<_>>().into();
        PromptSet::load(&wanted, &tokenizer()).unwrap()
    };
    assert_eq!(texts(&of(&[&file, folder.path()])), ["three", "one", "two"]);
    let again = folder.path().join("a.jsonl");
    assert_eq!(texts(&of(&[folder.path(), &again])), ["one", "two", "one"]);
}
