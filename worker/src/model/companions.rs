//! Files that travel with a model's weights unchanged.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result};

const NAMES: [&str; 9] = [
    "generation_config.json",
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

    /// By name.
    pub(super) fn files(&self) -> impl Iterator<Item = (&'static str, &[u8])> {
        self.0.iter().map(|(name, bytes)| (*name, &bytes[..]))
    }
}
