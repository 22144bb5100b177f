//! `spec.prompts`, `spec.evaluation`, `spec.generation`: what goes in and how text comes out.

use std::path::Path;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::PvcPath;

/// The training prompts: rows of JSON Lines, JSON or Parquet files.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PromptsSpec {
    /// The files. Exactly one of `path`, `paths`, `pvc`. OpenRLHF `data.prompt_dataset`, verl `data.train_files`, TRL `dataset_name`.
    pub source: DataSource,
    /// Column or key of the prompt: a string, or a list of chat messages. A string that goes through no template gets the special tokens of
    /// its tokenizer (BOS for Llama) around it; one that begins with BOS already, rendered before, keeps one. Default `prompt`. OpenRLHF
    /// `data.input_key`, verl `data.prompt_key`.
    #[serde(default = "default_prompt_field")]
    #[schemars(length(min = 1, max = 256))]
    pub prompt_field: String,
    /// Column or key of the label (a right answer, say) that the reward sees. Default: no label. OpenRLHF
    /// `data.label_key`; verl `reward_model.ground_truth` inside the row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub label_field: Option<String>,
    /// Render each prompt through the model's chat template (a string becomes one user message). The template writes BOS where the model
    /// wants one, so none is added; and a date that it prints stays that of the run's first start. Without it only lists of messages are
    /// rendered. Default false. OpenRLHF `data.apply_chat_template`, which without it adds no special tokens to a prompt; verl always
    /// renders.
    #[serde(default)]
    pub chat_template: bool,
    /// Variables for the chat template, by name, of any JSON type but null: `{enable_thinking: false}` for Qwen3. They win over those that
    /// every template has (`add_generation_prompt`, `bos_token`), hold for `evaluation` too, and need `chatTemplate: true`. Default none.
    /// verl `data.apply_chat_template_kwargs`, vLLM `chat_template_kwargs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "variables")]
    pub chat_template_variables: Option<Map<String, Value>>,
    /// Longest prompt in tokens; a longer one is dropped, and counted. 1 to 1048576. Default 1024. verl
    /// `data.max_prompt_length`, TRL `max_prompt_length`; part of OpenRLHF's `data.max_len`.
    #[serde(default = "default_max_length")]
    #[schemars(range(min = 1, max = 1_048_576))]
    pub max_length: u32,
    /// Shuffle the prompts anew in each episode, by the run's seed. Default true. verl `data.shuffle`, TRL GRPO
    /// and RLOO `shuffle_dataset`; OpenRLHF and TRL's PPO always shuffle.
    #[serde(default = "yes")]
    pub shuffle: bool,
}

/// What is no variable of a chat template, but an argument of transformers' function that renders one: it would be passed over without a
/// word.
pub const NO_TEMPLATE_VARIABLES: [&str; 5] = [
    "messages",
    "conversation",
    "chat_template",
    "tokenize",
    "continue_final_message",
];

/// Any value, which the API server keeps as it is.
fn variables(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// How a data file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataFormat {
    /// An object a line.
    JsonLines,
    /// A list of objects, or an object a line all the same.
    Json,
    /// Columns.
    Parquet,
}

impl DataFormat {
    /// The extensions that tell it, in words.
    pub const EXTENSIONS: &str = ".jsonl, .ndjson, .json or .parquet";

    /// That of a file, by its extension in any case of letters; None for one that is not read.
    pub fn of(file: &Path) -> Option<Self> {
        match file.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "jsonl" | "ndjson" => Some(Self::JsonLines),
            "json" => Some(Self::Json),
            "parquet" => Some(Self::Parquet),
            _ => None,
        }
    }

    /// Whether a path can only be a folder's: it has no extension, or ends with a slash.
    pub fn is_folder(path: &str) -> bool {
        path.ends_with('/') || Path::new(path).extension().is_none()
    }
}

/// Where rows lie: a data file, a folder of them, or several of either. Exactly one of `path`, `paths`, `pvc`. A file's extension tells its
/// format: .jsonl (or .ndjson), .json, .parquet. A folder is read whole, file after file in the byte order of their names, and they have one
/// format; folders in it, hidden files and other extensions are left out. A folder that has files of training and of held-out rows, by `train`
/// and `test`, `validation` or `eval` in their names, is refused.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DataSource {
    /// File or folder on a disk. On one machine a relative path starts at the manifest's folder; on a cluster the path must be absolute and lie
    /// in the image or in a volume that the role's `template` mounts. The name of a folder that has a dot in it ends with a slash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub path: Option<String>,
    /// Several files and folders, each as in `path`, read one after another; one that is named twice counts twice. 1 to 64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 4096)))]
    pub paths: Option<Vec<String>>,
    /// File or folder in a PersistentVolumeClaim of the job's namespace. Clusters only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pvc: Option<PvcPath>,
}

