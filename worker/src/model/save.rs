//! Writing a model folder that `transformers` and vLLM load.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
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
/// All is written to a temporary folder beside `target`, synced and renamed: `target` is never half a model. Killed between two
/// renames, the old and the new one lie whole beside it under hidden names.
///
/// # Errors
/// When a file cannot be read or written; the message names it. What is written whole and cannot be put in its place stays where it is,
/// and the message says where.
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

/// Looks whether a model of `bytes` could be written to `target`, before time goes into making it.
///
/// # Errors
/// When `target` is something that a model must not replace, or cannot be written, or the disk has too little room.
pub fn probe(target: &Path, bytes: u64) -> Result<()> {
    let place = Place::of(target)?;
    if target.exists() {
        ensure!(
            target.is_dir(),
            "{} is a file; a model is a folder: give another name",
            target.display()
        );
        let mut inside = fs::read_dir(target).with_context(|| format!("cannot read {}", target.display()))?;
        let is_model = ["config.json", "adapter_config.json"]
            .iter()
            .any(|name| target.join(name).exists());
        ensure!(
            is_model || inside.next().is_none(),
            "{} has files and is not a model's folder; it would be replaced whole: give an empty or a new one",
            target.display()
        );
        let device = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev());
        ensure!(
            device(target)? == device(&place.parent)?,
            "{} is where another disk is mounted and cannot be replaced; give a folder inside it",
            target.display()
        );
    }
    fs::create_dir_all(&place.fresh).with_context(|| format!("cannot write beside {}", target.display()))?;
    fs::remove_dir(&place.fresh).with_context(|| format!("removing {}", place.fresh.display()))?;
    // Some network file systems do not tell.
    if let Ok(disk) = rustix::fs::statvfs(&place.parent) {
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        ensure!(
            disk.f_blocks == 0 || free >= bytes,
            "the model takes {} MiB and {} MiB are free in {}; make room or give another folder",
            bytes.div_ceil(1 << 20),
            free >> 20,
            place.parent.display()
        );
    }
    Ok(())
}

/// Where a folder is replaced.
struct Place {
    parent: PathBuf,
    /// Beside it, where its successor is written.
    fresh: PathBuf,
    /// Beside it, where it goes while its successor takes its name.
    old: PathBuf,
}

impl Place {
    /// Makes the folder that `target` is in.
    fn of(target: &Path) -> Result<Self> {
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
        Ok(Self {
            parent: parent.to_owned(),
            fresh: aside("new"),
            old: aside("old"),
        })
    }
}

/// Has `write` fill a temporary folder beside `target`, and puts it in its place.
pub(super) fn replace_folder(target: &Path, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let place = Place::of(target)?;
    let Place { parent, fresh, old } = &place;
    remove_folder(fresh)?;
    fs::create_dir(fresh).with_context(|| format!("creating {}", fresh.display()))?;
    if let Err(error) = write(fresh).and_then(|()| sync(fresh)) {
        // The error already says what failed; a left-over would only be in the way.
        let _ = fs::remove_dir_all(fresh);
        return Err(error);
    }
    let moved = remove_folder(old).and_then(|()| swap(fresh, target, old));
    moved.with_context(|| {
        format!(
            "the model is written whole and stays in {}: move it yourself",
            fresh.display()
        )
    })?;
    sync(parent)?;
    remove_folder(old)
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
            let copied = fs::copy(&from, folder.join(name));
            copied.with_context(|| format!("copying {} to {}", from.display(), folder.display()))?;
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
    let size: usize = tensors.iter().map(|(_, tensor)| byte_length(tensor)).sum();
    safetensors::serialize_to_file(views.iter().map(|(name, view)| (*name, view)), Some(metadata), path)
        .with_context(|| format!("writing {} ({} MiB)", path.display(), size.div_ceil(1 << 20)))?;
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

/// Gives `fresh` the name of `target`, which becomes `old` where it was there; all as before where that fails.
fn swap(fresh: &Path, target: &Path, old: &Path) -> Result<()> {
    let context = || format!("moving it to {}", target.display());
    let replaces = target.exists();
    if replaces {
        fs::rename(target, old).with_context(context)?;
    }
    let moved = fs::rename(fresh, target);
    if moved.is_err() && replaces {
        fs::rename(old, target).with_context(|| format!("the old one is in {}", old.display()))?;
    }
    moved.with_context(context)
}

fn remove_folder(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn what_a_model_may_not_replace_is_refused_before_it_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |name: &str, bytes| format!("{:#}", probe(&folder.path().join(name), bytes).unwrap_err());
        fs::write(folder.path().join("file"), "").unwrap();
        fs::create_dir(folder.path().join("photos")).unwrap();
        fs::write(folder.path().join("photos/cat.jpg"), "").unwrap();
        assert!(refused("file", 0).contains("is a file"));
        assert!(refused("photos", 0).contains("is not a model's folder"));
        assert!(refused("file/model", 0).contains("creating"));
        assert!(refused("new", u64::MAX / 2).contains("make room"));
        fs::write(folder.path().join("photos/config.json"), "").unwrap();
        for name in ["new", "photos", "not/yet/there"] {
            probe(&folder.path().join(name), 1).unwrap();
        }
        assert_eq!(
            files(folder.path()),
            ["file", "not", "photos"],
            "nothing is left behind"
        );
    }

    #[test]
    fn a_model_that_cannot_take_its_name_stays_where_it_is_and_so_does_the_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("model");
        fs::write(&target, "old").unwrap();
        let written = replace_folder(&target, |fresh| {
            // Where the old one would go is taken by what cannot be removed as a folder.
            let old = fresh.to_string_lossy().replace(".new-", ".old-");
            fs::write(old, "").map_err(Into::into)
        });
        let words = format!("{:#}", written.unwrap_err());
        assert!(words.contains("stays in") && words.contains(".model.new-"), "{words}");
        assert_eq!(fs::read_to_string(&target).unwrap(), "old");
        assert_eq!(files(folder.path()).len(), 3);
    }

    #[test]
    fn a_model_that_cannot_be_written_leaves_the_old_one_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("model");
        fs::create_dir(&target).unwrap();
        fs::write(target.join("config.json"), "old").unwrap();
        replace_folder(&target, |_| bail!("disk full")).unwrap_err();
        assert_eq!(
            (files(folder.path()), files(&target)),
            (vec!["model".into()], vec!["config.json".into()])
        );
        replace_folder(&target, |fresh| Ok(fs::write(fresh.join("weights"), "new")?)).unwrap();
        assert_eq!(
            (files(folder.path()), files(&target)),
            (vec!["model".into()], vec!["weights".into()])
        );
    }
}
