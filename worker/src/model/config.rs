//! `config.json` of the supported decoder families, read strictly: what would be computed wrongly is refused by name.

mod keys;

use std::path::Path;

use anyhow::{Context, Result, bail};
use ppo_crds::memory::ModelShape;
use serde_json::{Map, Value};
use tch::Kind;

use self::keys::{Keys, token_ids};
use super::rope::RopeScaling;

/// Most layers that are believed. A tensor's name is made for each before the weights are looked at, so a file that asks for
/// more would cost memory by its word alone. The deepest models have some hundred.
const MOST_LAYERS: i64 = 10_000;

/// The decoder families. They differ in biases and in the norms of queries and keys, not in structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Llama 1, 2 and 3.
    Llama,
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
    /// `...ForSequenceClassification`, one label: a score per sample, `score.weight` without bias.
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

const FAMILIES: [(&str, &str, Family); 3] = [
    ("llama", "Llama", Family::Llama),
    ("qwen2", "Qwen2", Family::Qwen2),
    ("qwen3", "Qwen3", Family::Qwen3),
];

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
    /// The precision the weights were saved in; None when the file does not say.
    pub dtype: Option<Kind>,
    eos_token_ids: Vec<u32>,
    /// The file as it was read, passed through when the model is saved.
    pub(super) raw: Map<String, Value>,
}

impl ModelConfig {
    /// Reads `config.json` and, where present, `generation_config.json` of a model folder.
    ///
    /// # Errors
    /// When the file is missing or not JSON, or names something this worker does not compute; the message has the file,
    /// the key and what is supported.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join("config.json");
        let raw = read_object(&path)?.with_context(|| {
            format!(
                "{} does not exist: a model folder in Hugging Face layout has a config.json",
                path.display()
            )
        })?;
        let generation = read_object(&folder.join("generation_config.json"))?;
        Self::from_json(raw, generation.as_ref()).with_context(|| format!("in {}", path.display()))
    }

    /// The configuration of parsed `config.json` and `generation_config.json` objects.
    ///
    /// # Errors
    /// As [`read`](Self::read), without the file's name.
    pub fn from_json(raw: Map<String, Value>, generation: Option<&Map<String, Value>>) -> Result<Self> {
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
        let attention_bias = keys.flag("attention_bias")?.unwrap_or(false);
        let (rope_theta, rope_scaling) = RopeScaling::from_config(&raw)?;
        let eos_token_ids = match generation.and_then(|g| g.get("eos_token_id")).filter(|v| !v.is_null()) {
            Some(ids) => token_ids("generation_config.json: eos_token_id", ids)?,
            None => raw
                .get("eos_token_id")
                .map(|ids| token_ids("eos_token_id", ids))
                .transpose()?
                .unwrap_or_default(),
        };
        Ok(Self {
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
            max_positions: keys.size("max_position_embeddings")?.unwrap_or(2048) as usize,
            initializer_range: keys.number("initializer_range")?.unwrap_or(0.02),
            dtype: keys.dtype()?,
            eos_token_ids,
            raw,
        })
    }

    /// Tokens that end a response, of `generation_config.json` and else of `config.json`. Empty when neither says.
    pub fn eos_token_ids(&self) -> &[u32] {
        &self.eos_token_ids
    }

    /// The same trunk under another head, as a critic is built on a policy.
    #[must_use]
    pub fn with_head(mut self, head: Head) -> Self {
        if self.head == head {
            return self;
        }
        self.head = head;
        let family = FAMILIES
            .iter()
            .find(|(_, _, family)| *family == self.family)
            .map_or("", |(_, class, _)| *class);
        let architecture = format!("{family}{}", head.architecture_suffix());
        self.raw.insert("architectures".into(), Value::from(vec![architecture]));
        if head != Head::LanguageModel {
            // transformers derives num_labels from these, and a file that has it too, for a model's own labels, would contradict them.
            self.raw.remove("num_labels");
            self.raw.insert("id2label".into(), serde_json::json!({"0": "LABEL_0"}));
            self.raw.insert("label2id".into(), serde_json::json!({"LABEL_0": 0}));
        }
        self
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
        }
    }
}

