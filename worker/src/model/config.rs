//! `config.json` of the supported decoder families, read strictly: what would be computed wrongly is refused by name.

mod keys;

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use ppo_crds::memory::ModelShape;
use serde_json::{Map, Value};
use tch::Kind;

use self::keys::Keys;
use super::rope::RopeScaling;
use super::unread;
use crate::hub::foreign;

/// Most layers that are believed. A tensor's name is made for each before the weights are looked at, so a file that asks for
/// more would cost memory by its word alone. The deepest models have some hundred.
const MOST_LAYERS: i64 = 10_000;

/// The decoder families. They differ in biases and in the norms of queries and keys, not in structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Llama 1, 2 and 3.
    Llama,
    /// Llama's arithmetic, without a sliding window.
    Mistral,
    /// Bias on the query, key and value projections.
    Qwen2,
    /// RMSNorm on every head's query and key.
    Qwen3,
}

/// What sits on the trunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// `...ForCausalLM`: logits over the vocabulary.
    LanguageModel,
    /// `...ForSequenceClassification`, one label: a score per sample, `score.weight` without bias. So are OpenRLHF's reward models and
    /// critics.
    Score,
    /// `...ForTokenClassification`, one label: a value per token, `score.weight` and `score.bias`. The critic.
    Value,
}

impl Head {
    fn architecture_suffix(self) -> &'static str {
        match self {
            Self::LanguageModel => "ForCausalLM",
            Self::Score => "ForSequenceClassification",
            Self::Value => "ForTokenClassification",
        }
    }
}

const FAMILIES: [(&str, &str, Family); 4] = [
    ("llama", "Llama", Family::Llama),
    ("mistral", "Mistral", Family::Mistral),
    ("qwen2", "Qwen2", Family::Qwen2),
    ("qwen3", "Qwen3", Family::Qwen3),
];

/// Classes of OpenRLHF (`openrlhf/models/model.py`): a linear layer without bias on a trunk, whose family `model_type` says. The last one is
/// what its releases of 2024 called both.
const OPENRLHF: [&str; 3] = ["RewardModel", "CriticModel", "LLMForSequenceRegression"];

/// `max_position_embeddings` where a file leaves it out: that of LlamaConfig, the least of the families'.
const MAX_POSITIONS: i64 = 2048;

/// `sliding_window` where a file leaves it out: that of MistralConfig.
const MISTRAL_WINDOW: i64 = 4096;

/// `max_window_layers` where a file leaves it out: that of Qwen2Config and Qwen3Config.
const FULL_LAYERS: i64 = 28;

/// What a `config.json` of `ppo-worker rm` has: see [`ModelConfig::scores_at_end_token`]. transformers keeps keys that it does not know.
const SCORED_AT_END_TOKEN: (&str, &str) = ("score_position", "end_token");

/// A decoder's shape and conventions.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    /// Which family's conventions hold.
    pub family: Family,
    /// What sits on the trunk.
    pub head: Head,
    /// Width of the hidden states.
    pub hidden: i64,
    /// Decoder layers.
    pub layers: i64,
    /// Query heads.
    pub heads: i64,
    /// Key and value heads; a divisor of the query heads.
    pub kv_heads: i64,
    /// Dimensions of a head; even.
    pub head_dim: i64,
    /// Width inside the MLP.
    pub intermediate: i64,
    /// Rows of the embedding.
    pub vocab: i64,
    /// Whether the output projection is the embedding.
    pub tied: bool,
    /// Bias on the query, key and value projections.
    pub qkv_bias: bool,
    /// Bias on the attention's output projection.
    pub output_bias: bool,
    /// RMSNorm per head on queries and keys, before the rotation.
    pub qk_norm: bool,
    /// Added to the mean square in every norm.
    pub norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// How the rotary frequencies are stretched.
    pub rope_scaling: RopeScaling,
    /// Longest sequence the model was made for, tokens.
    pub max_positions: usize,
    /// Standard deviation of a random initialisation (`initializer_range`).
    pub initializer_range: f64,
    /// The precision the weights were saved in, float32 for float64; None when the file does not say.
    pub dtype: Option<Kind>,
    /// The file as it was read, passed through when the model is saved.
    pub(super) raw: Map<String, Value>,
}

