//! `spec.roles.reward`: where scores come from. Several sources add up, each times its weight.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DType, ModelSource, PodPlacement};

/// Where scores come from. At least one of `model`, `rules`, `remote`; a sample's score is their weighted sum.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RewardSpec {
    /// A reward model: a sequence classifier with one output. OpenRLHF `reward.model_name_or_path`, verl
    /// `reward.reward_model.model_path`, TRL `reward_model_path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<RewardModelSpec>,
    /// Rules that check the response's text. At most 16. What OpenRLHF, verl and TRL call a reward function.
    #[serde(default)]
    #[schemars(length(max = 16))]
    pub rules: Vec<RewardRule>,
    /// Servers that answer OpenRLHF's remote reward protocol. OpenRLHF `reward.remote_url`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<RemoteRewardSpec>,
    /// Where the reward role's own pods run. They exist only with `model`: rules and remote calls are made by the actor.
    #[serde(default)]
    pub placement: PodPlacement,
}

/// A reward model.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RewardModelSpec {
    /// The weights: a `...ForSequenceClassification` with one label in Hugging Face layout, or what OpenRLHF saves as `RewardModel`. Exactly one of `path`, `pvc`, `hub`.
    pub source: ModelSource,
    /// Number format of its weights and activations: `bfloat16` or `float32`. Its score is float32 either way: a model that was trained in
    /// float32 scores somewhat otherwise in bfloat16, at half the memory. A run goes on only with the one that it began with. Default:
    /// `model.dtype`. verl `reward.reward_model.rollout.dtype`; OpenRLHF has one for all models, `ds.param_dtype`, and TRL no setting of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "DType")]
    pub dtype: Option<DType>,
    /// Factor on its score in the sum. -1000000 to 1000000. Default 1.
    #[serde(default = "one")]
    #[schemars(range(min = -1e6, max = 1e6))]
    pub weight: f64,
}

/// One check of the response's text. Exactly one of `exactMatch`, `numericMatch`, `mathMatch`, `regex`, `length`, `json`. Each
/// scores between 0 and 1.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RewardRule {
    /// Factor on the rule's score in the sum. -1000000 to 1000000. Default 1.
    #[serde(default = "one")]
    #[schemars(range(min = -1e6, max = 1e6))]
    pub weight: f64,
    /// Regular expression applied to the response first; its first group (else the whole match) is what the rule reads, trimmed.
    /// The last match counts. No match scores 0. The label is not touched. Default: the whole response, trimmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub extract: Option<String>,
    /// 1 when the text equals the label, else 0. Needs `prompts.labelField`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exact_match: Option<ExactMatch>,
    /// 1 when the last number in the text is the last number in the label, else 0. Needs `prompts.labelField`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numeric_match: Option<NumericMatch>,
    /// 1 when the final answer in the text equals the label's as mathematics, else 0. Needs `prompts.labelField`. Without `extract` a
    /// response's answer is what stands in its last `\boxed{}` or `\fbox{}`; where it has none, the sentence behind its last `answer:`,
    /// `answer is` or `####`, at most to the end of the line. A response with neither scores 0, and so does one whose last box is not
    /// closed. What `extract` finds, and the label, is the content of its last box, else what stands behind its last `####`, else all of it. An
    /// answer has at most 1000 bytes. Numbers, roots, functions and expressions with variables are compared by value, tuples and
    /// intervals by their elements and brackets, sets and lists in any order, words in any case; anything else as it is written, but for
    /// spaces, sizes and fonts. Units are not read, `50\%` is 50 and 0.5, and `x = 5` is 5. Where the label is a number, the answer must be one
    /// that is worked out: `3+4` is not 7.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub math_match: Option<MathMatch>,
    /// 1 when the pattern is found in the text, else 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regex: Option<RegexRule>,
    /// 1 while the response's length is in a range, falling to 0 outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<LengthRule>,
    /// 1 when the text is valid JSON, else 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub json: Option<JsonRule>,
}

/// 1 when the text equals the label, else 0.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExactMatch {
    /// Compare without regard to upper and lower case. Default false.
    #[serde(default)]
    pub ignore_case: bool,
}

