//! Reward models and critics.

use std::fs;

use ppo_worker::model::{CriticFolder, Head, ModelConfig, RewardModel, TokenBatch, ValueModel, Weights, save};
use serde_json::{Value, json};
use tch::{Kind, Tensor};

use crate::files::relabel;
use crate::models::{distance, expected, fixture};
use crate::sequences;

#[test]
fn reward_scores_of_every_family_are_those_of_transformers_even_if_the_last_token_is_the_padding_token() {
    for name in ["reward", "reward-qwen2", "reward-qwen3"] {
        let all = sequences(name, false);
        assert_eq!(all[0].last(), Some(&2), "the first sequence ends in the padding token");
        let known = expected(name, "scores");
        let load = |kind: Kind| RewardModel::load(&fixture(name), kind).unwrap();
        let model = load(Kind::Float);
        let scores = model.scores(&all).unwrap();
        let error = distance(&Tensor::from_slice(&scores), &known["scores.f32"].view([-1]));
        assert!(error < 1e-5, "{name}: {error}");
        for (sequence, score) in all.iter().zip(&scores) {
            assert!((model.scores(&[sequence]).unwrap()[0] - score).abs() < 1e-5, "{name}");
        }
        let rounded = load(Kind::BFloat16).scores(&all).unwrap();
        let spread = distance(&known["scores.bf16"], &known["scores.f32"]);
        let error = distance(&Tensor::from_slice(&rounded), &known["scores.f32"].view([-1]));
        assert!(
            error < 1.5 * spread + 0.02,
            "{name}: {error}, where transformers rounds by {spread}"
        );
        assert!(model.scores::<Vec<u32>>(&[]).unwrap().is_empty());
    }
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
