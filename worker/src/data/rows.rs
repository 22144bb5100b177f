//! Rows of a data file: JSONL, a JSON array, or Parquet, by the file's extension.

use std::path::Path;

use anyhow::{Context, Result, bail};
use ppo_crds::spec::DataFormat;
use serde_json::Value;

use crate::hub::only_a_pointer;

/// One row and where it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// `line 7` or `row 7`, counted from 1: what an error says.
    pub place: String,
    /// The row's fields.
    pub value: Value,
}

/// All rows of a file.
///
/// # Errors
/// A file that cannot be read, an unknown extension, or text that is not JSON: with the line.
pub fn read_rows(path: &Path) -> Result<Vec<Row>> {
    read(path, None).with_context(|| path.display().to_string())
}

/// As [`read_rows`], for who looks at these fields alone: a file of columns may leave the others out.
///
/// # Errors
/// As [`read_rows`].
pub(super) fn read_fields(path: &Path, fields: &[&str]) -> Result<Vec<Row>> {
    read(path, Some(fields)).with_context(|| path.display().to_string())
}

fn read(path: &Path, fields: Option<&[&str]>) -> Result<Vec<Row>> {
    if path.is_dir() {
        bail!("is a folder, want a {} file", DataFormat::EXTENSIONS);
    }
    match DataFormat::of(path) {
        Some(DataFormat::Parquet) => super::parquet::read(path, fields),
        Some(DataFormat::JsonLines) => json_lines(&text(path)?),
        Some(DataFormat::Json) => {
            let text = text(path)?;
            // Several hubs name a file of JSON lines .json.
            if text.trim_start().starts_with('[') {
                json_array(&text)
            } else {
                json_lines(&text).context("it does not begin with [, so that it is read as an object on each line")
            }
        }
        None => {
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
fn json_lines(text: &str) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (index, line) in text.split('\n').enumerate() {
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        let place = format!("line {}", index + 1);
        let value = serde_json::from_str(line).map_err(|cause| {
            // The parser saw one line only, so its own "line 1" would mislead.
            let cause = cause.to_string();
            let cause = cause
                .rsplit_once(" at line 1 column ")
                .map_or(cause.clone(), |(what, column)| format!("{what} (column {column})"));
            anyhow::anyhow!("{place}: not JSON: {cause}; want one object on each line")
        })?;
        rows.push(Row { place, value });
    }
    Ok(rows)
}

fn json_array(text: &str) -> Result<Vec<Row>> {
    let items: Vec<Value> = serde_json::from_str(text).context("not a JSON array of objects")?;
    let place = |index| format!("row {}", index + 1);
    Ok(items
        .into_iter()
        .enumerate()
        .map(|(index, value)| Row {
            place: place(index),
            value,
        })
        .collect())
}