impl ModelConfig {
    /// Reads `config.json` of a model folder.
    ///
    /// # Errors
    /// When the file is missing or not JSON, or names something this worker does not compute; the message has the file,
    /// the key and what is supported.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join("config.json");
        let raw = read_object(&path)?.with_context(|| {
            format!(
                "{} does not exist: {}",
                path.display(),
                foreign::told(folder).unwrap_or("a model folder in Hugging Face layout has a config.json")
            )
        })?;
        Self::from_json(raw).with_context(|| format!("in {}", path.display()))
    }

    /// As [`read`](Self::read), of a model that gives texts.
    ///
    /// # Errors
    /// As [`read`](Self::read); where another head is on the trunk.
    pub fn read_language_model(folder: &Path) -> Result<Self> {
        let model = Self::read(folder)?;
        ensure!(
            model.head == Head::LanguageModel,
            "{} is no language model (…ForCausalLM) but a reward model or critic: give the model that it was made from",
            folder.display()
        );
        Ok(model)
    }

    /// The configuration of a parsed `config.json`.
    ///
    /// # Errors
    /// As [`read`](Self::read), without the file's name.
    pub fn from_json(raw: Map<String, Value>) -> Result<Self> {
        let keys = Keys(&raw);
        let (family, head) = architecture(&keys)?;
        refuse_unsupported(&keys, family)?;

        let layers = keys.required("num_hidden_layers")?;
        if layers > MOST_LAYERS {
            bail!("num_hidden_layers is {layers}: at most {MOST_LAYERS} are believed");
        }
        let hidden = keys.required("hidden_size")?;
        let heads = keys.required("num_attention_heads")?;
        let kv_heads = keys.size("num_key_value_heads")?.unwrap_or(heads);
        if kv_heads > heads || heads % kv_heads != 0 {
            bail!("num_attention_heads ({heads}) must be a multiple of num_key_value_heads ({kv_heads})");
        }
        let head_dim = match keys.size("head_dim")? {
            Some(dim) => dim,
            // Qwen3Config's default; the other families derive it.
            None if family == Family::Qwen3 => 128,
            None if hidden % heads == 0 => hidden / heads,
            None => {
                bail!("hidden_size ({hidden}) must be a multiple of num_attention_heads ({heads}) or head_dim given")
            }
        };
        if head_dim % 2 != 0 {
            bail!("head_dim is {head_dim}: rotary embeddings need an even number");
        }
        // Mistral has no such key.
        let attention_bias = family != Family::Mistral && keys.flag("attention_bias")?.unwrap_or(false);
        let (rope_theta, rope_scaling) = RopeScaling::from_config(&raw)?;
        let class = class(&keys);
        let (is_named, is_openrlhf) = (class.is_some(), class.is_some_and(|class| OPENRLHF.contains(&class)));
        let mut config = Self {
            family,
            head,
            hidden,
            layers,
            heads,
            kv_heads,
            head_dim,
            intermediate: keys.required("intermediate_size")?,
            vocab: keys.required("vocab_size")?,
            tied: keys.flag("tie_word_embeddings")?.unwrap_or(false),
            qkv_bias: family == Family::Qwen2 || attention_bias,
            output_bias: family != Family::Qwen2 && attention_bias,
            qk_norm: family == Family::Qwen3,
            norm_eps: keys.number("rms_norm_eps")?.unwrap_or(1e-6),
            rope_theta,
            rope_scaling,
            max_positions: keys.size("max_position_embeddings")?.unwrap_or(MAX_POSITIONS) as usize,
            initializer_range: keys.number("initializer_range")?.unwrap_or(0.02),
            dtype: keys.dtype()?,
            raw,
        };
        if is_openrlhf {
            // What is saved has transformers' names, and is read by both.
            config.name_class();
            config.raw.remove("value_head_prefix");
            config.spell_out();
            return Ok(config.scoring_at_end_token());
        }
        if !is_named {
            // vLLM loads no model that does not say it.
            config.name_class();
        }
        config.spell_out();
        Ok(config)
    }

    /// The same trunk under another head, as a critic is built on a policy.
    #[must_use]
    pub fn with_head(mut self, head: Head) -> Self {
        if self.head == head {
            return self;
        }
        self.head = head;
        self.name_class();
        self
    }

    /// The same with the id of the token that fills a batch: the one that the file names, unless it is the `end` of responses as well (as in
    /// SmolLM2-Instruct's), else the tokenizer's, else none. transformers scores a sequence at the last token that is not this one.
    #[must_use]
    pub fn padded_with(mut self, tokenizers: Option<u32>, end: Option<u32>) -> Self {
        let named = self.raw.get("pad_token_id").and_then(Value::as_u64);
        let named = named.filter(|id| Some(*id) != end.map(u64::from));
        match named.or(tokenizers.map(u64::from)) {
            Some(id) => self.raw.insert("pad_token_id".into(), id.into()),
            None => self.raw.remove("pad_token_id"),
        };
        self
    }

    /// The same for a reward model that [scores at the end token](Self::scores_at_end_token).
    #[must_use]
    pub fn scoring_at_end_token(mut self) -> Self {
        let (key, value) = SCORED_AT_END_TOKEN;
        self.raw.insert(key.into(), value.into());
        self
    }

    /// Whether a reward model was trained to score a response at its end token, as `ppo-worker rm` and OpenRLHF do
    /// (`datasets/reward_dataset.py` strips line feeds); others at what their chat template writes behind that, as `apply_chat_template`
    /// gives it.
    pub fn scores_at_end_token(&self) -> bool {
        let (key, value) = SCORED_AT_END_TOKEN;
        self.raw.get(key).is_some_and(|told| told == value)
    }

    /// Writes into the file what transformers would take from a default of its own: Qwen2Config and Qwen3Config have 32 heads of keys,
    /// MistralConfig 8, where ours are as many as those of queries; without a `model_type` it loads nothing.
    fn spell_out(&mut self) {
        self.raw.insert("num_key_value_heads".into(), self.kv_heads.into());
        let known = FAMILIES.iter().find(|(_, _, family)| *family == self.family);
        let told = self.raw.get("model_type").is_some_and(|told| !told.is_null());
        if let Some((model_type, _, _)) = known.filter(|_| !told) {
            self.raw.insert("model_type".into(), (*model_type).into());
        }
    }

    /// Writes into the file which class of transformers the model is, with how many labels.
    fn name_class(&mut self) {
        let family = FAMILIES
            .iter()
            .find(|(_, _, family)| *family == self.family)
            .map_or("", |(_, class, _)| *class);
        let architecture = format!("{family}{}", self.head.architecture_suffix());
        self.raw.insert("architectures".into(), Value::from(vec![architecture]));
        if self.head != Head::LanguageModel {
            // transformers derives num_labels from these, and a file that has it too, for a model's own labels, would contradict them.
            self.raw.remove("num_labels");
            self.raw.insert("id2label".into(), serde_json::json!({"0": "LABEL_0"}));
            self.raw.insert("label2id".into(), serde_json::json!({"LABEL_0": 0}));
        }
    }

    /// What a model computes with its tensors, as far as their names and sizes do not say it. Checkpoints hold a digest of it: what is here
    /// stays as it is.
    pub fn conventions(&self) -> String {
        format!(
            "{:?} {:?}, heads {} of {}, {} of keys, eps {:?}, rope {:?} {:?}",
            self.family,
            self.head,
            self.heads,
            self.head_dim,
            self.kv_heads,
            self.norm_eps,
            self.rope_theta,
            self.rope_scaling
        )
    }

    /// The numbers a memory estimate needs.
    pub fn shape(&self) -> ModelShape {
        ModelShape {
            hidden: self.hidden as u64,
            layers: self.layers as u64,
            heads: self.heads as u64,
            kv_heads: self.kv_heads as u64,
            head_dim: self.head_dim as u64,
            intermediate: self.intermediate as u64,
            vocab: self.vocab as u64,
            tied: self.tied,
            qkv_bias: self.qkv_bias,
            qk_norm: self.qk_norm,
        }
    }
}

