//! Rows of data files: JSONL, a JSON array, or Parquet, by the file's extension.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use ppo_crds::spec::DataFormat;
use serde_json::Value;

use super::folder::data_files;
use super::parquet::{self, Room};
use super::place::{At, Place, name};
use crate::hub::only_a_pointer;

/// One row and where it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What an error says.
    pub place: Place,
    /// The row's fields.
    pub value: Value,
}

/// All rows of a file, or of the files of a folder.
///
/// # Errors
/// A file that cannot be read, an unknown extension, or text that is not JSON: with the line. A folder without data files, or with such as are
/// not meant to be read as one.
pub fn read_rows(path: &Path) -> Result<Vec<Row>> {
    read(&[path.to_owned()], None)
}

/// All rows of files and folders, one after another, for who looks at these fields alone: a file of columns may leave the others out.
///
/// # Errors
/// As [`read_rows`].
pub(super) fn read_fields(paths: &[PathBuf], fields: &[&str]) -> Result<Vec<Row>> {
    read(paths, Some(fields))
}

fn read(paths: &[PathBuf], fields: Option<&[&str]>) -> Result<Vec<Row>> {
    let (mut rows, mut room) = (Vec::new(), Room::default());
    for path in paths {
        let words = || path.display().to_string();
        let files = match path.is_dir() {
            true => data_files(path).with_context(words)?,
            false => vec![path.clone()],
        };
        for file in files {
            let of_file = read_file(&file, fields, &mut room).with_context(|| file.display().to_string())?;
            rows.extend(of_file);
        }
    }
    Ok(rows)
}

fn read_file(path: &Path, fields: Option<&[&str]>, room: &mut Room) -> Result<Vec<Row>> {
    match DataFormat::of(path) {
        Some(DataFormat::Parquet) => parquet::read(path, fields, room),
        Some(DataFormat::JsonLines) => json_lines(&text(path)?, &name(path)),
        Some(DataFormat::Json) => {
            let text = text(path)?;
            // Several hubs name a file of JSON lines .json.
            if text.trim_start().starts_with('[') {
                json_array(&text, &name(path))
            } else {
                json_lines(&text, &name(path))
                    .context("it does not begin with [, so that it is read as an object on each line")
            }
        }
        None => {
            // Without an extension it was to be a folder.
            std::fs::metadata(path).context("cannot read the file or folder")?;
            let extension = path.extension().and_then(|extension| extension.to_str());
            bail!(
                "extension {:?} is not known, want {}",
                extension.unwrap_or_default().to_ascii_lowercase(),
                DataFormat::EXTENSIONS
            )
        }
    }
}

fn text(path: &Path) -> Result<String> {
    let bytes = std::fs::read(path).context("cannot read the file")?;
    if let Some(other) = other_than_text(&bytes) {
        bail!("it is {other}");
    }
    // Windows tools begin UTF-8 files with a byte order mark.
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").map(<[u8]>::to_vec).unwrap_or(bytes);
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + valid.iter().filter(|byte| **byte == b'\n').count();
        anyhow::anyhow!("line {line}: not UTF-8; save the file as UTF-8")
    })
}

/// What a file is by its first bytes that is no text, whatever its name says.
fn other_than_text(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x1f, 0x8b, ..] => Some("compressed by gzip: unpack it"),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some("compressed by zstd: unpack it"),
        [b'P', b'A', b'R', b'1', ..] => Some("a Parquet file: let its name end in .parquet"),
        _ => only_a_pointer(bytes),
    }
}

/// One object a line; blank lines are skipped. Only a line feed ends a line: U+2028 may stand inside a JSON string.
fn json_lines(text: &str, file: &Arc<str>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (index, line) in text.split('\n').enumerate() {
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        let at = At::line(index);
        let value = serde_json::from_str(line).map_err(|cause| {
            let wanted = remedy(line, &cause).unwrap_or("want one object on each line");
            // The parser saw one line only, so its own "line 1" would mislead.
            let cause = cause.to_string();
            let cause = cause
                .rsplit_once(" at line 1 column ")
                .map_or(cause.clone(), |(what, column)| format!("{what} (column {column})"));
            anyhow::anyhow!("{at}: not JSON: {cause}; {wanted}")
        })?;
        let place = at.in_file(file);
        rows.push(Row { place, value });
    }
    Ok(rows)
}

/// What would mend a text that Python's `json` writes and reads, and that is no JSON.
fn remedy(text: &str, cause: &serde_json::Error) -> Option<&'static str> {
    let line = text.split('\n').nth(cause.line().checked_sub(1)?)?;
    let rest = line.as_bytes().get(cause.column().checked_sub(1)?..)?;
    if ["NaN", "Infinity"].iter().any(|word| rest.starts_with(word.as_bytes())) {
        return Some("JSON has no NaN and no Infinity: write null");
    }
    let is_half = cause.to_string().contains("hex escape");
    is_half.then_some("\\u with half of a surrogate pair is no character: leave it out")
}

fn json_array(text: &str, file: &Arc<str>) -> Result<Vec<Row>> {
    let items: Vec<Value> = serde_json::from_str(text).map_err(|cause| {
        let wanted = remedy(text, &cause).map(|words| format!("; {words}"));
        anyhow::anyhow!("not a JSON array of objects: {cause}{}", wanted.unwrap_or_default())
    })?;
    Ok(items
        .into_iter()
        .enumerate()
        .map(|(index, value)| Row {
            place: At::row(index).in_file(file),
            value,
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_python_writes_and_json_does_not_have_is_refused_with_what_to_write() {
        let null = "; JSON has no NaN and no Infinity: write null";
        let half = "; \\u with half of a surrogate pair is no character: leave it out";
        for (value, words) in [("NaN", null), ("-Infinity", null), (r#""\ud83d x""#, half)] {
            let row = format!("{{\"score\": {value}}}");
            let file = name(Path::new("a.json"));
            for refused in [json_lines(&row, &file), json_array(&format!("[{{}},\n{row}]"), &file)] {
                let said = refused.unwrap_err().to_string();
                assert!(said.contains("not ") && said.ends_with(words), "{said}");
            }
        }
        let said = json_lines("{\"score\": \"NaN\", x}", &name(Path::new("a.jsonl"))).unwrap_err();
        assert!(said.to_string().ends_with("; want one object on each line"), "{said}");
    }
}