fn architecture(keys: &Keys) -> Result<(Family, Head)> {
    let supported = "supported are Llama, Qwen2 and Qwen3, each ...ForCausalLM, ...ForSequenceClassification or \
                     ...ForTokenClassification with one label";
    let name = keys
        .0
        .get("architectures")
        .and_then(|list| list.get(0))
        .and_then(Value::as_str);
    let Some(name) = name else {
        let model_type = keys.0.get("model_type").and_then(Value::as_str).unwrap_or("absent");
        return match FAMILIES.iter().find(|(model, _, _)| *model == model_type) {
            Some((_, _, family)) => Ok((*family, Head::LanguageModel)),
            None => bail!("architectures is empty and model_type is {model_type}: {supported}"),
        };
    };
    for (_, class, family) in FAMILIES {
        for head in [Head::LanguageModel, Head::Score, Head::Value] {
            if name.strip_prefix(class) == Some(head.architecture_suffix()) {
                if head != Head::LanguageModel {
                    one_label(keys)?;
                }
                return Ok((family, head));
            }
        }
    }
    bail!("architectures is [\"{name}\"]: {supported}")
}

fn one_label(keys: &Keys) -> Result<()> {
    let listed = keys
        .0
        .get("id2label")
        .and_then(Value::as_object)
        .map(|labels| labels.len() as i64);
    // PretrainedConfig's default is two labels.
    let labels = keys.size("num_labels")?.or(listed).unwrap_or(2);
    if labels != 1 {
        bail!("num_labels is {labels}: a reward model or critic has exactly one label");
    }
    Ok(())
}

fn refuse_unsupported(keys: &Keys, family: Family) -> Result<()> {
    if let Some(activation) = keys.0.get("hidden_act").and_then(Value::as_str)
        && activation != "silu"
    {
        bail!("hidden_act is {activation}: only silu is supported");
    }
    if keys.flag("mlp_bias")?.unwrap_or(false) {
        bail!("mlp_bias is true: only MLPs without bias are supported");
    }
    if family != Family::Llama && keys.flag("use_sliding_window")?.unwrap_or(false) {
        bail!("use_sliding_window is true: only full attention is supported");
    }
    let layer_types = keys.0.get("layer_types").and_then(Value::as_array);
    if let Some(other) = layer_types
        .into_iter()
        .flatten()
        .find(|kind| kind.as_str() != Some("full_attention"))
    {
        bail!("layer_types has {other}: only \"full_attention\" is supported");
    }
    if keys.0.get("quantization_config").is_some_and(|value| !value.is_null()) {
        bail!("quantization_config is set: only float32, float16 and bfloat16 weights are supported");
    }
    Ok(())
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
            "intermediate_size": 96, "vocab_size": 128, "eos_token_id": 7
        });
        for (key, value) in change.as_object().unwrap() {
            raw[key] = value.clone();
        }
        ModelConfig::from_json(raw.as_object().unwrap().clone(), None)
    }

    #[test]
    fn what_would_be_computed_wrongly_is_refused_by_key() {
        for (change, named) in [
            (json!({"architectures": ["MistralForCausalLM"]}), "MistralForCausalLM"),
            (json!({"hidden_act": "gelu"}), "hidden_act"),
            (json!({"mlp_bias": true}), "mlp_bias"),
            (
                json!({"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": true}),
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
            (json!({"rope_scaling": {"type": "linear"}}), "rope_scaling.factor"),
            (json!({"quantization_config": {"bits": 4}}), "quantization_config"),
            (json!({"num_key_value_heads": 3}), "num_key_value_heads"),
            (
                json!({"architectures": ["LlamaForSequenceClassification"]}),
                "num_labels",
            ),
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
    fn eos_is_a_number_or_a_list_and_the_generation_config_wins() {
        assert_eq!(config(json!({})).unwrap().eos_token_ids(), [7]);
        assert_eq!(config(json!({"eos_token_id": [5, 6]})).unwrap().eos_token_ids(), [5, 6]);
        assert!(
            config(json!({"eos_token_id": null}))
                .unwrap()
                .eos_token_ids()
                .is_empty()
        );
        let raw = config(json!({})).unwrap().raw;
        let generation = json!({"eos_token_id": [9, 10]});
        let both = ModelConfig::from_json(raw, generation.as_object()).unwrap();
        assert_eq!(both.eos_token_ids(), [9, 10]);
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
            let again = ModelConfig::from_json(critic.raw, None).unwrap();
            assert_eq!((again.family, again.head), (Family::Llama, Head::Value));
        }
    }
}
