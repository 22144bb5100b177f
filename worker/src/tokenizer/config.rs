//! `tokenizer_config.json` and the end tokens of the model's own configuration.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};

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
    /// The class in transformers; decides who adds BOS.
    pub class: String,
    /// Llama and Gemma: put BOS before a text.
    pub add_bos_token: Option<bool>,
    /// Llama and Gemma: put EOS after a text.
    pub add_eos_token: Option<bool>,
    /// The Jinja source, when it is inside this file.
    pub chat_template: Option<String>,
}

impl TokenizerConfig {
    /// Reads the configuration in a model folder.
    ///
    /// # Errors
    /// When the file exists and is not the JSON that transformers writes.
    pub fn read(folder: &Path) -> Result<Self> {
        let Some(fields) = read_object(folder, "tokenizer_config.json")? else {
            return Ok(Self::default());
        };
        let token = |name: &str| fields.get(name).and_then(token_content);
        Ok(Self {
            special: SpecialTokens {
                bos_token: token("bos_token"),
                eos_token: token("eos_token"),
                pad_token: token("pad_token"),
                unk_token: token("unk_token"),
            },
            class: fields
                .get("tokenizer_class")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned(),
            add_bos_token: fields.get("add_bos_token").and_then(Value::as_bool),
            add_eos_token: fields.get("add_eos_token").and_then(Value::as_bool),
            chat_template: match fields.get("chat_template") {
                None | Some(Value::Null) => None,
                Some(value) => Some(
                    default_template(value)
                        .with_context(|| folder.join("tokenizer_config.json").display().to_string())?,
                ),
            },
        })
    }

    /// True for the classes that decide BOS and EOS by `add_bos_token` and `add_eos_token`, whatever `tokenizer.json` says.
    pub fn class_adds_bos(&self) -> bool {
        let class = self.class.strip_suffix("Fast").unwrap_or(&self.class);
        matches!(class, "LlamaTokenizer" | "CodeLlamaTokenizer" | "GemmaTokenizer")
    }

    /// What decides which special tokens stand around a text.
    pub fn convention(&self) -> (&SpecialTokens, bool, Option<bool>, Option<bool>) {
        (
            &self.special,
            self.class_adds_bos(),
            self.add_bos_token,
            self.add_eos_token,
        )
    }
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

/// One template, or a list of named ones of which `default` is meant.
fn default_template(value: &Value) -> Result<String> {
    if let Some(source) = value.as_str() {
        return Ok(source.to_owned());
    }
    let named = value.as_array().map(Vec::as_slice).unwrap_or_default();
    let default = named.iter().find(|entry| entry["name"] == "default");
    match default.and_then(|entry| entry["template"].as_str()) {
        Some(source) => Ok(source.to_owned()),
        None => bail!("chat_template: want a template, or a list of {{name, template}} with one named \"default\""),
    }
}
