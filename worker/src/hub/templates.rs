//! The files of a model's folder that hold its chat templates.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The chat template for all chats.
pub const CHAT_TEMPLATE: &str = "chat_template.jinja";

/// The folder of those that have a name (`CHAT_TEMPLATE_DIR` in transformers' `utils/hub.py`).
pub const MORE_TEMPLATES: &str = "additional_chat_templates";

/// The files of a model's folder that hold chat templates with names, by their paths inside it.
///
/// # Errors
/// When their folder is there and cannot be read, naming it.
pub fn more_templates(folder: &Path) -> Result<Vec<PathBuf>> {
    let place = folder.join(MORE_TEMPLATES);
    let entries = match fs::read_dir(&place) {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", place.display())),
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot read {}", place.display()))?;
        let path = entry.path();
        if path.extension().is_some_and(|kind| kind == "jinja") && path.is_file() {
            files.push(Path::new(MORE_TEMPLATES).join(entry.file_name()));
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_where_templates_would_lie_is_no_error_and_no_template() {
        let folder = tempfile::tempdir().unwrap();
        assert!(more_templates(folder.path()).unwrap().is_empty());
        fs::write(folder.path().join(MORE_TEMPLATES), "").unwrap();
        assert!(more_templates(folder.path()).unwrap().is_empty());
    }
}
