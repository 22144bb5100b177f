//! `tokenizer_config.json` and the end tokens of the model's own configuration.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokenizers::AddedToken;

/// Names of the tokens with a meaning of their own. The chat template sees them under the same names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Begins a text.
    pub bos_token: Option<String>,
    /// Ends a text.
    pub eos_token: Option<String>,
    /// Fills a batch.
    pub pad_token: Option<String>,
    /// Stands for what the vocabulary lacks.
    pub unk_token: Option<String>,
}

/// What we read of `tokenizer_config.json`. A missing file is an empty configuration.
#[derive(Clone, Debug, Default)]
pub struct TokenizerConfig {
    /// Names of special tokens.
    pub special: SpecialTokens,
    /// Further tokens that are special, by name.
    pub other_special: Vec<String>,
    /// What is said of added tokens: the white space that they take, and whether they are special.
    pub added: Vec<AddedToken>,
    /// The class in transformers; decides who adds BOS.
    pub class: String,
    /// Llama and Gemma: put BOS before a text.
    pub add_bos_token: Option<bool>,
    /// Llama and Gemma: put EOS after a text.
    pub add_eos_token: Option<bool>,
    /// The chat template, when it is inside this file: its Jinja source, or a list of named ones.
    pub chat_template: Option<Value>,
}

impl TokenizerConfig {
    /// Reads the configuration in a model folder. `knows` tells whether the vocabulary has a token: special tokens of which the file says
    /// nothing are those that the class in transformers has by default, where they are there. Beside a file without
    /// `added_tokens_decoder`, as transformers wrote it before 4.34, those of `special_tokens_map.json` win
    /// (`tokenization_utils_base.py`, `_from_pretrained`): tokens that were named after loading are there alone.
    ///
    /// # Errors
    /// When a file exists and is not the JSON that transformers writes.
    pub fn read(folder: &Path, knows: impl Fn(&str) -> bool) -> Result<Self> {
        let fields = read_object(folder, "tokenizer_config.json")?.unwrap_or_default();
        let map = match fields.contains_key("added_tokens_decoder") {
            true => None,
            false => read_object(folder, "special_tokens_map.json")?,
        };
        let class = match fields.get("tokenizer_class").and_then(Value::as_str) {
            Some(class) => class.to_owned(),
            None => class_of_model(folder)?,
        };
        let [bos, eos, pad, unk] = class_tokens(&class);
        let mapped = |name: &str| token_content(map.as_ref()?.get(name)?).filter(|token| knows(token));
        let token = |name: &str, default: &str| match (mapped(name), fields.get(name)) {
            (Some(mapped), _) => Some(mapped),
            (None, Some(given)) => token_content(given),
            (None, None) => knows(default).then(|| default.to_owned()),
        };
        Ok(Self {
            special: SpecialTokens {
                bos_token: token("bos_token", bos),
                eos_token: token("eos_token", eos),
                pad_token: token("pad_token", pad),
                unk_token: token("unk_token", unk),
            },
            other_special: [Some(&fields), map.as_ref()]
                .into_iter()
                .flatten()
                .flat_map(other_special)
                .collect(),
            added: added_tokens(&fields),
            class,
            add_bos_token: fields.get("add_bos_token").and_then(Value::as_bool),
            add_eos_token: fields.get("add_eos_token").and_then(Value::as_bool),
            chat_template: fields
                .get("chat_template")
                .filter(|template| !template.is_null())
                .cloned(),
        })
    }

    /// The Jinja source of the chat template inside the file; None without one.
    ///
    /// # Errors
    /// When it is neither a template nor a list of which one is the default.
    pub fn chat_template(&self) -> Result<Option<String>> {
        self.chat_template.as_ref().map(default_template).transpose()
    }

    /// The Jinja source of the template of that name, which a list of named ones may have beside the default.
    pub fn named_template(&self, name: &str) -> Option<&str> {
        named_template(self.chat_template.as_ref()?, name)
    }

    /// True for the classes that decide BOS and EOS by `add_bos_token` and `add_eos_token`, whatever `tokenizer.json` says.
    pub fn class_adds_bos(&self) -> bool {
        matches!(base(&self.class), LLAMA | "CodeLlamaTokenizer" | "GemmaTokenizer")
    }
}

/// Llama 1 and 2, and Mistral.
const LLAMA: &str = "LlamaTokenizer";
/// Qwen 1.5 to 3.
const QWEN2: &str = "Qwen2Tokenizer";

