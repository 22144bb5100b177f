//! `spec.prompts`, `spec.evaluation`, `spec.generation`: what goes in and how text comes out.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::PvcPath;

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PromptsSpec {
    pub source: DataSource,
    #[serde(default = "default_prompt_field")]
    pub prompt_field: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_field: Option<String>,
    /// Render each prompt through the model's chat template (a string becomes one user message). Default false.
    #[serde(default)]
    pub chat_template: bool,
    /// Longest prompt in tokens; a longer one is dropped, and counted. Default 1024.
    #[serde(default = "default_max_length")]
    pub max_length: u32,
    #[serde(default = "yes")]
    pub shuffle: bool,
}

/// Exactly one of `path`, `pvc`. The file's extension tells its format: .jsonl, .json, .parquet.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DataSource {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pvc: Option<PvcPath>,
}

/// Held-out prompts, read with the same fields as `prompts`.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EvaluationSpec {
    pub source: DataSource,
    #[serde(default = "default_eval_every")]
    pub every_steps: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_prompts: Option<u32>,
    /// 0 is greedy. Default 0.
    #[serde(default)]
    pub temperature: f64,
    /// A prompt counts as passed (pass@1) when its score is at least this. Default 1.
    #[serde(default = "one")]
    pub pass_score: f64,
}

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GenerationSpec {
    #[serde(default = "default_max_new")]
    pub max_new_tokens: u32,
    #[serde(default)]
    pub min_new_tokens: u32,
    #[serde(default = "one")]
    pub temperature: f64,
    #[serde(default = "one")]
    pub top_p: f64,
    /// 0 switches it off. Default 0.
    #[serde(default)]
    pub top_k: u32,
    #[serde(default)]
    pub min_p: f64,
    #[serde(default)]
    pub stop: Vec<String>,
    /// Token ids that end a response, besides the model's own EOS ids.
    #[serde(default)]
    pub stop_token_ids: Vec<u32>,
}

impl Default for GenerationSpec {
    fn default() -> Self {
        Self {
            max_new_tokens: default_max_new(),
            min_new_tokens: 0,
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
        }
    }
}

fn default_prompt_field() -> String {
    "prompt".into()
}
fn default_max_length() -> u32 {
    1024
}
fn default_max_new() -> u32 {
    1024
}
fn default_eval_every() -> u64 {
    10
}
fn one() -> f64 {
    1.0
}
fn yes() -> bool {
    true
}
