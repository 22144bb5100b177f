//! What `transformers` computes with the models of `fixtures/` (made by `fixtures/make_fixtures.py`), we compute.

// clippy.toml allows these in #[test] functions; the helpers beside them are test code too.
#![allow(clippy::unwrap_used)]

mod models;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use ppo_worker::model::{CriticFolder, Decoder, Head, ModelConfig, RewardModel, TokenBatch, ValueModel, Weights, save};
use serde_json::{Value, json};
use tch::{Kind, Tensor};

use models::{POLICIES, distance, expected, fixture, logits, loss};

fn integers(name: &str, key: &str) -> Vec<Vec<i64>> {
    let tensors = Tensor::read_safetensors(fixture(name).join("expected.safetensors")).unwrap();
    let (_, tensor) = tensors.into_iter().find(|(found, _)| found == key).unwrap();
    let rows = if tensor.dim() == 1 { tensor.unsqueeze(0) } else { tensor };
    (0..rows.size()[0])
        .map(|row| Vec::try_from(rows.get(row)).unwrap())
        .collect()
}

fn sequences(name: &str, left_padded: bool) -> Vec<Vec<u32>> {
    let rows = integers(name, if left_padded { "ids.left" } else { "ids.right" });
    let lengths = integers(name, "lengths").remove(0);
    let cut = |(row, length): (Vec<i64>, i64)| {
        let start = if left_padded { row.len() - length as usize } else { 0 };
        row[start..start + length as usize]
            .iter()
            .map(|id| *id as u32)
            .collect()
    };
    rows.into_iter().zip(lengths).map(cut).collect()
}

fn load(name: &str, kind: Kind) -> (Decoder, Weights) {
    // The test harness already runs a thread per core; tiny products gain nothing from more.
    tch::set_num_threads(1);
    let config = ModelConfig::read(&fixture(name)).unwrap();
    let weights = Weights::load(&fixture(name), &config, kind).unwrap();
    (Decoder::new(&config, &weights).unwrap(), weights)
}

fn gradients(name: &str, kind: Kind, checkpointing: bool) -> BTreeMap<String, Tensor> {
    let (mut decoder, weights) = load(name, kind);
    weights.require_gradients().unwrap();
    decoder.set_activation_checkpointing(checkpointing);
    loss(&decoder, &sequences(name, false)).backward();
    decoder
        .parameters()
        .into_iter()
        .map(|(name, tensor)| (name, tensor.grad()))
        .collect()
}

#[test]
fn logits_are_those_of_transformers_whatever_the_padding() {
    for name in POLICIES {
        let (decoder, _) = load(name, Kind::Float);
        for (left_padded, key) in [(false, "logits.f32"), (true, "logits.left")] {
            let batch = TokenBatch::new(&sequences(name, left_padded)).unwrap();
            let far = distance(&logits(&decoder, &batch), &expected(name, key)[key]);
            assert!(far < 1e-4, "{name}, {key}: {far}");
        }
    }
}

#[test]
fn a_sequence_alone_has_the_logits_it_has_in_a_batch() {
    for name in POLICIES {
        let (decoder, _) = load(name, Kind::Float);
        let all = sequences(name, false);
        let batch = TokenBatch::new(&all).unwrap();
        let together = logits(&decoder, &batch);
        for (start, sequence) in batch.starts().into_iter().zip(&all) {
            let alone = logits(&decoder, &TokenBatch::new(&[sequence]).unwrap());
            let part = together.narrow(0, start as i64, sequence.len() as i64);
            assert!(distance(&alone, &part) < 1e-5, "{name}");
        }
    }
}

#[test]
fn bfloat16_logits_are_as_near_to_float32_as_those_of_transformers() {
    // Both round at other places, so neither is the other's truth: the distance to float32 is what they have in common.
    for name in POLICIES {
        let (decoder, _) = load(name, Kind::BFloat16);
        let batch = TokenBatch::new(&sequences(name, false)).unwrap();
        let known = expected(name, "logits");
        let ours = distance(&logits(&decoder, &batch), &known["logits.f32"]);
        let theirs = distance(&known["logits.bf16"], &known["logits.f32"]);
        assert!(
            ours < 1.5 * theirs,
            "{name}: {ours} from float32, transformers {theirs}"
        );
    }
}

#[test]
fn gradients_are_those_of_transformers() {
    for name in POLICIES {
        let ours = gradients(name, Kind::Float, false);
        let theirs = expected(name, "grad.");
        assert!(theirs.len() > 9);
        for (parameter, gradient) in theirs {
            let parameter = &parameter["grad.".len()..];
            let far = distance(&ours[parameter], &gradient);
            assert!(far < 1e-5, "{name}, {parameter}: {far}");
        }
    }
}