/// Held-out prompts on which the policy is measured, read with the same fields as `prompts`.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EvaluationSpec {
    /// The files. Exactly one of `path`, `paths`, `pvc`. OpenRLHF `eval.dataset`, verl `data.val_files`.
    pub source: DataSource,
    /// Evaluate before the first step, then every so many steps, and after the last. 1 to 1000000000. Default 10. OpenRLHF
    /// `eval.steps`, verl `trainer.test_freq`, TRL `eval_steps`.
    #[serde(default = "default_eval_every")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub every_steps: u64,
    /// Use only the first so many prompts. 1 to 1000000000. Default: all of them. verl `data.val_max_samples`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub max_prompts: Option<u32>,
    /// Sampling temperature of the evaluation; 0 is greedy. All else (`topP`, `topK`, `minP`, length, stop conditions) is as `generation` says.
    /// 0 to 100. Default 0. OpenRLHF `eval.temperature`, verl
    /// `actor_rollout_ref.rollout.val_kwargs.temperature`.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 100.0))]
    pub temperature: f64,
    /// Samples of each prompt: score and pass@1 are the means over all of them, and pass@n is the share of prompts of which at least one
    /// passes. Above 1 for a file of few prompts, with a `temperature` above 0: greedy samples are all equal. 1 to 1024. Default 1. OpenRLHF
    /// `eval.n_samples_per_prompt` (4 there), verl `actor_rollout_ref.rollout.val_kwargs.n`.
    #[serde(default = "one_sample")]
    #[schemars(range(min = 1, max = 1024))]
    pub n_samples_per_prompt: u32,
    /// A sample counts as passed (pass@1) when its score is at least this. Default 1.
    #[serde(default = "one")]
    #[schemars(range(min = -1e9, max = 1e9))]
    pub pass_score: f64,
    /// Column or key that names the test set of a row, as a string or a number (`AIME24`, say): the figures are reported of each set, too.
    /// Every row needs one; at most 32 different names, of at most 64 characters. Default: none. verl reports by `data_source`, OpenRLHF by
    /// `datasource`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub set_field: Option<String>,
}

/// How responses are sampled.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GenerationSpec {
    /// Longest response in tokens. 1 to 1048576. Default 1024. OpenRLHF `rollout.max_new_tokens`, verl
    /// `data.max_response_length`, TRL `max_completion_length`, in PPO and older RLOO `response_length`.
    #[serde(default = "default_max_new")]
    #[schemars(range(min = 1, max = 1_048_576))]
    pub max_new_tokens: u32,
    /// No response ends before so many tokens. At most `maxNewTokens`. Above 0 the policy ratio is biased, and `plan` warns. Default
    /// 0. vLLM `min_tokens`.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_048_576))]
    pub min_new_tokens: u32,
    /// Divides the logits before sampling; the log-probs that PPO uses are divided alike. 0.01 to 100: greedy samples teach nothing, and
    /// vLLM draws at 0.01 what is to be drawn at less. Default 1. OpenRLHF `rollout.temperature`, verl
    /// `actor_rollout_ref.rollout.temperature`, TRL `temperature`.
    #[serde(default = "one")]
    #[schemars(range(min = 0.01, max = 100.0))]
    pub temperature: f64,
    /// Sample from the smallest set of tokens whose probability reaches this. Above 0, at most 1; 1 keeps all tokens. Below 1
    /// the policy ratio is biased, and `plan` warns. Default 1. OpenRLHF `rollout.top_p`, verl
    /// `actor_rollout_ref.rollout.top_p`, TRL `top_p` (its PPO fixes it at 1).
    #[serde(default = "one")]
    #[schemars(range(min = 0.0, max = 1.0), extend("exclusiveMinimum" = true))]
    pub top_p: f64,
    /// Sample from so many most likely tokens only; 0 switches it off. Above 0 the policy ratio is biased, and `plan` warns.
    /// Default 0. verl `actor_rollout_ref.rollout.top_k` (-1 is off there).
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_048_576))]
    pub top_k: u32,
    /// Sample only tokens at least this likely relative to the most likely one; 0 switches it off. 0 to 1. Above 0 the policy
    /// ratio is biased, and `plan` warns. Default 0. vLLM `min_p`.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub min_p: f64,
    /// Strings that end a response; the text up to and including the string is kept. At most 64 of 256 characters. A text
    /// with a special token in it (`<|im_start|>`) is in no response: give its id in `stopTokenIds`. Default none. vLLM `stop`.
    #[serde(default)]
    #[schemars(length(max = 64), inner(length(min = 1, max = 256)))]
    pub stop: Vec<String>,
    /// Token ids that end a response, besides the model's own end-of-sequence ids. At most 256. Default none. TRL
    /// `stop_token_id`, vLLM `stop_token_ids`.
    #[serde(default)]
    #[schemars(length(max = 256), inner(range(min = 0, max = 2_147_483_647)))]
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
fn one_sample() -> u32 {
    1
}
fn yes() -> bool {
    true
}
