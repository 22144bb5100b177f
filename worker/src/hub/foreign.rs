//! What lies in a folder that is no whole model in Hugging Face layout, by the names of its files, and what makes one of it.

use std::path::{Path, PathBuf};

/// What is there instead, and what to do; None where the names do not tell.
pub fn told(folder: &Path) -> Option<&'static str> {
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    let paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    let name = |path: &PathBuf| Some(path.file_name()?.to_string_lossy().into_owned());
    let names: Vec<String> = paths.iter().filter_map(name).collect();
    let has = |is_such: fn(&str) -> bool| names.iter().any(|name| is_such(name));
    if paths.iter().any(|path| is_lost(path)) {
        Some(
            "the folder has links to files that are not there, as a snapshot of the hub's cache has that was copied or mounted without the \
             blobs beside it: copy it with `cp -rL`, or give the whole cache",
        )
    } else if has(|name| name.ends_with(".safetensors") && !name.starts_with("adapter_")) {
        None
    } else if has(|name| name.starts_with("adapter_model.") || name == "adapter_config.json") {
        Some(
            "the folder holds an adapter, not a model: give the model that it was trained on, or merge it into that first (PEFT's \
             merge_and_unload, then save_pretrained)",
        )
    } else if has(|name| name.ends_with(".gguf")) {
        Some(
            "the folder holds GGUF files, as llama.cpp has them, which are not read: give the model in safetensors that they were made from",
        )
    } else if has(|name| name.starts_with("pytorch_model") && name.ends_with(".bin")) {
        Some(
            "the folder holds PyTorch's own files (pytorch_model.bin), which are not read: convert the whole model to safetensors, by \
             transformers' from_pretrained and then save_pretrained",
        )
    } else {
        None
    }
}

/// Whether one of a model's files is a link that leads nowhere.
fn is_lost(path: &Path) -> bool {
    let is_of_a_model = path
        .extension()
        .is_some_and(|kind| kind == "json" || kind == "safetensors");
    is_of_a_model && path.is_symlink() && !path.exists()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::model::{ModelConfig, safetensors};
    use crate::tokenizer::Tokenizer;

    #[test]
    fn a_folder_of_another_layout_says_what_it_is_and_what_makes_a_model_of_it() {
        for (file, words) in [
            ("model-Q4_K_M.gguf", "GGUF files"),
            ("pytorch_model-00001-of-00002.bin", "transformers' from_pretrained"),
            ("adapter_model.safetensors", "merge_and_unload"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            fs::write(folder.path().join(file), "").unwrap();
            let errors = [
                ModelConfig::read(folder.path()).map(drop),
                Tokenizer::load(folder.path()).map(drop),
                safetensors::visit(folder.path(), |_| true, |_, _| Ok(())),
            ];
            for error in errors.map(Result::unwrap_err) {
                assert!(format!("{error:#}").contains(words), "{error:#}");
            }
        }
        let snapshot = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("../../blobs/4d7a", snapshot.path().join("model.safetensors")).unwrap();
        let lost = safetensors::visit(snapshot.path(), |_| true, |_, _| Ok(())).unwrap_err();
        assert!(
            format!("{lost:#}").contains("links to files that are not there"),
            "{lost:#}"
        );
        let folder = tempfile::tempdir().unwrap();
        for file in ["model.safetensors", "adapter_model.safetensors", "model.gguf"] {
            fs::write(folder.path().join(file), "").unwrap();
        }
        assert_eq!(told(folder.path()), None);
    }
}