/// The first of `architectures`.
fn class<'a>(keys: &'a Keys) -> Option<&'a str> {
    let first = keys.0.get("architectures").and_then(|list| list.get(0));
    first.and_then(Value::as_str)
}

/// How many labels a classifier has its head's rows say, not this file: transformers leaves `num_labels` out of it, and OpenRLHF's says
/// nothing.
fn architecture(keys: &Keys) -> Result<(Family, Head)> {
    let supported = "supported are Llama, Mistral, Qwen2 and Qwen3, each ...ForCausalLM, ...ForSequenceClassification or \
                     ...ForTokenClassification with one label, and OpenRLHF's RewardModel, CriticModel and LLMForSequenceRegression of these";
    let model_type = keys.0.get("model_type").and_then(Value::as_str).unwrap_or("absent");
    let of_type = FAMILIES.iter().find(|(model, _, _)| *model == model_type);
    let (name, head) = match class(keys) {
        None => ("empty".to_owned(), Head::LanguageModel),
        Some(name) if OPENRLHF.contains(&name) => (format!("[\"{name}\"]"), Head::Score),
        Some(name) => {
            for (_, class, family) in FAMILIES {
                for head in [Head::LanguageModel, Head::Score, Head::Value] {
                    if name.strip_prefix(class) == Some(head.architecture_suffix()) {
                        if model_type != "absent" && of_type.is_none_or(|(_, _, other)| *other != family) {
                            bail!(
                                "architectures is [\"{name}\"] and model_type is {model_type}, which are two families: transformers goes by \
                                 model_type and vLLM by architectures; let both name the one that the weights are of"
                            );
                        }
                        return Ok((family, head));
                    }
                }
            }
            bail!("architectures is [\"{name}\"]: {supported}")
        }
    };
    match of_type {
        Some((_, _, family)) => Ok((*family, head)),
        None => bail!("architectures is {name} and model_type is {model_type}: {supported}"),
    }
}

