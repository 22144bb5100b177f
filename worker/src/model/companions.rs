//! Files that travel with a model's weights unchanged.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context, Result};

use crate::hub::templates::{CHAT_TEMPLATE, more_templates};
use crate::tokenizer::Tokenizer;

/// What transformers' `generate` and vLLM read: the ids that end a response, and how to draw by default.
pub const GENERATION_CONFIG: &str = "generation_config.json";

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
pub struct Companions {
    /// By their paths inside the folder.
    files: BTreeMap<PathBuf, Vec<u8>>,
    own_end: OnceLock<Option<u32>>,
}

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
        Ok(Self {
            files,
            own_end: OnceLock::new(),
        })
    }

    /// Whether there is one of that name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.files.contains_key(Path::new(name))
    }

    /// By their paths inside the folder.
    pub(super) fn files(&self) -> impl Iterator<Item = (&Path, &[u8])> {
        self.files.iter().map(|(file, bytes)| (file.as_path(), &bytes[..]))
    }

    /// The own end token of the tokenizer among them, which `folder` holds, too; None without one, or with one that is not read here. The files
    /// never change, so it is loaded once, whatever the number of models that are saved.
    pub(super) fn own_end(&self, folder: &Path) -> Option<u32> {
        *self.own_end.get_or_init(|| Tokenizer::load(folder).ok()?.own_eos_id())
    }
}

#[cfg(test)]
mod tests {
    use tch::Kind;

    use super::*;
    use crate::hub::templates::MORE_TEMPLATES;
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
    fn the_tokenizer_is_loaded_for_the_first_of_the_models_that_are_saved_with_it() {
        let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizer/chatml");
        let companions = Companions::read(&tokenizer).unwrap();
        assert_eq!(companions.own_end(&tokenizer), Some(2));
        let nothing = tempfile::tempdir().unwrap();
        assert_eq!(companions.own_end(nothing.path()), Some(2), "it is not loaded again");
        assert_eq!(Companions::default().own_end(nothing.path()), None);
    }
}
