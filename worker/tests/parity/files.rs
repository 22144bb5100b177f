//! Folders of models: read, written, damaged.

use std::fs;
use std::path::Path;

use ppo_worker::model::{Decoder, ModelConfig, TokenBatch, Weights, save};
use serde_json::{Value, json};
use tch::{Kind, Tensor};

use crate::models::{POLICIES, fixture, logits};
use crate::{load, sequences};

/// Writes a fixture to `target` with `renamed` tensors, and `change` in its config.json; null takes a key out.
pub fn relabel(name: &str, target: &Path, renamed: &[(&str, &str)], change: Value) {
    let config = ModelConfig::read(&fixture(name)).unwrap();
    let mut weights = Weights::load(&fixture(name), &config, Kind::Float).unwrap();
    for (from, to) in renamed {
        let tensor = weights.0.remove(*from).unwrap();
        weights.0.insert((*to).to_owned(), tensor);
    }
    save(target, &fixture(name), &config, &weights, 1 << 30).unwrap();
    let file = target.join("config.json");
    let mut raw: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    for (key, value) in change.as_object().unwrap() {
        raw[key] = value.clone();
    }
    raw.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    fs::write(file, raw.to_string()).unwrap();
}

#[test]
fn both_spellings_of_the_rotary_parameters_mean_the_same() {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(
        fixture("llama3").join("config.v5.json"),
        folder.path().join("config.json"),
    )
    .unwrap();
    let new = ModelConfig::read(folder.path()).unwrap();
    let old = ModelConfig::read(&fixture("llama3")).unwrap();
    assert_eq!((new.rope_theta, new.rope_scaling), (old.rope_theta, old.rope_scaling));
    assert_eq!(old.rope_theta, 500.0);
}

