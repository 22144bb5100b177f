//! What `transformers` computes with the models of `fixtures/` (made by `fixtures/make_fixtures.py`), we compute.

// clippy.toml allows these in #[test] functions; the helpers beside them are test code too.
#![allow(clippy::unwrap_used)]

mod files;
mod heads;
#[path = "../models/mod.rs"]
mod models;

use std::collections::BTreeMap;

use ppo_worker::model::{Decoder, ModelConfig, TokenBatch, Weights};
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
fn a_token_outside_the_vocabulary_is_an_error() {
    let (decoder, _) = load("llama", Kind::Float);
    let batch = TokenBatch::new(&[vec![3, 96]]).unwrap();
    let error = decoder.hidden(&batch).unwrap_err().to_string();
    assert!(error.contains("token id 96 is outside the vocabulary of 96"), "{error}");
}
