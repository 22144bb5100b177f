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
        let place = format!("/models/{}", below.rsplit('/').next().unwrap_or(below));
        draft.set(&format!("{field}.path"), place.as_str(), source);
        let how = format!("{first} lies below a home folder, which only a shell knows: write its path in full");
        draft.missing(&format!("{field}.path"), &how);
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
    let known = [".jsonl", ".json", ".parquet"].iter().any(|end| file.ends_with(end));
    if known && !file.starts_with('~') {
        draft.set(&format!("{field}.path"), file, source);
        return;
    }
    let name = if is_path(file) {
        "data"
    } else {
        file.rsplit('/').next().unwrap_or("data")
    };
    let place = format!("/data/{name}.jsonl");
    draft.set(&format!("{field}.path"), place.as_str(), source);
    let how = if is_path(file) {
        format!("{file} is no .jsonl, .json or .parquet file with an absolute or relative path")
    } else {
        format!(
            "data sets are files here: `datasets.load_dataset({file:?}, split=\"train\").to_json({place:?})` writes one"
        )
    };
    draft.missing(&format!("{field}.path"), &how);
}

/// Whether a model or data set named so is on a disk: the frameworks look there for what is no name on the hub.
fn is_path(name: &str) -> bool {
    name.starts_with(['/', '.', '~']) || name.split('/').count() > 2
}