fn base(class: &str) -> &str {
    class.strip_suffix("Fast").unwrap_or(class)
}

/// BOS, EOS, padding and unknown token that a class has by default (`tokenization_llama_fast.py`, `tokenization_gemma_fast.py`,
/// `tokenization_qwen2.py`); empty for none.
fn class_tokens(class: &str) -> [&'static str; 4] {
    match base(class) {
        LLAMA | "CodeLlamaTokenizer" => ["<s>", "</s>", "", "<unk>"],
        "GemmaTokenizer" => ["<bos>", "<eos>", "<pad>", "<unk>"],
        QWEN2 => ["", "<|endoftext|>", "<|endoftext|>", "<|endoftext|>"],
        _ => [""; 4],
    }
}

/// The class that transformers takes where the tokenizer's own file names none (`tokenization_auto.py`): config.json's, else that of the
/// model's family.
fn class_of_model(folder: &Path) -> Result<String> {
    let fields = read_object(folder, "config.json")?.unwrap_or_default();
    let text = |name: &str| fields.get(name).and_then(Value::as_str);
    let family = || match text("model_type")? {
        "llama" | "mistral" => Some(LLAMA),
        "qwen2" | "qwen3" => Some(QWEN2),
        _ => None,
    };
    Ok(text("tokenizer_class").or_else(family).unwrap_or_default().to_owned())
}

/// `eos_token_id` of `generation_config.json`, else of `config.json`: one id or a list of them.
///
/// # Errors
/// When the field is something else.
pub(super) fn model_eos_ids(folder: &Path) -> Result<Vec<u32>> {
    for name in ["generation_config.json", "config.json"] {
        let Some(fields) = read_object(folder, name)? else {
            continue;
        };
        let ids = match fields.get("eos_token_id") {
            None | Some(Value::Null) => continue,
            Some(Value::Array(ids)) => ids.clone(),
            Some(id) => vec![id.clone()],
        };
        return ids
            .iter()
            .map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()))
            .collect::<Option<Vec<u32>>>()
            .with_context(|| {
                format!(
                    "{}: eos_token_id is {}, want a token id or a list of them",
                    folder.join(name).display(),
                    Value::Array(ids)
                )
            });
    }
    Ok(Vec::new())
}

fn read_object(folder: &Path, name: &str) -> Result<Option<Map<String, Value>>> {
    let file = folder.join(name);
    let bytes = match std::fs::read(&file) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
    };
    let fields = serde_json::from_slice(&bytes).with_context(|| format!("{}: not a JSON object", file.display()))?;
    Ok(Some(fields))
}

/// A token is written as its text or as an object with `content`.
fn token_content(value: &Value) -> Option<String> {
    value
        .as_str()
        .or_else(|| value.get("content")?.as_str())
        .map(str::to_owned)
}

/// The tokens of `additional_special_tokens`, and those of the roles that no causal model has a use for.
fn other_special(fields: &Map<String, Value>) -> Vec<String> {
    let more = fields.get("additional_special_tokens").and_then(Value::as_array);
    let roles = ["cls_token", "mask_token", "sep_token"].map(|name| fields.get(name));
    let tokens = more.into_iter().flatten().chain(roles.into_iter().flatten());
    tokens.filter_map(token_content).collect()
}

/// Those of `added_tokens_decoder` that transformers has written; what is no such token says nothing.
fn added_tokens(fields: &Map<String, Value>) -> Vec<AddedToken> {
    let tokens = fields.get("added_tokens_decoder").and_then(Value::as_object);
    let tokens = tokens.into_iter().flatten();
    tokens
        .filter_map(|(_, token)| AddedToken::deserialize(token).ok())
        .collect()
}

/// One template, or a list of named ones of which `default` is meant.
fn default_template(value: &Value) -> Result<String> {
    if let Some(source) = value.as_str() {
        return Ok(source.to_owned());
    }
    match named_template(value, "default") {
        Some(source) => Ok(source.to_owned()),
        None => bail!("chat_template: want a template, or a list of {{name, template}} with one named \"default\""),
    }
}

/// The template of that name in a list of named ones.
fn named_template<'a>(list: &'a Value, name: &str) -> Option<&'a str> {
    let entry = list.as_array()?.iter().find(|entry| entry["name"] == name)?;
    entry["template"].as_str()
}