#[test]
fn mistral_is_llama_under_another_name_which_it_keeps_when_it_is_saved() {
    let (llama, _) = load("llama", Kind::Float);
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path().join("mistral");
    let named = json!({"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 64});
    let mut narrow = named.clone();
    narrow["sliding_window"] = json!(63);
    relabel("llama", &folder, &[], narrow);
    let refused = format!("{:#}", ModelConfig::read(&folder).unwrap_err());
    assert!(refused.contains("max_position_embeddings 63 can be used"), "{refused}");

    relabel("llama", &folder, &[], named);
    let config = ModelConfig::read(&folder).unwrap();
    let weights = Weights::load(&folder, &config, Kind::Float).unwrap();
    let batch = TokenBatch::new(&sequences("llama", false)).unwrap();
    let mistral = logits(&Decoder::new(&config, &weights).unwrap(), &batch);
    assert!(mistral.equal(&logits(&llama, &batch)));

    let again = scratch.path().join("again");
    save(&again, &folder, &config, &weights, 1 << 30).unwrap();
    let raw: Value = serde_json::from_str(&fs::read_to_string(again.join("config.json")).unwrap()).unwrap();
    assert_eq!(raw["architectures"], json!(["MistralForCausalLM"]));
    assert_eq!(raw["model_type"], "mistral");
}

#[test]
fn a_saved_model_is_the_same_model_in_one_file_or_in_shards() {
    let scratch = tempfile::tempdir().unwrap();
    for name in POLICIES {
        for (shard_bytes, kind) in [(1 << 30, Kind::Float), (20_000, Kind::BFloat16)] {
            let (decoder, weights) = load(name, kind);
            let target = scratch.path().join(name);
            save(&target, &fixture(name), decoder.config(), &weights, shard_bytes).unwrap();
            assert_eq!(
                target.join("model.safetensors.index.json").exists(),
                shard_bytes == 20_000
            );
            assert!(target.join("generation_config.json").exists());
            let config = ModelConfig::read(&target).unwrap();
            assert_eq!(config.dtype, Some(kind));
            let again = Weights::load(&target, &config, kind).unwrap();
            assert!(weights.0.iter().all(|(name, tensor)| tensor.equal(&again.0[name])));
        }
    }
    let left: Vec<_> = fs::read_dir(scratch.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left.len(), POLICIES.len(), "something temporary was left: {left:?}");
}

#[test]
fn a_model_without_a_generation_config_is_saved_with_one_of_its_own() {
    let scratch = tempfile::tempdir().unwrap();
    let (source, target) = (scratch.path().join("source"), scratch.path().join("target"));
    fs::create_dir(&source).unwrap();
    let (_, weights) = load("llama", Kind::Float);
    let config = fs::read_to_string(fixture("llama").join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    let ends = json!({"bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": null});
    config
        .as_object_mut()
        .unwrap()
        .extend(ends.as_object().unwrap().clone());
    fs::write(source.join("config.json"), config.to_string()).unwrap();
    save(
        &target,
        &source,
        &ModelConfig::read(&source).unwrap(),
        &weights,
        1 << 30,
    )
    .unwrap();
    let saved = fs::read_to_string(target.join("generation_config.json")).unwrap();
    let saved: Value = serde_json::from_str(&saved).unwrap();
    assert_eq!(
        saved,
        json!({"_from_model_config": true, "bos_token_id": 1, "eos_token_id": [2, 3]})
    );
}

#[test]
fn missing_and_unexpected_tensors_are_one_error() {
    let scratch = tempfile::tempdir().unwrap();
    let (decoder, mut weights) = load("qwen2", Kind::Float);
    let norm = weights.0.remove("model.norm.weight").unwrap();
    weights.0.insert("model.strange.weight".into(), norm);
    weights.0.insert(
        "model.layers.1.mlp.up_proj.weight".into(),
        Tensor::zeros([3, 3], (Kind::Float, tch::Device::Cpu)),
    );
    let target = scratch.path().join("broken");
    save(&target, &fixture("qwen2"), decoder.config(), &weights, 1 << 30).unwrap();
    let error = format!(
        "{:#}",
        Weights::load(&target, decoder.config(), Kind::Float).unwrap_err()
    );
    for part in [
        "missing: model.norm.weight",
        "unexpected: model.strange.weight",
        "up_proj.weight is [3, 3], not [48, 32]",
    ] {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
}

#[test]
fn a_truncated_or_corrupt_file_is_an_error_that_names_it() {
    let scratch = tempfile::tempdir().unwrap();
    let whole = fs::read(fixture("qwen3").join("model.safetensors")).unwrap();
    let config = ModelConfig::read(&fixture("qwen3")).unwrap();
    let path = scratch.path().join("model.safetensors");
    let mut corrupt = whole.clone();
    corrupt[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    let cases = [
        &whole[..whole.len() - 10],
        &whole[..100],
        &whole[..4],
        &[],
        corrupt.as_slice(),
    ];
    for bytes in cases {
        fs::write(&path, bytes).unwrap();
        let error = format!("{:#}", Weights::load(scratch.path(), &config, Kind::Float).unwrap_err());
        assert!(error.contains("model.safetensors"), "{error}");
    }
}

#[test]
fn an_index_that_leaves_the_folder_or_names_a_lost_shard_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    for file in ["../secret.safetensors", "model-00009-of-00009.safetensors"] {
        let index = format!(r#"{{"weight_map": {{"model.norm.weight": "{file}"}}}}"#);
        fs::write(scratch.path().join("model.safetensors.index.json"), index).unwrap();
        let config = ModelConfig::read(&fixture("llama")).unwrap();
        let error = format!("{:#}", Weights::load(scratch.path(), &config, Kind::Float).unwrap_err());
        assert!(error.contains(file.trim_start_matches("../")), "{error}");
    }
}

#[test]
fn random_weights_depend_on_the_seed_alone() {
    let config = ModelConfig::read(&fixture("qwen2")).unwrap();
    let [first, again, other] = [1, 1, 2].map(|seed| Weights::random(&config, Kind::Float, seed).unwrap());
    let embedding = "model.embed_tokens.weight";
    assert!(first.0.iter().all(|(name, tensor)| tensor.equal(&again.0[name])));
    assert!(!first.0[embedding].equal(&other.0[embedding]));
    assert!((first.0[embedding].std(true).double_value(&[]) - config.initializer_range).abs() < 0.01);
    assert_eq!(first.0["model.norm.weight"].min().double_value(&[]), 1.0);
}