/// 1 when the last number in the text is the last number in the label, else 0. A number may have `,` between its thousands, `$`, `€` or
/// `£` in front, a decimal part, an exponent, and be a fraction: `1,234`, `-$5`, `2.50`, `6.02e23`, `3/4`, or LaTeX's `1{,}234`,
/// `\frac{3}{4}`, `2\frac{1}{2}`. What stands after it, such as `%` or a unit, is not read. Where the label is a whole number, a fraction
/// that comes to it scores 0: `84/2` is not 42.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NumericMatch {
    /// Largest absolute difference that still matches. 0 to 1e12. Default 0.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1e12))]
    pub tolerance: f64,
}

/// 1 when the final answer in the text equals the label's as mathematics, else 0: `mathMatch: {}`. What verl, OpenRLHF and TRL have for
/// MATH, DAPO-Math and AIME.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MathMatch {}

/// 1 when the pattern is found in the text, else 0.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RegexRule {
    /// Regular expression in the Rust `regex` crate's syntax (no look-around, no back-references); found anywhere unless
    /// anchored by `^` and `$`.
    #[schemars(length(min = 1, max = 1024))]
    pub pattern: String,
}

impl RewardRule {
    /// Whether its score depends on the row's label.
    pub fn compares(&self) -> bool {
        self.exact_match.is_some() || self.numeric_match.is_some() || self.math_match.is_some()
    }
}

/// 1 inside [min, max] tokens, falling linearly to 0 over `slope` tokens outside.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LengthRule {
    /// Fewest tokens of a response that score 1. At most `max`. Default 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_048_576))]
    pub min: u32,
    /// Most tokens of a response that score 1. 0 to 1048576.
    #[schemars(range(min = 0, max = 1_048_576))]
    pub max: u32,
    /// Tokens outside the range over which the score falls from 1 to 0; 0 is a hard edge. 0 to 1048576. Default 0. OpenRLHF
    /// `reward.overlong_buffer_len`.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_048_576))]
    pub slope: u32,
}

/// 1 when the text is valid JSON, else 0.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JsonRule {
    /// Keys that a JSON object must have. At most 64. Default none: any JSON value will do.
    #[serde(default)]
    #[schemars(length(max = 64), inner(length(min = 1, max = 256)))]
    pub required_keys: Vec<String>,
}

/// Servers that answer OpenRLHF's remote reward protocol: POST {"query", "prompts", "labels"}, answer {"rewards"}.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RemoteRewardSpec {
    /// `http://` or `https://` addresses, path included, all equal: calls are spread over them. The actor's variable `PPO_REWARD_TOKEN`, where its
    /// template has one, is sent as `Authorization: Bearer`. 1 to 64. OpenRLHF `reward.remote_url`.
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 2048)))]
    pub urls: Vec<String>,
    /// Factor on its score in the sum. -1000000 to 1000000. Default 1.
    #[serde(default = "one")]
    #[schemars(range(min = -1e6, max = 1e6))]
    pub weight: f64,
    /// Seconds one call may take. 1 to 86400. Default 60.
    #[serde(default = "default_timeout")]
    #[schemars(range(min = 1, max = 86_400))]
    pub timeout_seconds: u32,
    /// Calls made again, after a growing, jittered pause, before the run fails. 0 to 100. Default 5.
    #[serde(default = "default_retries")]
    #[schemars(range(min = 0, max = 100))]
    pub max_retries: u32,
    /// Calls in flight at once, over all URLs. 1 to 4096. Default 8.
    #[serde(default = "default_concurrency")]
    #[schemars(range(min = 1, max = 4096))]
    pub max_concurrency: u32,
    /// Most samples of a call; fewer where each URL gets a share of them. 1 to 65536. Default 64.
    #[serde(default = "default_batch")]
    #[schemars(range(min = 1, max = 65_536))]
    pub batch_size: u32,
}

fn one() -> f64 {
    1.0
}
fn default_timeout() -> u32 {
    60
}
fn default_retries() -> u32 {
    5
}
fn default_concurrency() -> u32 {
    8
}
fn default_batch() -> u32 {
    64
}