#[test]
fn the_kernels_agree_with_stock_operators_in_float64() {
    // float64 is not the kernels' business, so this compares two implementations.
    for name in POLICIES {
        let (kernels, stock) = (
            gradients(name, Kind::Float, false),
            gradients(name, Kind::Double, false),
        );
        for (parameter, gradient) in kernels {
            let far = distance(&gradient, &stock[&parameter]);
            assert!(far < 1e-5, "{name}, {parameter}: {far}");
        }
    }
}

#[test]
fn gradients_are_bit_identical_again_and_under_activation_checkpointing() {
    for kind in [Kind::Float, Kind::BFloat16] {
        for name in POLICIES {
            let (first, again, checkpointed) = (
                gradients(name, kind, false),
                gradients(name, kind, false),
                gradients(name, kind, true),
            );
            for (parameter, gradient) in first {
                assert!(
                    gradient.equal(&again[&parameter]),
                    "{name}, {parameter} differs when computed again"
                );
                assert!(
                    gradient.equal(&checkpointed[&parameter]),
                    "{name}, {parameter} differs under checkpointing"
                );
            }
        }
    }
}

#[test]
fn splitting_a_batch_changes_gradients_by_rounding_only() {
    let all = sequences("llama3", false);
    let tokens = |sequences: &[Vec<u32>]| sequences.iter().map(|s| s.len() - 1).sum::<usize>() as f64;
    let (decoder, weights) = load("llama3", Kind::Float);
    weights.require_gradients().unwrap();
    for part in all.chunks(1) {
        (loss(&decoder, part) * (tokens(part) / tokens(&all))).backward();
    }
    for (name, whole) in gradients("llama3", Kind::Float, false) {
        assert!(distance(&weights.get(&name).unwrap().grad(), &whole) < 1e-6, "{name}");
    }
}

#[test]
fn an_update_in_place_updates_the_decoder() {
    let (decoder, weights) = load("qwen3", Kind::Float);
    let batch = TokenBatch::new(&sequences("qwen3", false)).unwrap();
    let before = logits(&decoder, &batch);
    let _no_grad = tch::no_grad_guard();
    for (_, mut parameter) in decoder.parameters() {
        let _ = parameter.g_mul_scalar_(0.9);
    }
    let after = logits(&decoder, &batch);
    assert!(distance(&before, &after) > 1e-2);
    let rebuilt = Decoder::new(decoder.config(), &weights).unwrap();
    assert!(after.equal(&logits(&rebuilt, &batch)));
}

#[test]
fn reward_scores_are_those_of_transformers_even_if_the_last_token_is_the_padding_token() {
    let all = sequences("reward", false);
    assert_eq!(all[0].last(), Some(&2), "the first sequence ends in the padding token");
    let known = expected("reward", "scores");
    let model = RewardModel::load(&fixture("reward"), Kind::Float).unwrap();
    let scores = model.scores(&all).unwrap();
    assert!(distance(&Tensor::from_slice(&scores), &known["scores.f32"].view([-1])) < 1e-5);
    for (sequence, score) in all.iter().zip(&scores) {
        assert!((model.scores(&[sequence]).unwrap()[0] - score).abs() < 1e-5);
    }
    let rounded = RewardModel::load(&fixture("reward"), Kind::BFloat16)
        .unwrap()
        .scores(&all)
        .unwrap();
    let spread = distance(&known["scores.bf16"], &known["scores.f32"]);
    assert!(distance(&Tensor::from_slice(&rounded), &known["scores.f32"].view([-1])) < 1.5 * spread + 0.02);
    assert!(model.scores::<Vec<u32>>(&[]).unwrap().is_empty());
}

