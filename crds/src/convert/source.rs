//! Where a model or a data file lies, from its name among the flags.

use super::draft::{Draft, WrongValue};
use super::row::{self, is_off};

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
        let place = format!("/models/{}", last(below));
        draft.set(&format!("{field}.path"), place.as_str(), source);
        draft.missing(&format!("{field}.path"), &at_home(first));
    } else if is_path(first) {
        draft.set(&format!("{field}.path"), first, source);
    } else {
        draft.set(&format!("{field}.hub.id"), first, source);
    }
    Ok(())
}

/// Sets a data file; a data set of the hub cannot be read here.
pub fn set_data(draft: &mut Draft, field: &str, values: &[String], source: &str) {
    let files: Vec<String> = values.iter().flat_map(|value| row::list(value)).collect();
    let Some(first) = files.first() else {
        return;
    };
    if files.len() > 1 {
        let message = format!("{} files: only {first} is taken; join them into one", files.len());
        draft.leave(source, &message);
    }
    let file = first.rsplit('@').next().unwrap_or(first);
    let known = ENDS.iter().any(|end| file.ends_with(end));
    let (place, how) = match file.strip_prefix('~').filter(|_| known) {
        Some(below) => (format!("/data/{}", last(below)), Some(at_home(file))),
        None if known => (file.to_owned(), None),
        None if is_path(file) => (
            "/data/data.jsonl".to_owned(),
            Some(format!(
                "{file} is no .jsonl, .json or .parquet file with an absolute or relative path"
            )),
        ),
        None => (file_of(file), Some(download(file, None, "train"))),
    };
    draft.set(&format!("{field}.path"), place, source);
    if let Some(how) = how {
        draft.missing(&format!("{field}.path"), &how);
    }
}

/// The data set of the hub that values name, where they name one alone.
pub fn data_set(values: &[String]) -> Option<&str> {
    let [name] = values else {
        return None;
    };
    let is_file = ENDS.iter().any(|end| name.ends_with(end));
    (!is_file && !is_path(name) && !name.contains(',')).then_some(name.as_str())
}

/// How a data set of the hub becomes the file that [`set_data`] names.
pub fn download(name: &str, config: Option<&str>, split: &str) -> String {
    let config = config.map(|config| format!("{config:?}, ")).unwrap_or_default();
    let place = file_of(name);
    format!(
        "data sets are files here: `datasets.load_dataset({name:?}, {config}split={split:?}).to_json({place:?})` writes one"
    )
}

const ENDS: [&str; 3] = [".jsonl", ".json", ".parquet"];

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