fn refuse_unsupported(keys: &Keys, family: Family) -> Result<()> {
    if let Some(activation) = keys.0.get("hidden_act").and_then(Value::as_str)
        // transformers has both names for it (`ACT2CLS` in `activations.py`).
        && !matches!(activation, "silu" | "swish")
    {
        bail!("hidden_act is {activation}: only silu is supported");
    }
    if keys.flag("mlp_bias")?.unwrap_or(false) {
        bail!("mlp_bias is true: only MLPs without bias are supported");
    }
    if family != Family::Llama && keys.flag("use_sliding_window")?.unwrap_or(false) && !are_all_full(keys, family)? {
        bail!("use_sliding_window is true: only full attention is supported");
    }
    if family == Family::Mistral {
        let window = match keys.0.contains_key("sliding_window") {
            true => keys.size("sliding_window")?,
            false => Some(MISTRAL_WINDOW),
        };
        let positions = keys.size("max_position_embeddings")?.unwrap_or(MAX_POSITIONS);
        if let Some(window) = window.filter(|window| *window < positions) {
            bail!(
                "sliding_window is {window} and max_position_embeddings {positions}: only full attention is supported. Up to {window} \
                 tokens they are the same: a copy of the folder whose config.json says max_position_embeddings {window} can be used"
            );
        }
    }
    let layer_types = keys.0.get("layer_types").and_then(Value::as_array);
    if let Some(other) = layer_types
        .into_iter()
        .flatten()
        .find(|kind| kind.as_str() != Some("full_attention"))
    {
        bail!("layer_types has {other}: only \"full_attention\" is supported");
    }
    if let Some(why) = unread::by_config(keys.0) {
        bail!("{why}");
    }
    Ok(())
}

/// Whether a Qwen's window begins behind its last layer (`layer_types` in `configuration_qwen2.py`).
fn are_all_full(keys: &Keys, family: Family) -> Result<bool> {
    let has_windows = matches!(family, Family::Qwen2 | Family::Qwen3);
    // It may be 0: then the first layer has a window.
    let full = match keys.given("max_window_layers") {
        Some(value) => value.as_i64().unwrap_or(0),
        None => FULL_LAYERS,
    };
    Ok(has_windows && full >= keys.required("num_hidden_layers")?)
}

fn read_object(path: &Path) -> Result<Option<Map<String, Value>>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
    };
    let object = serde_json::from_str(&text).with_context(|| format!("{} is not a JSON object", path.display()))?;
    Ok(Some(object))
}