/// Writes a fixture to `target` with `renamed` tensors, and `change` in its config.json; null takes a key out.
fn relabel(name: &str, target: &Path, renamed: &[(&str, &str)], change: Value) {
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
fn a_reward_model_that_openrlhf_saved_scores_as_the_same_one_of_transformers() {
    let scratch = tempfile::tempdir().unwrap();
    let all = sequences("reward", false);
    let scores = RewardModel::load(&fixture("reward"), Kind::Float)
        .unwrap()
        .scores(&all)
        .unwrap();
    let theirs = json!({"architectures": ["RewardModel"], "id2label": null, "label2id": null, "value_head_prefix": "value_head"});
    let heads: [&[(&str, &str)]; 2] = [&[], &[("score.weight", "value_head.weight")]];
    for renamed in heads {
        let folder = scratch.path().join("openrlhf");
        relabel("reward", &folder, renamed, theirs.clone());
        let model = RewardModel::load(&folder, Kind::Float).unwrap();
        assert_eq!(model.scores(&all).unwrap(), scores);
        // What is made of it, transformers reads.
        let again = scratch.path().join("again");
        let weights = Weights(model.parameters().into_iter().collect());
        save(&again, &folder, model.config(), &weights, 1 << 30).unwrap();
        let raw: Value = serde_json::from_str(&fs::read_to_string(again.join("config.json")).unwrap()).unwrap();
        assert_eq!(raw["architectures"], json!(["LlamaForSequenceClassification"]));
        assert_eq!(
            RewardModel::load(&again, Kind::Float).unwrap().scores(&all).unwrap(),
            scores
        );
    }
}

#[test]
fn labels_are_the_rows_of_the_head_and_a_critics_trunk_needs_none() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path().join("classifier");
    relabel("reward", &folder, &[], json!({"id2label": null, "label2id": null}));
    RewardModel::load(&folder, Kind::Float).unwrap();

    let config = ModelConfig::read(&folder).unwrap();
    let mut weights = Weights::load(&folder, &config, Kind::Float).unwrap();
    let score = weights.0["score.weight"].shallow_clone();
    weights
        .0
        .insert("score.weight".into(), Tensor::cat(&[&score, &score], 0));
    save(&folder, &fixture("reward"), &config, &weights, 1 << 30).unwrap();
    let error = format!("{:#}", RewardModel::load(&folder, Kind::Float).unwrap_err());
    assert!(
        error.contains("score.weight is [2, 32], not [1, 32] (a reward model or critic has exactly one label)"),
        "{error}"
    );
    ValueModel::load(&folder, Kind::Float).unwrap();
}

#[test]
fn a_critic_of_a_reward_model_keeps_its_head_where_it_is_wanted() {
    let all = sequences("reward", false);
    let batch = TokenBatch::new(&all).unwrap();
    let scores = RewardModel::load(&fixture("reward"), Kind::Float)
        .unwrap()
        .scores(&all)
        .unwrap();
    let values = |keeps_score: bool| {
        let source = CriticFolder::read(&fixture("reward"), keeps_score).unwrap();
        let weights = source.load(Kind::Float.into()).unwrap();
        let critic = ValueModel::new(source.config(), &weights).unwrap();
        Vec::<f32>::try_from(&critic.values(&batch).unwrap()).unwrap()
    };
    assert!(values(false).iter().all(|value| *value == 0.0));
    let kept = values(true);
    for ((start, sequence), score) in batch.starts().into_iter().zip(&all).zip(&scores) {
        let last = kept[start + sequence.len() - 1];
        assert!((last - score).abs() < 1e-5, "{last} {score}");
    }
    // A language model has none to keep.
    let source = CriticFolder::read(&fixture("llama"), true).unwrap();
    let weights = source.load(Kind::Float.into()).unwrap();
    assert_eq!(weights.get("score.weight").unwrap().abs().max().double_value(&[]), 0.0);
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
fn a_critic_made_from_a_policy_starts_at_zero_and_survives_saving() {
    let scratch = tempfile::tempdir().unwrap();
    let batch = TokenBatch::new(&sequences("llama3", false)).unwrap();
    let (config, weights) = ValueModel::load(&fixture("llama3"), Kind::Float).unwrap();
    let critic = ValueModel::new(&config, &weights).unwrap();
    assert_eq!(critic.values(&batch).unwrap().abs().max().double_value(&[]), 0.0);

    weights.require_gradients().unwrap();
    (critic.values(&batch).unwrap() - 1.0)
        .square()
        .mean(Kind::Float)
        .backward();
    {
        let _no_grad = tch::no_grad_guard();
        for (_, parameter) in critic.parameters() {
            let step = parameter.grad() * 0.1;
            let _ = parameter.shallow_clone().g_sub_(&step);
        }
    }
    let values = critic.values(&batch).unwrap();
    assert!(values.abs().max().double_value(&[]) > 0.0);

    let target = scratch.path().join("critic");
    save(&target, &fixture("llama3"), &config, &weights, 1 << 30).unwrap();
    let (config, weights) = ValueModel::load(&target, Kind::Float).unwrap();
    assert_eq!(config.head, Head::Value);
    assert!(
        ValueModel::new(&config, &weights)
            .unwrap()
            .values(&batch)
            .unwrap()
            .equal(&values)
    );
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

#[test]
fn a_token_outside_the_vocabulary_is_an_error() {
    let (decoder, _) = load("llama", Kind::Float);
    let batch = TokenBatch::new(&[vec![3, 96]]).unwrap();
    let error = decoder.hidden(&batch).unwrap_err().to_string();
    assert!(error.contains("token id 96 is outside the vocabulary of 96"), "{error}");
}
