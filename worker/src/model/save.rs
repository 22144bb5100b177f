//! Writing a model folder that `transformers` and vLLM load.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};
use tch::Tensor;

use super::adapter::merged::{MergedWeights, Unmerged};
use super::config::{ModelConfig, dtype_name};
use super::safetensors::{INDEX, Written, shard_name};
use crate::native::bytes::byte_length;

/// Shards are split above this size unless asked otherwise, bytes.
pub const SHARD_BYTES: usize = 5_000_000_000;
/// The same for weights that have to be merged: a shard's merged tensors exist beside the model until they are written.
const MERGED_SHARD_BYTES: usize = 1_000_000_000;

/// Files that travel with the weights unchanged, when the source folder has them.
const COMPANIONS: [&str; 9] = [
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

/// Writes `weights` to the folder `target` in Hugging Face layout: configuration with the dtype updated, the tokenizer and
/// generation files of `source`, weights in shards of at most `shard_bytes` (a larger tensor has a shard of its own).
///
/// All is written to a temporary folder beside `target`, synced and renamed: `target` is either the old model or the whole
/// new one.
///
/// # Errors
/// When a file cannot be read or written; the message names it.
pub fn save(
    target: &Path,
    source: &Path,
    config: &ModelConfig,
    weights: impl Into<MergedWeights>,
    shard_bytes: usize,
) -> Result<()> {
    let weights = weights.into();
    replace_folder(target, |fresh| {
        write_folder(fresh, source, config, &weights, shard_bytes)
    })
}

/// Has `write` fill a temporary folder beside `target`, and puts it in its place.
pub(super) fn replace_folder(target: &Path, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let parent = match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let Some(name) = target.file_name() else {
        bail!("{} is not a folder name", target.display())
    };
    fs::create_dir_all(parent).with_context(|| format!("creating {}", parent.display()))?;
    let aside = |suffix: &str| {
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{suffix}-{}", std::process::id()));
        parent.join(hidden)
    };
    let (fresh, old) = (aside("new"), aside("old"));
    remove_folder(&fresh)?;
    fs::create_dir(&fresh).with_context(|| format!("creating {}", fresh.display()))?;
    let written = write(&fresh)
        .and_then(|()| sync(&fresh))
        .and_then(|()| replace(&fresh, target, &old));
    if written.is_err() {
        // The error already says what failed; a left-over would only be in the way.
        let _ = fs::remove_dir_all(&fresh);
    }
    written
}

fn write_folder(
    folder: &Path,
    source: &Path,
    config: &ModelConfig,
    weights: &MergedWeights,
    shard_bytes: usize,
) -> Result<()> {
    write_json(&folder.join("config.json"), &Value::Object(config_of(config, weights)?))?;
    for name in COMPANIONS {
        let from = source.join(name);
        if from.exists() {
            fs::copy(&from, folder.join(name)).with_context(|| format!("copying {}", from.display()))?;
            sync(&folder.join(name))?;
        }
    }
    write_weights(folder, weights, shard_bytes)
}

/// The configuration as read, with the precision of these weights.
fn config_of(config: &ModelConfig, weights: &MergedWeights) -> Result<Map<String, Value>> {
    let mut raw = config.raw.clone();
    let kind = weights.iter().next().map(|(_, tensor)| tensor.weight.kind());
    let Some(dtype) = kind.and_then(dtype_name) else {
        bail!("weights of kind {kind:?} are not written; supported are float32, bfloat16 and float16");
    };
    // transformers renamed torch_dtype to dtype in 4.56 and reads both.
    let key = if raw.contains_key("dtype") {
        "dtype"
    } else {
        "torch_dtype"
    };
    raw.insert(key.to_owned(), Value::from(dtype));
    Ok(raw)
}

fn write_weights(folder: &Path, weights: &MergedWeights, shard_bytes: usize) -> Result<()> {
    let shard_bytes = match weights.are_adapted() {
        true => shard_bytes.min(MERGED_SHARD_BYTES),
        false => shard_bytes,
    };
    let mut shards: Vec<Vec<(&String, Unmerged)>> = vec![Vec::new()];
    let (mut total, mut filled) = (0, 0);
    for (name, tensor) in weights.iter() {
        let size = byte_length(tensor.weight);
        if filled > 0 && filled + size > shard_bytes {
            shards.push(Vec::new());
            filled = 0;
        }
        if let Some(shard) = shards.last_mut() {
            shard.push((name, tensor));
        }
        filled += size;
        total += size;
    }
    let mut weight_map = Map::new();
    for (number, shard) in shards.iter().enumerate() {
        let file = shard_name(number, shards.len());
        let merged = shard
            .iter()
            .map(|(_, tensor)| tensor.merge())
            .collect::<Result<Vec<_>>>()?;
        let tensors: Vec<_> = shard.iter().map(|(name, _)| *name).zip(&merged).collect();
        write_shard(&folder.join(&file), &tensors)?;
        weight_map.extend(
            shard
                .iter()
                .map(|(name, _)| ((*name).clone(), Value::from(file.to_string_lossy()))),
        );
    }
    if shards.len() == 1 {
        return Ok(());
    }
    write_json(
        &folder.join(INDEX),
        &json!({"metadata": {"total_size": total}, "weight_map": weight_map}),
    )
}

pub(crate) fn write_shard(path: &Path, tensors: &[(&String, &Tensor)]) -> Result<()> {
    let views = tensors
        .iter()
        .map(|(name, tensor)| Ok((*name, Written::new(tensor)?)))
        .collect::<Result<Vec<_>>>()?;
    // transformers refuses a file that does not say which framework wrote it.
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::serialize_to_file(views.iter().map(|(name, view)| (*name, view)), Some(metadata), path)
        .with_context(|| format!("writing {}", path.display()))?;
    for (name, written) in views {
        if let Some(error) = written.into_failure() {
            return Err(error.context(format!("writing {}: tensor {name}", path.display())));
        }
    }
    readable_by_all(path)?;
    sync(path)
}

/// The safetensors writer makes a private temporary file; models are read by other processes and users.
fn readable_by_all(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let permissions = fs::Permissions::from_mode(0o644);
    fs::set_permissions(path, permissions).with_context(|| format!("setting permissions of {}", path.display()))
}

pub(super) fn write_json(path: &Path, value: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(value)? + "\n";
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    sync(path)
}

fn sync(path: &Path) -> Result<()> {
    File::open(path)
        .and_then(|file| file.sync_all())
        .with_context(|| format!("syncing {}", path.display()))
}

fn replace(fresh: &Path, target: &Path, old: &PathBuf) -> Result<()> {
    let context = || format!("moving the written model to {}", target.display());
    remove_folder(old)?;
    if target.exists() {
        fs::rename(target, old).with_context(context)?;
    }
    fs::rename(fresh, target).with_context(context)?;
    if let Some(parent) = target.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        sync(parent)?;
    }
    remove_folder(old)
}

fn remove_folder(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}
