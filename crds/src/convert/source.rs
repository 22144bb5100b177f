//! Where a model or a data file lies, from its name among the flags.

use std::path::Path;

use serde_json::Value;

use super::draft::{Draft, WrongValue};
use super::row::{self, is_off};
use crate::pod::RUNS_FOLDER;
use crate::spec::DataFormat;

/// Sets a model's place: a folder, or a model of the hub by the form of its name.
///
/// # Errors
/// When the values name several.
pub fn set_model(draft: &mut Draft, field: &str, values: &[String], source: &str) -> Result<(), WrongValue> {
    let [value] = values else {
        return Err(WrongValue {
            flag: source.into(),
            message: format!("wants one model, has {}", values.len()),
        });
    };
    if is_off(values) {
        return Ok(());
    }
    draft.unset(field);
    let first = value.split(',').next().unwrap_or(value);
    if first != value {
        draft.leave(source, &format!("several models: only {first} is taken"));
    }
    if let Some(below) = first.strip_prefix('~') {
        let place = format!("/models/{}", last(below.trim_end_matches('/')));
        draft.set(&format!("{field}.path"), place.as_str(), source);
        draft.missing(&format!("{field}.path"), &at_home(first));
    } else if is_path(first) {
        draft.set(&format!("{field}.path"), first, source);
    } else {
        draft.set(&format!("{field}.hub.id"), first, source);
    }
    Ok(())
}

/// Sets a folder that is written into.
///
/// # Errors
/// When the values name several.
pub fn set_folder(draft: &mut Draft, field: &str, values: &[String], source: &str) -> Result<(), WrongValue> {
    let [path] = values else {
        return Err(WrongValue {
            flag: source.into(),
            message: format!("wants one folder, has {}", values.len()),
        });
    };
    if let Some(below) = path.strip_prefix('~') {
        let name = Some(last(below.trim_end_matches('/'))).filter(|name| !name.is_empty());
        let place = format!("{RUNS_FOLDER}/{}", name.unwrap_or("checkpoints"));
        draft.set(field, place, source);
        draft.missing(field, &at_home(path));
        return Ok(());
    }
    draft.set(field, path.as_str(), source);
    Ok(())
}

/// Sets data files and folders of them, in the order of the flag; a data set of the hub cannot be read here.
pub fn set_data(draft: &mut Draft, field: &str, values: &[String], source: &str) {
    let names: Vec<String> = values.iter().flat_map(|value| row::list(value)).collect();
    let places: Vec<Place> = names.iter().map(|name| Place::of(name)).collect();
    let paths: Vec<&str> = places.iter().map(|place| place.path.as_str()).collect();
    let (field, value) = match paths.as_slice() {
        [] => return,
        [one] => (format!("{field}.path"), Value::from(*one)),
        several => (format!("{field}.paths"), Value::from(several)),
    };
    draft.set(&field, value, source);
    for place in &places {
        match &place.note {
            Some(Note::Replace(how)) => draft.missing(&field, how),
            Some(Note::Look(what)) => draft.leave(source, what),
            None => {}
        }
    }
}

/// Where a name among the flags says that rows lie.
struct Place {
    path: String,
    note: Option<Note>,
}

/// What to know of a place.
enum Note {
    /// It must be replaced, in words.
    Replace(String),
    /// It may be another thing than is read here.
    Look(String),
}

/// Those of `datasets` whose files are read here, by their loaders' names.
const FORMATS: [&str; 2] = ["json", "parquet"];

impl Place {
    /// OpenRLHF has `DATASET@FOLDER` too (`blending_datasets` in openrlhf/utils/utils.py), where a format may stand for the data set:
    /// `json@/data`. A path may have such a sign anywhere.
    fn of(name: &str) -> Self {
        match name.split_once('@') {
            Some((format, path)) if FORMATS.contains(&format) && is_path(path) => Self::of_name(path),
            Some((set, folder)) if !is_file(name) && !is_path(set) => {
                let part = format!("data_dir={folder:?}");
                Self {
                    path: file_of(set),
                    note: Some(Note::Replace(written(set, Some(&part), "train"))),
                }
            }
            _ => Self::of_name(name),
        }
    }

    fn of_name(name: &str) -> Self {
        let is_file = is_file(name);
        let (path, note) = match name.strip_prefix('~').filter(|_| is_file) {
            Some(below) => (format!("/data/{}", last(below)), Some(Note::Replace(at_home(name)))),
            None if is_file => (name.to_owned(), None),
            None if is_path(name) && !name.starts_with('~') && DataFormat::is_folder(name) => {
                (name.to_owned(), Some(Note::Look(folder(name))))
            }
            None if is_path(name) => {
                let how = format!("{name} is no .jsonl, .json or .parquet file with an absolute or relative path");
                ("/data/data.jsonl".to_owned(), Some(Note::Replace(how)))
            }
            None => (file_of(name), Some(Note::Replace(download(name, None, "train")))),
        };
        Self { path, note }
    }
}

fn is_file(name: &str) -> bool {
    DataFormat::of(Path::new(name)).is_some()
}

fn folder(name: &str) -> String {
    format!(
        "{name} is read as the .jsonl, .json or .parquet files that lie directly in it; a data set that `save_to_disk` wrote becomes one by \
         `datasets.load_from_disk({name:?}).to_parquet(...)`"
    )
}

/// The data set of the hub that values name, where they name one alone.
pub fn data_set(values: &[String]) -> Option<&str> {
    let [name] = values else {
        return None;
    };
    (!is_file(name) && !is_path(name) && !name.contains(',')).then_some(name.as_str())
}

/// How a data set of the hub becomes the file that [`set_data`] names.
pub fn download(name: &str, config: Option<&str>, split: &str) -> String {
    let config = config.map(|config| format!("{config:?}"));
    written(name, config.as_deref(), split)
}

/// The same of a part of it, which is written as an argument of Python's.
fn written(name: &str, part: Option<&str>, split: &str) -> String {
    let part = part.map(|part| format!("{part}, ")).unwrap_or_default();
    let place = file_of(name);
    format!(
        "data sets are files here: `datasets.load_dataset({name:?}, {part}split={split:?}).to_json({place:?})` writes one"
    )
}

fn file_of(data_set: &str) -> String {
    format!("/data/{}.jsonl", last(data_set))
}

fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn at_home(path: &str) -> String {
    format!("{path} lies below a home folder, which only a shell knows: write its path in full")
}

/// Whether a model or data set named so is on a disk: the frameworks look there for what is no name on the hub.
fn is_path(name: &str) -> bool {
    name.starts_with(['/', '.', '~']) || name.split('/').count() > 2
}
