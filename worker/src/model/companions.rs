//! Files that travel with a model's weights unchanged.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// What transformers' `generate` and vLLM read: the ids that end a response, and how to draw by default.
pub const GENERATION_CONFIG: &str = "generation_config.json";

/// The chat template for all chats.
pub const CHAT_TEMPLATE: &str = "chat_template.jinja";

/// The folder of those that have a name (`CHAT_TEMPLATE_DIR` in transformers' `utils/hub.py`).
pub const MORE_TEMPLATES: &str = "additional_chat_templates";

const NAMES: [&str; 9] = [
    GENERATION_CONFIG,
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    CHAT_TEMPLATE,
];

/// The generation and tokenizer files of a model's folder as they were when they were read: what is saved has the same ones, whatever
/// became of the folder since.
#[derive(Clone, Debug, Default)]
pub struct Companions(BTreeMap<PathBuf, Vec<u8>>);

impl Companions {
    /// Those that `folder` has.
    ///
    /// # Errors
    /// When one is there and cannot be read, naming it.
    pub fn read(folder: &Path) -> Result<Self> {
        let mut files = BTreeMap::new();
        for file in NAMES.into_iter().map(PathBuf::from).chain(more_templates(folder)?) {
            let path = folder.join(&file);
            match fs::read(&path) {
                Ok(bytes) => {
                    files.insert(file, bytes);
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
            }
        }
        Ok(Self(files))
    }

    /// Whether there is one of that name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(Path::new(name))
    }

    /// By their paths inside the folder.
    pub(super) fn files(&self) -> impl Iterator<Item = (&Path, &[u8])> {
        self.0.iter().map(|(file, bytes)| (file.as_path(), &bytes[..]))
    }
}

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
    use tch::Kind;

    use super::*;
    use crate::model::save::save_with;
    use crate::model::{ModelConfig, Weights};

    #[test]
    fn a_model_is_saved_with_all_the_chat_templates_that_its_folder_had_when_it_was_read() {
        let scratch = tempfile::tempdir().unwrap();
        let [source, target] = ["source", "target"].map(|name| scratch.path().join(name));
        let more = source.join(MORE_TEMPLATES);
        fs::create_dir_all(more.join("folder.jinja")).unwrap();
        for name in ["rag.jinja", "tool_use.jinja", "notes.txt"] {
            fs::write(more.join(name), name).unwrap();
        }
        fs::write(source.join(CHAT_TEMPLATE), "for all").unwrap();
        let companions = Companions::read(&source).unwrap();
        fs::remove_dir_all(&more).unwrap();

        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/llama");
        let config = ModelConfig::read(&fixture).unwrap();
        let weights = Weights::load(&fixture, &config, Kind::Float).unwrap();
        save_with(&target, &companions, &config, &weights, 1 << 30).unwrap();

        let text = |file: &Path| fs::read_to_string(target.join(file)).unwrap();
        assert_eq!(text(Path::new(CHAT_TEMPLATE)), "for all");
        let mut saved = more_templates(&target).unwrap();
        saved.sort();
        let wanted = ["rag.jinja", "tool_use.jinja"].map(|name| Path::new(MORE_TEMPLATES).join(name));
        assert_eq!(saved, wanted);
        assert!(saved.iter().all(|file| file.ends_with(text(file))));
        assert_eq!(fs::read_dir(target.join(MORE_TEMPLATES)).unwrap().count(), 2);
    }

    #[test]
    fn a_file_where_templates_would_lie_is_no_error_and_no_template() {
        let folder = tempfile::tempdir().unwrap();
        assert!(more_templates(folder.path()).unwrap().is_empty());
        fs::write(folder.path().join(MORE_TEMPLATES), "").unwrap();
        assert!(more_templates(folder.path()).unwrap().is_empty());
    }
}
