use serde_json::json;
use tch::Device;

use super::merged::MergedWeights;
use super::*;
use crate::model::{Head, TokenBatch, ValueModel};
use crate::rollout::weights::frame;

fn config() -> ModelConfig {
    let raw = json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_hidden_layers": 2, "intermediate_size": 48, "vocab_size": 64, "initializer_range": 0.2
    });
    ModelConfig::from_json(raw.as_object().unwrap().clone()).unwrap()
}

fn spec(rank: u32) -> AdapterSpec {
    AdapterSpec {
        rank,
        alpha: 8.0,
        ..AdapterSpec::default()
    }
}

/// An adapter whose B is not zero, as after some updates.
fn trained(config: &ModelConfig) -> Adapter {
    let mut adapter = Adapter::new(config, &spec(4), 1).unwrap();
    let mut random = ChaCha8Rng::seed_from_u64(2);
    for (name, tensor) in &mut adapter.weights.0 {
        if name.ends_with(LORA_B) {
            *tensor = uniform(&mut random, &tensor.size()).unwrap();
        }
    }
    adapter
}

fn distance(a: &Tensor, b: &Tensor) -> f64 {
    let wide = |tensor: &Tensor| tensor.to_kind(Kind::Double);
    (wide(a) - wide(b)).abs().max().double_value(&[])
}

#[test]
fn a_fresh_adapter_is_a_function_of_its_seed_with_b_zero_and_a_as_peft_draws_it() {
    let config = config();
    let [first, again, other] = [7, 7, 8].map(|seed| Adapter::new(&config, &spec(4), seed).unwrap().weights.0);
    assert_eq!(first.len(), 2 * 7 * 2);
    assert!(
        first
            .iter()
            .all(|(name, tensor)| tensor.equal(&again[name]) && tensor.kind() == Kind::Float)
    );
    for (name, tensor) in &first {
        let greatest = tensor.abs().max().double_value(&[]);
        if name.ends_with(LORA_B) {
            assert_eq!(greatest, 0.0, "{name}");
            continue;
        }
        let bound = 1.0 / (tensor.size()[1] as f64).sqrt();
        assert!(
            greatest <= bound && greatest > 0.9 * bound,
            "{name}: {greatest} of {bound}"
        );
        // The variance of a uniform number is a third of its bound's square.
        let variance = tensor.square().mean(Kind::Double).double_value(&[]);
        assert!(
            (variance / (bound * bound / 3.0) - 1.0).abs() < 0.3,
            "{name}: {variance}"
        );
        assert!(!tensor.equal(&other[name]), "{name}");
    }
    assert_eq!(first["model.layers.1.mlp.down_proj.lora_A.weight"].size(), [4, 48]);
    assert_eq!(first["model.layers.1.self_attn.k_proj.lora_B.weight"].size(), [16, 4]);
}

#[test]
fn merging_adds_scale_b_a_in_float32_and_rounds_once() {
    let adapter = trained(&config());
    // Wider than a block of columns, and no multiple of a vector.
    let random = |dims: &[i64], seed: u64| uniform(&mut ChaCha8Rng::seed_from_u64(seed), dims).unwrap();
    let low_rank = LowRank {
        a: random(&[5, 1301], 3),
        b: random(&[37, 5], 4),
        scale: adapter.spec.scale(),
    };
    let weight = random(&[37, 1301], 5);
    let wide = |tensor: &Tensor| tensor.to_kind(Kind::Double);
    let exact = |weight: &Tensor| wide(weight) + wide(&low_rank.b).matmul(&wide(&low_rank.a)) * low_rank.scale;
    assert!(distance(&low_rank.merge(&weight).unwrap(), &exact(&weight)) < 1e-6);
    let rounded = weight.to_kind(Kind::BFloat16);
    let merged = low_rank.merge(&rounded).unwrap();
    assert_eq!(merged.kind(), Kind::BFloat16);
    // Half a unit in the last place of bfloat16's 8 bits, and float32's own rounding.
    let allowed = exact(&rounded).abs() / 256.0 + 1e-8;
    let off = ((wide(&merged) - exact(&rounded)).abs() / allowed)
        .max()
        .double_value(&[]);
    assert!(off <= 1.0, "{off}");
    // What a row becomes depends on no other row, so not on how threads share them.
    for row in [0, 11, 36] {
        let alone = LowRank {
            b: low_rank.b.narrow(0, row, 1),
            ..low_rank.shallow_clone()
        };
        let merged_alone = alone.merge(&rounded.narrow(0, row, 1)).unwrap();
        assert!(merged_alone.equal(&merged.narrow(0, row, 1)));
    }
}

#[test]
fn only_what_is_asked_for_is_merged_and_the_rest_is_shared() {
    let config = config();
    let weights = Weights::random(&config, Kind::BFloat16, 1).unwrap();
    let mut adapter = trained(&config);
    adapter.weights.0.retain(|name, _| name.contains("up_proj"));
    let merged = MergedWeights::new(weights.shallow_clone(), &adapter);
    assert!(merged.are_adapted() && !MergedWeights::from(&weights).are_adapted());
    for (name, weight) in &weights.0 {
        let found = merged.tensor(name).unwrap();
        let is_shared = found.data_ptr() == weight.data_ptr();
        assert_eq!(is_shared, !name.contains("up_proj"), "{name}");
        assert_eq!((found.kind(), found.size()), (weight.kind(), weight.size()));
    }
    assert!(merged.tensor("model.layers.9.mlp.up_proj.weight").is_err());
}

