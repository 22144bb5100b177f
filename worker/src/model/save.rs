//! Writing a model folder that `transformers` and vLLM load.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};
use tch::Tensor;

use super::adapter::merged::{MergedWeights, Unmerged};
use super::companions::{Companions, GENERATION_CONFIG};
use super::config::{Head, ModelConfig, dtype_name};
use super::replace::{replace_folder, sync};
use super::safetensors::{INDEX, shard_name};
use super::shard_file;
use crate::native::bytes::byte_length;

/// Shards are split above this size unless asked otherwise, bytes.
pub const SHARD_BYTES: usize = 5_000_000_000;
/// The same for weights that have to be merged: a shard's merged tensors exist beside the model until they are written.
const MERGED_SHARD_BYTES: usize = 1_000_000_000;

/// Writes `weights` to the folder `target` in Hugging Face layout: configuration with the dtype updated, the tokenizer and
/// generation files of `source`, weights in shards of at most `shard_bytes` (a larger tensor has a shard of its own).
///
/// All is written to a temporary folder beside `target`, synced and renamed: `target` is never half a model. Killed between two
/// renames, the old and the new one lie whole beside it under hidden names. Killed before, what is half written goes with the next model.
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
    save_with(target, &Companions::read(source)?, config, weights, shard_bytes)
}

/// The same with tokenizer and generation files that were read before.
///
/// # Errors
/// As [`save`].
pub fn save_with(
    target: &Path,
    companions: &Companions,
    config: &ModelConfig,
    weights: impl Into<MergedWeights>,
    shard_bytes: usize,
) -> Result<()> {
    let weights = weights.into();
    replace_folder(target, |half| {
        write_folder(half, companions, config, &weights, shard_bytes)
    })
}

fn write_folder(
    folder: &Path,
    companions: &Companions,
    config: &ModelConfig,
    weights: &MergedWeights,
    shard_bytes: usize,
) -> Result<()> {
    write_json(&folder.join("config.json"), &Value::Object(config_of(config, weights)?))?;
    for (file, bytes) in companions.files() {
        write_companion(folder, file, bytes)?;
    }
    if config.head == Head::LanguageModel && !companions.has(GENERATION_CONFIG) {
        let made = generation_config(config, companions, folder);
        write_json(&folder.join(GENERATION_CONFIG), &made)?;
    }
    write_weights(folder, weights, shard_bytes)
}

/// Writes one to its place, which may be a folder inside the model's.
fn write_companion(folder: &Path, file: &Path, bytes: &[u8]) -> Result<()> {
    let path = folder.join(file);
    let place = path.parent().unwrap_or(folder);
    fs::create_dir_all(place).with_context(|| format!("creating {}", place.display()))?;
    fs::write(&path, bytes).with_context(|| format!("writing {}", path.display()))?;
    sync(&path)?;
    sync(place)
}

/// Where the source had none: what transformers makes of a configuration, and marks as made (`GenerationConfig.from_model_config` in
/// `generation/configuration_utils.py`). Of a configuration without an end token, as one for random weights may be, that of the tokenizer in
/// `folder` is taken, with which the model was trained.
fn generation_config(config: &ModelConfig, companions: &Companions, folder: &Path) -> Value {
    let mut made = Map::from_iter([("_from_model_config".to_owned(), Value::Bool(true))]);
    for name in ["bos_token_id", "eos_token_id", "pad_token_id"] {
        let id = config.raw.get(name).filter(|id| !id.is_null());
        made.extend(id.map(|id| (name.to_owned(), id.clone())));
    }
    if !made.contains_key("eos_token_id") {
        let tokenizers = companions.own_end(folder);
        made.extend(tokenizers.map(|id| ("eos_token_id".to_owned(), Value::from(id))));
    }
    Value::Object(made)
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
    let size: usize = tensors.iter().map(|(_, tensor)| byte_length(tensor)).sum();
    shard_file::write(path, tensors)
        .with_context(|| format!("writing {} ({} MiB)", path.display(), size.div_ceil(1 << 20)))?;
    readable_by_all(path)?;
    sync(path)
}

/// Models are read by other processes and users, whatever this one's umask is.
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

#[cfg(test)]
mod tests {
    use tch::Kind;

    use super::*;
    use crate::model::Weights;

    #[test]
    fn a_model_whose_configuration_has_no_end_token_is_saved_with_the_tokenizers() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let mut config = ModelConfig::read(&fixtures.join("llama")).unwrap();
        let weights = Weights::load(&fixtures.join("llama"), &config, Kind::Float).unwrap();
        let scratch = tempfile::tempdir().unwrap();
        let [source, target] = ["source", "target"].map(|name| scratch.path().join(name));
        fs::create_dir(&source).unwrap();
        let end = |config: &ModelConfig| {
            save(&target, &source, config, &weights, SHARD_BYTES).unwrap();
            let text = fs::read_to_string(target.join(GENERATION_CONFIG)).unwrap();
            serde_json::from_str::<Value>(&text).unwrap()["eos_token_id"].clone()
        };
        config.raw.remove("eos_token_id");
        assert_eq!(end(&config), Value::Null, "there is no tokenizer");
        for file in ["tokenizer.json", "tokenizer_config.json"] {
            fs::copy(fixtures.join("tokenizer/chatml").join(file), source.join(file)).unwrap();
        }
        assert_eq!(end(&config), json!(2));
        config.raw.insert("eos_token_id".into(), json!([3, 4]));
        assert_eq!(end(&config), json!([3, 4]), "what the configuration says wins");
    }
}
