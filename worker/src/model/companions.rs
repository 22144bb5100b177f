//! Files that travel with a model's weights unchanged.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result};

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
    "chat_template.jinja",
];

/// The generation and tokenizer files of a model's folder as they were when they were read: what is saved has the same ones, whatever
/// became of the folder since.
#[derive(Clone, Debug, Default)]
pub struct Companions(BTreeMap<&'static str, Vec<u8>>);

impl Companions {
    /// Those that `folder` has.
    ///
    /// # Errors
    /// When one is there and cannot be read, naming it.
    pub fn read(folder: &Path) -> Result<Self> {
        let mut files = BTreeMap::new();
        for name in NAMES {
            let path = folder.join(name);
            match fs::read(&path) {
                Ok(bytes) => {
                    files.insert(name, bytes);
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
            }
        }
        Ok(Self(files))
    }

    /// Whether there is one of that name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// By name.
    pub(super) fn files(&self) -> impl Iterator<Item = (&'static str, &[u8])> {
        self.0.iter().map(|(name, bytes)| (*name, &bytes[..]))
    }
}