#[test]
fn the_stream_of_an_adapted_policy_is_that_of_its_merged_weights() {
    let config = config();
    let weights = Weights::random(&config, Kind::Float, 1).unwrap();
    let adapted = MergedWeights::new(weights, &trained(&config));
    let whole = adapted
        .iter()
        .map(|(name, tensor)| (name.clone(), tensor.merge().unwrap()));
    let whole = Weights(whole.collect());
    let bytes = |weights: MergedWeights| {
        let pieces: Result<Vec<Vec<u8>>> = frame::pieces(weights).unwrap().collect();
        pieces.unwrap().concat()
    };
    assert!(bytes(adapted) == bytes(whole.into()));
}

#[test]
fn an_adapter_of_another_model_is_not_attached() {
    let config = config();
    let weights = Weights::random(&config, Kind::Float, 1).unwrap();
    let mut decoder = crate::model::Decoder::new(&config, &weights).unwrap();
    let mut adapter = trained(&config);
    let extra = adapter.weights.0["model.layers.1.mlp.up_proj.lora_A.weight"].shallow_clone();
    adapter
        .weights
        .0
        .insert("model.layers.2.mlp.up_proj.lora_A.weight".into(), extra);
    let error = decoder.attach(&adapter).unwrap_err().to_string();
    assert!(
        error.contains("29 tensors") && error.contains("place for 28"),
        "{error}"
    );
}

#[test]
fn a_critic_on_the_policys_weights_shares_them_and_has_a_float32_head() {
    let config = config();
    let weights = Weights::random(&config, Kind::BFloat16, 1).unwrap();
    let (critic, mut theirs) = ValueModel::upon(config.clone(), &weights, Kind::BFloat16).unwrap();
    assert_eq!(critic.head, Head::Value);
    assert!(!theirs.0.contains_key(names::LM_HEAD));
    for (name, tensor) in theirs.0.iter().filter(|(name, _)| name.starts_with("model.")) {
        assert_eq!(tensor.data_ptr(), weights.0[name].data_ptr(), "{name}");
    }
    theirs.0.insert(
        names::SCORE_WEIGHT.into(),
        Tensor::full([1, 32], 0.5, (Kind::Float, Device::Cpu)),
    );
    theirs
        .0
        .insert(names::SCORE_BIAS.into(), Tensor::ones([1], (Kind::Float, Device::Cpu)));
    let mut model = ValueModel::new(&critic, &theirs).unwrap();
    model.decoder.attach(&trained(&config)).unwrap();
    let values = model.values(&TokenBatch::new(&[vec![1u32, 2, 3]]).unwrap()).unwrap();
    assert_eq!((values.kind(), values.size()), (Kind::Float, vec![3]));
    assert!(values.abs().max().double_value(&[]) > 0.0);
}

#[test]
fn an_adapter_and_a_critics_head_survive_saving_and_another_rank_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let config = config();
    let base = peft::Base {
        name: "owner/model".into(),
        revision: Some("main".into()),
    };
    let adapter = trained(&config);
    let target = scratch.path().join("adapter");
    peft::save(&target, &base, config.head, &adapter.spec, &adapter.weights).unwrap();
    let (again, head) = peft::load(&target, &config, &adapter.spec).unwrap();
    assert!(head.0.is_empty() && again.weights.0.len() == adapter.weights.0.len());
    assert!(
        again
            .weights
            .0
            .iter()
            .all(|(name, tensor)| tensor.equal(&adapter.weights.0[name]))
    );
    let written: serde_json::Value =
        serde_json::from_slice(&std::fs::read(target.join(peft::CONFIG)).unwrap()).unwrap();
    for (key, value) in [
        ("peft_type", json!("LORA")),
        ("task_type", json!("CAUSAL_LM")),
        ("r", json!(4)),
        ("lora_alpha", json!(8)),
        ("base_model_name_or_path", json!("owner/model")),
        (
            "target_modules",
            json!([
                "q_proj",
                "k_proj",
                "v_proj",
                "o_proj",
                "gate_proj",
                "up_proj",
                "down_proj"
            ]),
        ),
        ("modules_to_save", json!(null)),
    ] {
        assert_eq!(written[key], value, "{key}");
    }
    let error = format!("{:#}", peft::load(&target, &config, &spec(5)).unwrap_err());
    assert!(
        error.contains(peft::TENSORS) && error.contains("[4, 32], not [5, 32]"),
        "{error}"
    );

    let critic = config.with_head(Head::Value);
    let mut weights = adapter.weights.shallow_clone();
    weights.0.insert(
        names::SCORE_WEIGHT.into(),
        Tensor::full([1, 32], 0.25, (Kind::Float, Device::Cpu)),
    );
    weights.0.insert(
        names::SCORE_BIAS.into(),
        Tensor::full([1], -1.0, (Kind::Float, Device::Cpu)),
    );
    let target = scratch.path().join("critic");
    peft::save(&target, &base, critic.head, &adapter.spec, &weights).unwrap();
    let (again, head) = peft::load(&target, &critic, &adapter.spec).unwrap();
    assert_eq!((again.weights.0.len(), head.0.len()), (28, 2));
    assert!(head.0.iter().all(|(name, tensor)| tensor.equal(&weights.0[name])));
    assert!(peft::load(&target, &critic.with_head(Head::LanguageModel), &adapter.spec).is_err());
}
