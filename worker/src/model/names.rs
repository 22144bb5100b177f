//! The tensors a configuration calls for: Hugging Face names and shapes.

use std::collections::BTreeMap;

use ppo_crds::spec::AdapterSpec;

use super::adapter::{LORA_A, LORA_B};
use super::config::{Head, ModelConfig};

/// Name of the token embedding, `[vocab, hidden]`.
pub const EMBEDDING: &str = "model.embed_tokens.weight";
/// Name of the output projection, `[vocab, hidden]`; absent when tied.
pub const LM_HEAD: &str = "lm_head.weight";
/// Name of the weight of a score or value head, `[1, hidden]`.
pub const SCORE_WEIGHT: &str = "score.weight";
/// Name of the bias of a value head, `[1]`.
pub const SCORE_BIAS: &str = "score.bias";
/// What OpenRLHF called the weight of a score head before it took transformers' name.
const VALUE_HEAD: &str = "value_head.weight";

/// Ends of the names of buffers that a model computes by itself: rotary frequencies, what is made of them, places, and masks. transformers and
/// vLLM leave them out as well (`_adjust_missing_and_unexpected_keys` in `modeling_utils.py`, GPT-2's `_keys_to_ignore_on_load_unexpected`;
/// `AutoWeightsLoader`).
const BUFFERS: [&str; 6] = [
    "rotary_emb.inv_freq",
    "rotary_emb.cos_cached",
    "rotary_emb.sin_cached",
    "position_ids",
    "masked_bias",
    "attn.bias",
];

/// Every tensor of the model with its shape, by name.
pub fn expected(config: &ModelConfig) -> BTreeMap<String, Vec<i64>> {
    let mut shapes = trunk(config);
    match config.head {
        Head::LanguageModel if config.tied => {}
        Head::LanguageModel => {
            shapes.insert(LM_HEAD.into(), vec![config.vocab, config.hidden]);
        }
        Head::Score => {
            shapes.insert(SCORE_WEIGHT.into(), vec![1, config.hidden]);
        }
        Head::Value => {
            shapes.insert(SCORE_WEIGHT.into(), vec![1, config.hidden]);
            shapes.insert(SCORE_BIAS.into(), vec![1]);
        }
    }
    shapes
}

/// The tensors below the head, `model.*`.
pub fn trunk(config: &ModelConfig) -> BTreeMap<String, Vec<i64>> {
    let (hidden, intermediate) = (config.hidden, config.intermediate);
    let (queries, keys) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
    let mut shapes = BTreeMap::from([
        (EMBEDDING.to_owned(), vec![config.vocab, hidden]),
        ("model.norm.weight".to_owned(), vec![hidden]),
    ]);
    for layer in 0..config.layers {
        let mut add = |name: &str, dims: &[i64]| shapes.insert(format!("model.layers.{layer}.{name}"), dims.to_vec());
        add("input_layernorm.weight", &[hidden]);
        add("post_attention_layernorm.weight", &[hidden]);
        add("self_attn.q_proj.weight", &[queries, hidden]);
        add("self_attn.k_proj.weight", &[keys, hidden]);
        add("self_attn.v_proj.weight", &[keys, hidden]);
        add("self_attn.o_proj.weight", &[hidden, queries]);
        add("mlp.gate_proj.weight", &[intermediate, hidden]);
        add("mlp.up_proj.weight", &[intermediate, hidden]);
        add("mlp.down_proj.weight", &[hidden, intermediate]);
        if config.qkv_bias {
            add("self_attn.q_proj.bias", &[queries]);
            add("self_attn.k_proj.bias", &[keys]);
            add("self_attn.v_proj.bias", &[keys]);
        }
        if config.output_bias {
            add("self_attn.o_proj.bias", &[hidden]);
        }
        if config.qk_norm {
            add("self_attn.q_norm.weight", &[config.head_dim]);
            add("self_attn.k_norm.weight", &[config.head_dim]);
        }
    }
    shapes
}

/// Every tensor of an adapter with its shape, by name: A `[rank, in]` and B `[out, rank]` of each target in each layer.
pub fn adapter(config: &ModelConfig, spec: &AdapterSpec) -> BTreeMap<String, Vec<i64>> {
    let rank = i64::from(spec.rank);
    let is_target = |name: &str| spec.targets.iter().any(|target| target.name() == name);
    let mut shapes = BTreeMap::new();
    for (name, dims) in trunk(config) {
        let Some(projection) = name.strip_suffix(".weight") else {
            continue;
        };
        if let (Some((_, last)), [output, input]) = (projection.rsplit_once('.'), dims.as_slice())
            && is_target(last)
        {
            shapes.insert(format!("{projection}{LORA_A}"), vec![rank, *input]);
            shapes.insert(format!("{projection}{LORA_B}"), vec![*output, rank]);
        }
    }
    shapes
}

/// Names that older exporters wrote and no model needs: buffers that are recomputed, the copy of a tied embedding, and the value head that
/// TRL's PPO saved with its policies (`AutoModelForCausalLMWithValueHead`), which transformers and vLLM leave out, too.
pub fn ignored(config: &ModelConfig, name: &str) -> bool {
    let of_policy = config.head == Head::LanguageModel;
    // A whole part of a name: `self_attn.bias` would be a bias.
    let is_buffer = |end: &str| {
        let front = name.strip_suffix(end);
        front.is_some_and(|front| front.is_empty() || front.ends_with('.'))
    };
    BUFFERS.into_iter().any(is_buffer) || (name == LM_HEAD && config.tied) || (of_policy && name.starts_with("v_head."))
}

/// The name here of a tensor that a file has as `name`.
pub fn known<'a>(config: &ModelConfig, name: &'a str) -> &'a str {
    match config.head {
        Head::Score | Head::Value if name == VALUE_HEAD => SCORE_WEIGHT,
        Head::Score | Head::Value | Head::LanguageModel => name,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_policy_may_come_with_the_value_head_of_trl_and_a_reward_model_may_not() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let policy = ModelConfig::read(&fixtures.join("llama")).unwrap();
        for name in ["v_head.summary.weight", "v_head.summary.bias"] {
            assert!(ignored(&policy, name), "{name}");
            assert!(!ignored(&policy.clone().with_head(Head::Score), name), "{name}");
        }
        assert!(!ignored(&policy, LM_HEAD));
    }

    #[test]
    fn a_mask_is_passed_over_and_no_bias() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let config = ModelConfig::read(&fixtures.join("qwen2")).unwrap();
        assert!(expected(&config).keys().all(|name| !ignored(&config, name)));
        assert!(ignored(&config, "model.layers.0.attn.bias"));
        assert!(!ignored(&config, "model.layers.0.self_attn.bias"));
    }
}