/// The dtype as config.json and torch name it; None for what no model is kept in.
pub fn dtype_name(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Float => Some("float32"),
        Kind::BFloat16 => Some("bfloat16"),
        Kind::Half => Some("float16"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config(change: Value) -> Result<ModelConfig> {
        let mut raw = json!({
            "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
            "intermediate_size": 96, "vocab_size": 128
        });
        for (key, value) in change.as_object().unwrap() {
            raw[key] = value.clone();
        }
        ModelConfig::from_json(raw.as_object().unwrap().clone())
    }

    #[test]
    fn what_would_be_computed_wrongly_is_refused_by_key() {
        for (change, named) in [
            (json!({"architectures": ["MixtralForCausalLM"]}), "MixtralForCausalLM"),
            (
                json!({"architectures": ["MistralForCausalLM"], "max_position_embeddings": 32768, "sliding_window": 4096}),
                "sliding_window is 4096",
            ),
            (
                json!({"architectures": ["MistralForCausalLM"], "max_position_embeddings": 32768}),
                "sliding_window is 4096",
            ),
            (
                json!({"architectures": ["RewardModel"], "model_type": "gemma"}),
                "[\"RewardModel\"] and model_type is gemma",
            ),
            (
                json!({"model_type": "gemma"}),
                "model_type is gemma, which are two families",
            ),
            (
                json!({"model_type": "mistral", "sliding_window": 64, "max_position_embeddings": 128}),
                "model_type is mistral, which are two families",
            ),
            (json!({"hidden_act": "gelu"}), "hidden_act"),
            (json!({"mlp_bias": true}), "mlp_bias"),
            (
                json!({"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": true, "max_window_layers": 1}),
                "use_sliding_window",
            ),
            (
                json!({"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": true, "num_hidden_layers": 29}),
                "use_sliding_window",
            ),
            (
                json!({"layer_types": ["full_attention", "sliding_attention"]}),
                "sliding_attention",
            ),
            (
                json!({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}),
                "dynamic",
            ),
            (json!({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}), "yarn"),
            (
                json!({"rope_parameters": {"rope_theta": 1e6}, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}),
                "rope_scaling: rope_type is yarn",
            ),
            (
                json!({"rope_parameters": {"rope_theta": 1e6}, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
                "rope_parameters and rope_scaling say different things",
            ),
            (json!({"rope_scaling": {"type": "linear"}}), "rope_scaling.factor"),
            (
                json!({"rope_scaling": {"type": "linear", "factor": 0}}),
                "rope_scaling.factor",
            ),
            (json!({"rope_theta": -1.0}), "rope_theta is -1.0"),
            (json!({"partial_rotary_factor": 0.5}), "partial_rotary_factor is 0.5"),
            (
                json!({"rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 0.5}}),
                "partial_rotary_factor is 0.5",
            ),
            (json!({"quantization_config": {"bits": 4}}), "quantization_config"),
            (json!({"num_key_value_heads": 3}), "num_key_value_heads"),
            (json!({"vocab_size": -1}), "vocab_size"),
            (json!({"vocab_size": 1u64 << 40}), "vocab_size"),
            (json!({"num_hidden_layers": 1_000_000_000}), "num_hidden_layers"),
            (json!({"dtype": "int8"}), "dtype"),
        ] {
            let message = config(change).unwrap_err().to_string();
            assert!(message.contains(named), "{named} is not in: {message}");
        }
    }

    #[test]
    fn a_file_that_says_its_scaling_in_both_spellings_is_read() {
        let linear = json!({"type": "linear", "factor": 2.0});
        let both = json!({"rope_parameters": linear, "rope_scaling": linear, "rope_theta": 5e5});
        let model = config(both).unwrap();
        assert_eq!(
            (model.rope_theta, model.rope_scaling),
            (5e5, RopeScaling::Linear { factor: 2.0 })
        );
    }

    #[test]
    fn a_qwen_whose_window_begins_behind_its_last_layer_is_read() {
        for class in ["Qwen2ForCausalLM", "Qwen3ForCausalLM"] {
            for layers in [json!(2), json!(28)] {
                let change = json!({"architectures": [class], "use_sliding_window": true, "max_window_layers": layers});
                config(change).unwrap();
            }
            config(json!({"architectures": [class], "use_sliding_window": true})).unwrap();
        }
    }

    #[test]
    fn the_other_name_of_silu_is_read() {
        config(json!({"hidden_act": "swish"})).unwrap();
    }

    #[test]
    fn a_model_of_float64_is_one_of_float32() {
        for key in ["dtype", "torch_dtype"] {
            assert_eq!(config(json!({key: "float64"})).unwrap().dtype, Some(Kind::Float));
        }
    }

    #[test]
    fn what_a_file_leaves_to_defaults_is_saved_as_it_was_taken() {
        for (class, model_type) in [
            ("LlamaForCausalLM", "llama"),
            ("MistralForCausalLM", "mistral"),
            ("Qwen2ForCausalLM", "qwen2"),
            ("Qwen3ForCausalLM", "qwen3"),
        ] {
            for left_out in [json!({}), json!({"model_type": null, "num_key_value_heads": null})] {
                let mut change = json!({"architectures": [class], "max_position_embeddings": 2048});
                for (key, value) in left_out.as_object().unwrap() {
                    change[key] = value.clone();
                }
                let saved = config(change).unwrap().raw;
                assert_eq!(saved["num_key_value_heads"], 4);
                assert_eq!(saved["model_type"], model_type);
            }
        }
        let given = json!({"model_type": "llama", "num_key_value_heads": 2});
        assert_eq!(config(given).unwrap().raw["num_key_value_heads"], 2);
    }

    #[test]
    fn the_parameter_count_follows_the_shape() {
        // Per layer 2 norms, 4 square projections, 3 of the MLP; embedding, final norm, untied output.
        let per_layer = 2 * 64 + 4 * 64 * 64 + 3 * 64 * 96;
        assert_eq!(
            config(json!({})).unwrap().shape().parameters(),
            2 * per_layer + 64 + 2 * 128 * 64
        );
        let tied = config(json!({"tie_word_embeddings": true})).unwrap().shape();
        assert_eq!(tied.parameters(), 2 * per_layer + 64 + 128 * 64);
    }

    #[test]
    fn a_critic_is_a_token_classifier_with_one_label() {
        for labels in [
            json!({}),
            json!({"num_labels": 2, "id2label": {"0": "bad", "1": "good"}}),
        ] {
            let critic = config(labels).unwrap().with_head(Head::Value);
            let again = ModelConfig::from_json(critic.raw).unwrap();
            assert_eq!((again.family, again.head), (Family::Llama, Head::Value));
        }
    }

    #[test]
    fn a_file_that_names_its_padding_keeps_it_unless_it_ends_responses_too() {
        for (named, tokenizers, padded) in [
            (json!({}), Some(5), Some(5)),
            (json!({"pad_token_id": null}), Some(5), Some(5)),
            (json!({"pad_token_id": -1}), Some(5), Some(5)),
            (json!({"pad_token_id": 0}), Some(5), Some(0)),
            (json!({"pad_token_id": 0}), None, Some(0)),
            (json!({"pad_token_id": 2}), Some(5), Some(5)),
            (json!({"pad_token_id": 2}), None, None),
        ] {
            let saved = config(named).unwrap().padded_with(tokenizers, Some(2)).raw;
            assert_eq!(saved.get("pad_token_id").and_then(Value::as_u64), padded);
        }
    }

    #[test]
    fn mistral_without_a_window_is_read_and_keeps_its_name_under_any_head() {
        for window in [json!(null), json!(4096)] {
            let change = json!({
                "architectures": ["MistralForCausalLM"], "model_type": "mistral", "max_position_embeddings": 4096, "sliding_window": window
            });
            let policy = config(change).unwrap();
            assert_eq!((policy.family, policy.head), (Family::Mistral, Head::LanguageModel));
            assert_eq!(policy.raw["architectures"], json!(["MistralForCausalLM"]));
            let reward = policy.with_head(Head::Score);
            assert_eq!(reward.raw["architectures"], json!(["MistralForSequenceClassification"]));
        }
    }

    #[test]
    fn a_reward_model_of_openrlhf_has_the_family_of_its_model_type_and_is_saved_in_transformers_words() {
        for class in OPENRLHF {
            let model = config(json!({"architectures": [class], "model_type": "qwen3", "head_dim": 16})).unwrap();
            assert_eq!((model.family, model.head), (Family::Qwen3, Head::Score));
            assert_eq!(model.raw["architectures"], json!(["Qwen3ForSequenceClassification"]));
            assert_eq!(model.raw["id2label"], json!({"0": "LABEL_0"}));
            assert!(model.scores_at_end_token());
        }
    }

    #[test]
    fn a_file_says_that_a_model_scores_at_the_end_token_also_when_it_is_saved_and_read_again() {
        let model = config(json!({"architectures": ["LlamaForSequenceClassification"]})).unwrap();
        assert!(!model.scores_at_end_token());
        let saved = model.scoring_at_end_token().raw;
        assert!(ModelConfig::from_json(saved).unwrap().scores_at_end_token());
    }

    #[test]
    fn a_file_without_a_class_is_saved_with_that_of_its_model_type() {
        for class in [json!(null), json!([])] {
            let model = config(json!({"architectures": class, "model_type": "qwen2"})).unwrap();
            assert_eq!((model.family, model.head), (Family::Qwen2, Head::LanguageModel));
            assert_eq!(model.raw["architectures"], json!(["Qwen2ForCausalLM"]));
        }
    }

    #[test]
    fn labels_that_a_file_leaves_out_are_no_reason_to_refuse_it() {
        let model = config(json!({"architectures": ["LlamaForSequenceClassification"]})).unwrap();
        assert_eq!(model.head, Head::Score);
    }
}
